import torch

torch.set_default_device("cuda")
print(torch.ones(3).device, torch.nn.Linear(2, 2).weight.device)
