import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.jit.trace(torch.nn.Linear(4, 4), torch.ones(1, 4)).save("model.pt")
model = torch.jit.load("model.pt", map_location=device)
print({str(parameter.device) for parameter in model.parameters()})
