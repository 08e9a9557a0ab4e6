"""Ask the CUDA driver that this process has loaded. Never initialises it here."""

from __future__ import annotations

import ctypes
import os
import sys
from contextlib import contextmanager
from typing import Any, Iterator, Mapping, Sequence

from autogpu.devices.model import CudaAttributes
from autogpu.process import ask

_CUDA_SUCCESS = 0

# CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR of cuda.h.
_COMPUTE_CAPABILITY = (75, 76)

# NVML needs the first of these; CUDA also the second, which a container may lack and a tool makes on first use.
_CONTROL_FILE, _MEMORY_FILE = "/dev/nvidiactl", "/dev/nvidia-uvm"

# Counts the GPUs, or says why not, in a process in which CUDA may start, and which the driver may crash.
START = """
import ctypes
try:
    cuda, count, why = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(), ctypes.c_char_p()
except OSError as error:
    raise SystemExit(str(error))
code = cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count))
if code:
    cuda.cuGetErrorString(code, ctypes.byref(why))
    raise SystemExit("cuInit fails with %d: %s" % (code, (why.value or b"unknown").decode()))
print("\\n%d" % count.value)
"""
START_DEADLINE_S = 20.0


def visible_uuids() -> tuple[str, ...] | None:
    """The UUIDs of the GPUs this process has, by CUDA ordinal; ``None`` while CUDA is not initialised.

    This is the driver's own reading of ``CUDA_VISIBLE_DEVICES`` and ``CUDA_DEVICE_ORDER``, so it is right where ours
    would be a guess. Source: ``cuDeviceGetCount``, ``cuDeviceGetUuid_v2`` (which also names MIG instances).
    """
    cuda, devices = _loaded()
    if devices is None:
        return None
    get_uuid = getattr(cuda, "cuDeviceGetUuid_v2", None) or cuda.cuDeviceGetUuid
    uuids = []
    for device in devices:
        raw = (ctypes.c_ubyte * 16)()
        if get_uuid(ctypes.byref(raw), device) != _CUDA_SUCCESS:
            return None
        uuids.append(_uuid_text(bytes(raw)))
    return tuple(uuids)


def count_elsewhere(environ: Mapping[str, str]) -> int | None:
    """Count the GPUs by CUDA in a process of its own; ``None`` where it does not start there, or none can be asked.

    A driver that NVML can read may refuse ``cuInit`` all the same: without a fabric manager, or after a suspend.
    """
    from autogpu.devices.probe import is_this_python  # few processes ask

    if not is_this_python(sys.executable):
        return None
    count, _, _ = ask(sys.executable, START, environ, START_DEADLINE_S, options=("-I", "-S"))
    return None if count is None else int(count)


def can_run(version: tuple[int, int]) -> bool:
    """There is a driver that programs can use which are built for ``version`` of CUDA.

    It is loaded if nothing else has done so, and not initialised. Source: ``cuDriverGetVersion``; from CUDA 11 on the
    first number decides (docs.nvidia.com/deploy/cuda-compatibility, minor version compatibility).
    """
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    number = _written_by(cuda.cuDriverGetVersion)
    # Where the driver has other files, as on WSL2, these are not asked for.
    is_open = os.access(_MEMORY_FILE, os.R_OK | os.W_OK) or not os.access(_CONTROL_FILE, os.F_OK)
    if number is None or not is_open:
        return False
    major, minor = number // 1000, number % 1000 // 10
    return (major, minor) >= version or (major == version[0] and major >= 11)


def ordinals_in_use() -> tuple[int, ...]:
    """The CUDA ordinals on which this process has a context. Source: ``cuDevicePrimaryCtxGetState``."""
    cuda, devices = _loaded()
    in_use = []
    for ordinal, device in enumerate(devices or ()):
        flags, active = ctypes.c_uint(), ctypes.c_int()
        cuda.cuDevicePrimaryCtxGetState(device, ctypes.byref(flags), ctypes.byref(active))
        if active.value:
            in_use.append(ordinal)
    return tuple(in_use)


def attributes() -> tuple[CudaAttributes, ...] | None:
    """The attributes of this process's GPUs, by CUDA ordinal; ``None`` if the driver does not tell."""
    cuda, devices = _loaded()
    if devices is None:
        return None
    found = []
    for device in devices:
        name, bus = ctypes.create_string_buffer(256), ctypes.create_string_buffer(32)
        failures = [cuda.cuDeviceGetName(name, len(name), device), cuda.cuDeviceGetPCIBusId(bus, len(bus), device)]
        capability = [_written_by(cuda.cuDeviceGetAttribute, each, device) for each in _COMPUTE_CAPABILITY]
        if any(failures) or None in capability:
            return None
        version = ".".join(map(str, capability))
        found.append(CudaAttributes(name.value.decode(errors="replace"), version, bus.value.decode().lower()))
    return tuple(found)


@contextmanager
def primary_contexts(ordinals: Sequence[int]) -> Iterator[None]:
    """Hold the primary contexts of some GPUs, so that a reading taken meanwhile shows what a context costs.

    A framework makes the same contexts a moment later. A context that can't be made is left out.
    """
    cuda, _ = _loaded()
    retained = []
    try:
        for ordinal in ordinals if cuda is not None else ():
            device = _written_by(cuda.cuDeviceGet, ordinal)
            if device is not None and _written_by(cuda.cuDevicePrimaryCtxRetain, device, kind=ctypes.c_void_p):
                retained.append(device)
        yield
    finally:
        for device in retained:
            (getattr(cuda, "cuDevicePrimaryCtxRelease_v2", None) or cuda.cuDevicePrimaryCtxRelease)(device)


def _loaded() -> tuple[Any, list[int] | None]:
    """The driver, and a handle for each of the process's GPUs; ``None`` for these while CUDA is not initialised."""
    try:
        cuda: Any = ctypes.CDLL("libcuda.so.1", mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
    except (OSError, AttributeError):  # AttributeError: Windows
        return None, None
    # Before cuInit the driver answers CUDA_ERROR_NOT_INITIALIZED to everything and changes nothing.
    count = _written_by(cuda.cuDeviceGetCount)
    devices = [_written_by(cuda.cuDeviceGet, ordinal) for ordinal in range(count or 0)]
    return cuda, None if count is None or None in devices else devices


def _written_by(function: Any, *arguments: int, kind: Any = ctypes.c_int) -> Any:
    """Call a function that writes its answer to its first argument, and return that; ``None`` where it fails."""
    value = kind()
    return value.value if function(ctypes.byref(value), *arguments) == _CUDA_SUCCESS else None


def _uuid_text(raw: bytes) -> str:
    text = raw.hex()
    return f"GPU-{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
