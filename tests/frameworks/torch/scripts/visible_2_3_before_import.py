import os

os.environ["CUDA_VISIBLE_DEVICES"] = "2,3"
import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
print(os.environ["CUDA_VISIBLE_DEVICES"], torch.cuda.device_count(), torch.ones(3, device=device).device)
