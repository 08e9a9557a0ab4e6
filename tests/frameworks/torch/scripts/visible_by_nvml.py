import os

import pynvml

try:
    pynvml.nvmlInit()
    count = pynvml.nvmlDeviceGetCount()
except pynvml.NVMLError:
    count = 0
free = [pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(i)).free for i in range(count)]
if free:
    os.environ["CUDA_VISIBLE_DEVICES"] = str(free.index(max(free)))
import torch  # noqa: E402

device = "cuda" if torch.cuda.is_available() else "cpu"
print(os.environ.get("CUDA_VISIBLE_DEVICES"), torch.cuda.device_count(), torch.ones(3, device=device).device)
