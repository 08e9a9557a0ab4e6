import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
model = torch.nn.Linear(8, 8).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler(device, enabled=device == "cuda")
with torch.autocast(device, dtype=torch.bfloat16):
    loss = model(torch.ones(4, 8, device=device)).sum()
scaler.scale(loss).backward()
scaler.step(optimizer)
scaler.update()
print(loss.device)
