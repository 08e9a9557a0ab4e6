import os

import torch

os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
print(torch.cuda.is_available(), torch.cuda.device_count(), torch.ones(3).device)
