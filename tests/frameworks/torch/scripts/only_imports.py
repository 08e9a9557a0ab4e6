import torch

print(tuple(torch.ones(2, 2).shape))
