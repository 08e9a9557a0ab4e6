import torch

torch.cuda.set_device(1)
print(torch.cuda.current_device(), torch.ones(3).cuda().device)
