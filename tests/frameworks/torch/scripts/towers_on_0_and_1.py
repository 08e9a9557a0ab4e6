import torch

first = torch.nn.Linear(8, 8).to("cuda:0")
second = torch.nn.Linear(8, 8).to("cuda:1")
print(second(first(torch.ones(4, 8, device="cuda:0")).to("cuda:1")).device)
