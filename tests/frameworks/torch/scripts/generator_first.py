import torch

generator = torch.Generator(device="cuda").manual_seed(7)
print(generator.device, torch.rand(3, device="cuda", generator=generator).device)
