import os

import torch
import torch.distributed as dist

rank = int(os.environ["LOCAL_RANK"])
dist.init_process_group("gloo")
device = torch.device("cpu")
if torch.cuda.is_available():
    torch.cuda.set_device(rank % torch.cuda.device_count())
    device = torch.device("cuda", torch.cuda.current_device())
model = torch.nn.Linear(8, 8).to(device)
named = [None, None]
dist.all_gather_object(named, str(next(model.parameters()).device))
if rank == 0:
    print(named, dist.get_world_size())
dist.destroy_process_group()
