import torch

x = torch.ones(3, requires_grad=True)
(x * 2).sum().backward()
y = torch.ones(3, device="cuda", requires_grad=True)
(y * 2).sum().backward()
print(x.grad.device, y.grad.device)
