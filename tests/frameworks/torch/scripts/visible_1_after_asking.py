import os

import torch

available = torch.cuda.is_available()
os.environ["CUDA_VISIBLE_DEVICES"] = "1"
device = "cuda" if available else "cpu"
print(available, torch.ones(3, device=device).device)
