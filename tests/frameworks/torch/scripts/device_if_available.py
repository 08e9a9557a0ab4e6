import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
x = torch.ones(64, 64, device=device)
print(x.device, (x @ x).device)
