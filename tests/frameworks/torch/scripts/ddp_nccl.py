import os

import torch
import torch.distributed as dist

rank = int(os.environ["LOCAL_RANK"])
dist.init_process_group("nccl")
torch.cuda.set_device(rank)
print(torch.nn.Linear(8, 8).cuda().weight.device.index == rank)
dist.destroy_process_group()
