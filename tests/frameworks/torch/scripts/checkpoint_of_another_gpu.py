import torch

torch.save(torch.ones(4, device="cuda:1"), "second.pt")
print(torch.load("second.pt", map_location={"cuda:1": "cuda:0"}).device, torch.load("second.pt").device)
