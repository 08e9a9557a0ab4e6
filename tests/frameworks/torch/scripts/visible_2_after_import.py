import os

import torch

os.environ["CUDA_VISIBLE_DEVICES"] = "2"
print(os.environ["CUDA_VISIBLE_DEVICES"], torch.cuda.device_count(), torch.ones(3).cuda().device)
