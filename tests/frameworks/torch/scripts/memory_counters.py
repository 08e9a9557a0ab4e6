import torch

x = torch.empty(4 << 20, dtype=torch.uint8, device="cuda")
print(torch.cuda.memory_allocated(), torch.cuda.memory_reserved(), torch.cuda.max_memory_allocated())
del x
torch.cuda.empty_cache()
torch.cuda.reset_peak_memory_stats()
print(torch.cuda.memory_allocated(), torch.cuda.memory_reserved(), torch.cuda.get_device_name(0))
