import torch

torch.save({"weight": torch.ones(4)}, "cpu.pt")
device = "cuda" if torch.cuda.is_available() else "cpu"
print(torch.load("cpu.pt", map_location=device)["weight"].device)
torch.save({"weight": torch.ones(4, device=device)}, "device.pt")
print(torch.load("device.pt")["weight"].device, torch.load("device.pt", map_location="cpu")["weight"].device)
