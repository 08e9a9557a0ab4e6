import torch

device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
model = torch.nn.Linear(8, 8).to(device)
print(next(model.parameters()).device)
