import torch

print([str(torch.ones(3, device=f"cuda:{i}").device) for i in range(torch.cuda.device_count())])
