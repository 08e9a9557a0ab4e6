import torch

with torch.cuda.device(1):
    print(torch.cuda.current_device(), torch.ones(3).cuda().device)
print(torch.cuda.current_device())
