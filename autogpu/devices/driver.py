"""Ask the CUDA driver that this process has already loaded; never load or initialise it."""

from __future__ import annotations

import ctypes
import os
import sys

_CUDA_SUCCESS = 0


def visible_uuids() -> tuple[str, ...] | None:
    """The UUIDs of the GPUs this process has, by CUDA ordinal; ``None`` while CUDA is not initialised.

    This is the driver's own reading of ``CUDA_VISIBLE_DEVICES`` and ``CUDA_DEVICE_ORDER``, so it is right where ours
    would be a guess. Source: ``cuDeviceGetCount``, ``cuDeviceGetUuid_v2`` (which also names MIG instances).
    """
    cuda = _loaded_driver()
    if cuda is None:
        return None
    count = ctypes.c_int()
    # Before cuInit the driver answers CUDA_ERROR_NOT_INITIALIZED to everything and changes nothing.
    if cuda.cuDeviceGetCount(ctypes.byref(count)) != _CUDA_SUCCESS:
        return None
    get_uuid = getattr(cuda, "cuDeviceGetUuid_v2", None) or cuda.cuDeviceGetUuid
    uuids = []
    for ordinal in range(count.value):
        device = ctypes.c_int()
        raw = (ctypes.c_ubyte * 16)()
        if cuda.cuDeviceGet(ctypes.byref(device), ordinal) or get_uuid(ctypes.byref(raw), device):
            return None
        uuids.append(_format(bytes(raw)))
    return tuple(uuids)


def _loaded_driver() -> ctypes.CDLL | None:
    if not sys.platform.startswith("linux"):
        return None
    try:
        return ctypes.CDLL("libcuda.so.1", mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
    except (OSError, AttributeError):
        return None


def _format(raw: bytes) -> str:
    text = raw.hex()
    return f"GPU-{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
