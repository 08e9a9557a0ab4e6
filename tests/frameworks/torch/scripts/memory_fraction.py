import torch

torch.cuda.set_per_process_memory_fraction(0.25)
x = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
try:
    torch.empty(7 << 30, dtype=torch.uint8, device="cuda")
except torch.cuda.OutOfMemoryError:
    print("out of memory", x.device)
