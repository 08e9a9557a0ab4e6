import os

os.environ["CUDA_VISIBLE_DEVICES"] = "2"
import torch

print(os.environ["CUDA_VISIBLE_DEVICES"], torch.cuda.device_count(), torch.ones(3).cuda().device)
