import torch

model = torch.nn.Linear(8, 8).cuda()
x = torch.ones(4, 8).cuda()
print(model(x).device, x.get_device(), x.is_cuda)
