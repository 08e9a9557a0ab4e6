import os

os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "per_process_memory_fraction:0.25"
import torch

try:
    torch.empty(7 << 30, dtype=torch.uint8, device="cuda")
except torch.cuda.OutOfMemoryError:
    print("out of memory")
