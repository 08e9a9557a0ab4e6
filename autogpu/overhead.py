"""What a process takes on its GPUs beside what its framework allocates, as NVML shows it."""

from __future__ import annotations

import ctypes
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Mapping, Sequence

    from autogpu.devices.model import Inventory


def of_process(inventory: Inventory | None, uuids: Sequence[str], pid: int) -> Mapping[int, int]:
    """By CUDA ordinal, the bytes that ``pid`` takes.

    A GPU is missing where NVML does not tell: inside a container that has process ids of its own, on WSL2.
    """
    ordinals = {uuid: ordinal for ordinal, uuid in enumerate(uuids)}
    spent = {}
    for device in inventory.devices if inventory else ():
        mine = [process.memory_used_bytes for process in device.compute_processes or () if process.pid == pid]
        if device.uuid in ordinals and mine and mine[0]:
            spent[ordinals[device.uuid]] = mine[0]
    return spent


def measure(ordinals: Sequence[int], uuids: Sequence[str], read: Callable[[], Inventory | None]) -> Mapping[int, int]:
    """By CUDA ordinal, what this process takes with a context and nothing else; see :func:`of_process`.

    The context is made for the moment of the reading, just before the framework makes the same one with its own
    settings: a limit has to be known before there is a context. What libraries load later nobody can measure here.
    """
    try:
        cuda = ctypes.CDLL("libcuda.so.1", mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
    except OSError:
        return {}
    release = getattr(cuda, "cuDevicePrimaryCtxRelease_v2", None) or cuda.cuDevicePrimaryCtxRelease
    opened = []
    try:
        for ordinal in ordinals:
            device, context = ctypes.c_int(), ctypes.c_void_p()
            failed = cuda.cuDeviceGet(ctypes.byref(device), ordinal)
            if not failed and not cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device):
                opened.append(device)
        return of_process(read(), uuids, os.getpid()) if opened else {}
    finally:
        for device in opened:
            release(device)
