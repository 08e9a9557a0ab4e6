"""A small framework that allocates memory on the given GPUs, or on all GPUs that it sees."""

from __future__ import annotations

import ctypes

cuda = ctypes.CDLL("libcuda.so.1")


class OutOfMemoryError(RuntimeError):
    """A GPU has too little free memory."""


def gpu_count() -> int:
    count = ctypes.c_int()
    # CUDA finds no device if the job was granted no GPU.
    return 0 if cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count)) else count.value


def take(size, ordinals=None, limits=None, *, more=0) -> list[int]:
    """Allocate ``size`` bytes, or the limit if that is less, on each GPU; return the ordinals.

    A request for ``more`` bytes always fails.
    """
    ordinals = list(range(gpu_count())) if ordinals is None else list(ordinals)
    for ordinal in ordinals:
        device, context, address = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
        assert not cuda.cuDeviceGet(ctypes.byref(device), ordinal)
        assert not cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
        assert not cuda.cuCtxSetCurrent(context)
        least = min(size, (limits or {}).get(ordinal, size))
        assert not cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(least)), f"no {least} bytes"
        if more:
            raise OutOfMemoryError(f"no {more} bytes on GPU {ordinal}")
    return ordinals
