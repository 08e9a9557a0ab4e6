import torch

free = [torch.cuda.mem_get_info(i)[0] for i in range(torch.cuda.device_count())]
device = torch.device("cuda", free.index(max(free))) if free else torch.device("cpu")
print(len(free), torch.ones(3, device=device).device)
