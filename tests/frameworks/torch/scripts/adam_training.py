import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1)).to(device)
optimizer = torch.optim.Adam(model.parameters())
for _ in range(3):
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(model(torch.randn(16, 32, device=device)), torch.ones(16, 1, device=device))
    loss.backward()
    optimizer.step()
print(loss.device, {str(state["exp_avg"].device) for state in optimizer.state.values()})
