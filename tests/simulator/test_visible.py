"""CUDA's list of the simulated GPUs, for each form of CUDA_VISIBLE_DEVICES."""

from tests.gpusim import Gpu
from tests.support.simulator_client import PCI, seen_by_cuda

UUIDS = [
    "GPU-aaaa0000-1111-2222-3333-444444444444",
    "GPU-bbbb0000-1111-2222-3333-444444444444",
    "GPU-bbbb1111-1111-2222-3333-444444444444",
    "GPU-cccc0000-1111-2222-3333-444444444444",
]
FOUR = [
    Gpu(uuid=UUIDS[0], compute_capability="6.1", multiprocessors=28),
    Gpu(uuid=UUIDS[1], compute_capability="7.5", multiprocessors=46),
    Gpu(uuid=UUIDS[2], compute_capability="7.5", multiprocessors=72),
    Gpu(uuid=UUIDS[3], compute_capability="6.1", multiprocessors=20),
]

# Keyed by rule: a value of CUDA_VISIBLE_DEVICES, and CUDA's devices as positions in PCI order.
VISIBLE = {
    "empty hides all": ("", []),
    "order of the list": ("2,1", [2, 1]),
    "minus one": ("-1", []),
    "invalid entry first": ("-1,0", []),
    "invalid entry ends": ("0,2,-1,1", [0, 2]),
    "out of range ends": ("0,9,1", [0]),
    "empty entry ends": ("0,,1", [0]),
    "trailing comma": ("0,", [0]),
    "twice hides all": ("1,1", []),
    "twice later hides all": ("0,1,0", []),
    "list ends before the duplicate": ("0,9,0", [0]),
    "not a number": ("NoDevFiles", []),
    "not a number later": ("0,NoDevFiles,1", [0]),
    "read like strtol": ("1gpu2,2ampere", [1, 2]),
    "spaces": (" 3 , 0 ", [3, 0]),
    "plus sign": ("+1", [1]),
    "uuids": (f"{UUIDS[3]},{UUIDS[0]}", [3, 0]),
    "spaces behind uuids": ("GPU-c ,GPU-a ", [3, 0]),
    "unique prefix": ("GPU-c,GPU-a", [3, 0]),
    "longer prefix": ("GPU-bbbb1", [2]),
    "ambiguous prefix": ("GPU-b", []),
    "ambiguous prefix ends": ("GPU-a,GPU-b,GPU-c", [0]),
    "twice by prefix hides all": ("GPU-a,GPU-aaaa", []),
    "unknown uuid": ("GPU-dddd", []),
    "index, then uuid": ("0,GPU-c", [0]),
    "uuid, then index": ("GPU-c,0", [3]),
    "MIG name without MIG": ("MIG-GPU-aaaa0000/0/0", []),
}


def positions(server, environs):
    uuids = [gpu.uuid for gpu in server.gpus]
    return [[uuids.index(each) for each in seen] for seen in seen_by_cuda(server, environs)]


def test_gpu_list_of_each_form_is_read_as_cuda_reads_it(server_of):
    environs = [{"CUDA_VISIBLE_DEVICES": value, **PCI} for value, _ in VISIBLE.values()]
    seen = positions(server_of(*FOUR), environs)
    assert dict(zip(VISIBLE, seen)) == {rule: expected for rule, (_, expected) in VISIBLE.items()}
