import torch
from torch.utils.data import DataLoader, TensorDataset

if __name__ == "__main__":
    device = "cuda" if torch.cuda.is_available() else "cpu"
    data = TensorDataset(torch.ones(32, 4), torch.ones(32, 1))
    model = torch.nn.Linear(4, 1).to(device)
    devices = set()
    for x, y in DataLoader(data, batch_size=8, num_workers=2, pin_memory=device == "cuda"):
        loss = (model(x.to(device, non_blocking=True)) - y.to(device, non_blocking=True)).sum()
        loss.backward()
        devices.add((str(loss.device), x.is_pinned()))
    print(devices)
