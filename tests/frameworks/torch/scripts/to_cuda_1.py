import torch

print(torch.ones(3).to("cuda:1").device)
