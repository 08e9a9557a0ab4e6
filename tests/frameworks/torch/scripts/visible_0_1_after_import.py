import os

import torch

os.environ["CUDA_VISIBLE_DEVICES"] = "0,1"
device = "cuda" if torch.cuda.is_available() else "cpu"
print(os.environ["CUDA_VISIBLE_DEVICES"], torch.cuda.device_count(), torch.ones(3, device=device).device)
