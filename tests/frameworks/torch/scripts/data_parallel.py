import torch

model = torch.nn.DataParallel(torch.nn.Linear(8, 8).cuda())
y = model(torch.ones(16, 8).cuda())
print(model.device_ids, y.device, tuple(y.shape))
