import os

os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
import torch

available = torch.cuda.is_available()
print(available, torch.ones(3, device="cuda" if available else "cpu").device)
