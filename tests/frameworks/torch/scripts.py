"""PyTorch scripts as people write them, keyed by name."""

from tests.support.patterns import setting


def script(*lines: str, before: str = "") -> str:
    return "\n".join((f"{before}import torch", *lines, ""))


IF_AVAILABLE = "device = 'cuda' if torch.cuda.is_available() else 'cpu'"
ON_DEVICE = "print(torch.ones(3, device=device).device)"
ON_CUDA = "print(torch.ones(3).cuda().device)"
# The allocation is refused if the script may use only a quarter of 24 GiB.
SEVEN_GIB = (
    *("try:", "    torch.empty(7 << 30, dtype=torch.uint8, device='cuda')"),
    *("except torch.cuda.OutOfMemoryError:", "    print('out of memory')"),
)

DDP_GLOO = """
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
"""

DDP_NCCL = """
import os, sys
import torch
import torch.distributed as dist
rank = int(os.environ["LOCAL_RANK"])
dist.init_process_group("nccl")
torch.cuda.set_device(rank)
# Not print(): the launcher starts Python with -u, so two ranks could mix the text and the line end.
sys.stdout.write(f"{torch.nn.Linear(8, 8).cuda().weight.device.index == rank}\\n")
dist.destroy_process_group()
"""

FORK_AFTER_CUDA = """
import multiprocessing
import torch

def work(number):
    try:
        return str(torch.ones(3).cuda().device)
    except RuntimeError as error:
        return str(error).splitlines()[0]

if __name__ == "__main__":
    device = torch.ones(3).cuda().device
    with multiprocessing.get_context("fork").Pool(1) as pool:
        print(device, pool.map(work, range(1)))
"""

FORK_BEFORE_CUDA = """
import multiprocessing
import torch

def work(barrier, answers):
    barrier.wait()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    answers.put(str(torch.ones(3, device=device).device))
    barrier.wait()

if __name__ == "__main__":
    context = multiprocessing.get_context("fork")
    barrier, answers = context.Barrier(2), context.SimpleQueue()
    workers = [context.Process(target=work, args=(barrier, answers)) for _ in range(2)]
    for worker in workers:
        worker.start()
    print([answers.get() for _ in workers])
    for worker in workers:
        worker.join()
"""

VISIBLE_BY_NVML = """
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
import torch
device = "cuda" if torch.cuda.is_available() else "cpu"
print(os.environ.get("CUDA_VISIBLE_DEVICES"), torch.cuda.device_count(), torch.ones(3, device=device).device)
"""

SCRIPTS = {
    "accelerator": script(
        "available = torch.accelerator.is_available()",
        "device = torch.accelerator.current_accelerator() if available else torch.device('cpu')",
        "print(device, torch.accelerator.device_count(), torch.ones(3, device=device).device)",
    ),
    "allocator_fraction": script(
        *SEVEN_GIB, before=setting(PYTORCH_CUDA_ALLOC_CONF="per_process_memory_fraction:0.25")
    ),
    "allocator_settings": script(
        ON_CUDA, before=setting(PYTORCH_CUDA_ALLOC_CONF="max_split_size_mb:128,garbage_collection_threshold:0.8")
    ),
    "checkpoint_of_another_gpu": script(
        "torch.save(torch.ones(4, device='cuda:1'), 'second.pt')",
        "print(torch.load('second.pt', map_location={'cuda:1': 'cuda:0'}).device, torch.load('second.pt').device)",
    ),
    "cuda_method": script(
        "model, x = torch.nn.Linear(8, 8).cuda(), torch.ones(4, 8).cuda()",
        "print(model(x).device, x.get_device(), x.is_cuda)",
    ),
    "data_parallel": script(
        "model = torch.nn.DataParallel(torch.nn.Linear(8, 8).cuda())",
        "y = model(torch.ones(16, 8).cuda())",
        "print(model.device_ids, y.device, tuple(y.shape))",
    ),
    "ddp_gloo": DDP_GLOO,
    "ddp_nccl": DDP_NCCL,
    "default_device": script(
        "torch.set_default_device('cuda')", "print(torch.ones(3).device, torch.nn.Linear(2, 2).weight.device)"
    ),
    "device_context_1": script(
        "with torch.cuda.device(1):",
        "    print(torch.cuda.current_device(), torch.ones(3).cuda().device)",
        "print(torch.cuda.current_device())",
    ),
    "device_if_available": script(IF_AVAILABLE, "x = torch.ones(64, 64, device=device)", "print((x @ x).device)"),
    "fork_after_cuda": FORK_AFTER_CUDA,
    "fork_before_cuda": FORK_BEFORE_CUDA,
    "free_memory_of_all": script(
        "free = [torch.cuda.mem_get_info(i)[0] for i in range(torch.cuda.device_count())]",
        "device = torch.device('cuda', free.index(max(free))) if free else torch.device('cpu')",
        "print(len(free), torch.ones(3, device=device).device)",
    ),
    "legacy_tensor_type": script(
        "import warnings",
        "warnings.simplefilter('ignore')",
        "torch.set_default_tensor_type(torch.cuda.FloatTensor)",
        "print(torch.zeros(3).device)",
    ),
    "memory_fraction": script("torch.cuda.set_per_process_memory_fraction(0.25)", ON_CUDA, *SEVEN_GIB),
    "nvml_based_check": script(IF_AVAILABLE, ON_DEVICE, before=setting(PYTORCH_NVML_BASED_CUDA_CHECK="1")),
    "only_asks": script("print(torch.cuda.is_available(), torch.cuda.device_count(), torch.version.cuda is not None)"),
    "seeds": script(
        "torch.manual_seed(0)",
        "torch.cuda.manual_seed(0)",
        "torch.cuda.manual_seed_all(0)",
        "torch.backends.cudnn.deterministic = True",
        IF_AVAILABLE,
        ON_DEVICE,
    ),
    "set_device_1": script("torch.cuda.set_device(1)", "print(torch.cuda.current_device())", ON_CUDA),
    "tensor_on_each": script(
        "print([str(torch.ones(3, device=f'cuda:{i}').device) for i in range(torch.cuda.device_count())])"
    ),
    "towers_on_0_and_1": script(
        "first, second = torch.nn.Linear(8, 8).to('cuda:0'), torch.nn.Linear(8, 8).to('cuda:1')",
        "print(second(first(torch.ones(4, 8, device='cuda:0')).to('cuda:1')).device)",
    ),
    "visible_1_after_asking": script(IF_AVAILABLE, setting(CUDA_VISIBLE_DEVICES="1"), "print(device)", ON_DEVICE),
    "visible_2_3_before_import": script(
        IF_AVAILABLE,
        "print(os.environ['CUDA_VISIBLE_DEVICES'], torch.cuda.device_count())",
        ON_DEVICE,
        before=setting(CUDA_VISIBLE_DEVICES="2,3"),
    ),
    "visible_2_after_import": script(
        setting(CUDA_VISIBLE_DEVICES="2"),
        "print(os.environ['CUDA_VISIBLE_DEVICES'], torch.cuda.device_count())",
        ON_CUDA,
    ),
    "visible_argument_0": script(
        "import argparse",
        "parser = argparse.ArgumentParser()",
        "parser.add_argument('--gpu', default='0')",
        setting(CUDA_DEVICE_ORDER="PCI_BUS_ID"),
        "os.environ['CUDA_VISIBLE_DEVICES'] = parser.parse_args().gpu",
        IF_AVAILABLE,
        ON_DEVICE,
    ),
    "visible_by_nvml": VISIBLE_BY_NVML,
    "visible_minus_one_after_import": script(
        setting(CUDA_VISIBLE_DEVICES="-1"),
        "print(torch.cuda.is_available(), torch.cuda.device_count(), torch.ones(3).device)",
    ),
}
