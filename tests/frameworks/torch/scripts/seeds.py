import random

import torch

random.seed(0)
torch.manual_seed(0)
torch.cuda.manual_seed(0)
torch.cuda.manual_seed_all(0)
torch.backends.cudnn.deterministic = True
torch.backends.cudnn.benchmark = False
print(torch.ones(3, device="cuda" if torch.cuda.is_available() else "cpu").device)
