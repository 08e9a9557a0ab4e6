import torch

for i in range(torch.cuda.device_count()):
    properties = torch.cuda.get_device_properties(i)
    print(i, properties.name, properties.total_memory, torch.cuda.get_device_capability(i))
print(torch.ones(3, device="cuda" if torch.cuda.is_available() else "cpu").device)
