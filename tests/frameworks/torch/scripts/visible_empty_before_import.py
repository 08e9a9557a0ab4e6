import os

os.environ["CUDA_VISIBLE_DEVICES"] = ""
import torch

print(torch.cuda.is_available(), torch.cuda.device_count(), torch.ones(3).device)
