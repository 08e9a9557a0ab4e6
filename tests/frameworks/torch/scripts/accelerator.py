import torch

device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else torch.device("cpu")
print(device, torch.accelerator.device_count(), torch.ones(3, device=device).device)
