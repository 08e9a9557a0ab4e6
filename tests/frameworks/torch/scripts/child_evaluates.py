import subprocess
import sys

import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
x = torch.ones(3, device=device)
child = f"import torch; print(torch.ones(3, device={device!r}).device)"
print(x.device, subprocess.run([sys.executable, "-c", child], capture_output=True, text=True, check=True).stdout)
