import torch

with torch.device("cuda"):
    model = torch.nn.Linear(2, 2)
print(model.weight.device, torch.ones(3).device)
