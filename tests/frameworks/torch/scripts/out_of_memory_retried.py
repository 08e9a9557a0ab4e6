import torch

size = 64 << 30
while True:
    try:
        x = torch.empty(size, dtype=torch.uint8, device="cuda")
        break
    except torch.cuda.OutOfMemoryError:
        torch.cuda.empty_cache()
        size //= 4
print(size >> 30, x.device)
