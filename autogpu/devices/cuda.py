"""Ask the CUDA driver that this process has loaded. Never initialises it here."""

from __future__ import annotations

import ctypes
import os
import sys
from contextlib import contextmanager
from typing import Any, Iterator, Mapping, Sequence

from autogpu.devices.model import CudaAttributes

_CUDA_SUCCESS = 0

# CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR of cuda.h.
_COMPUTE_CAPABILITY = (75, 76)

# NVML needs the first of these; CUDA also the second, which a container may lack and a tool makes on first use.
_CONTROL_FILE, _MEMORY_FILE = "/dev/nvidiactl", "/dev/nvidia-uvm"

# For a process in which CUDA may start.
_COUNT = """
import ctypes
cuda, count = ctypes.CDLL("libcuda.so.1"), ctypes.c_int()
if not cuda.cuInit(0) and not cuda.cuDeviceGetCount(ctypes.byref(count)):
    print(count.value)
"""
_COUNT_DEADLINE_S = 20.0

_library: ctypes.CDLL | None = None


def visible_uuids() -> tuple[str, ...] | None:
    """The UUIDs of the GPUs this process has, by CUDA ordinal; ``None`` while CUDA is not initialised.

    This is the driver's own reading of ``CUDA_VISIBLE_DEVICES`` and ``CUDA_DEVICE_ORDER``, so it is right where ours
    would be a guess. Source: ``cuDeviceGetCount``, ``cuDeviceGetUuid_v2`` (which also names MIG instances).
    """
    cuda = _loaded_library()
    devices = _devices(cuda)
    if cuda is None or devices is None:
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
    import subprocess  # few processes ask

    from autogpu.devices.probe import is_this_python

    if not is_this_python(sys.executable):
        return None
    command = [sys.executable, "-I", "-S", "-c", _COUNT]
    try:
        done = subprocess.run(
            command,
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=_COUNT_DEADLINE_S,
            check=False,
        )
        return int(done.stdout)
    except (OSError, ValueError, subprocess.SubprocessError):  # ValueError: it printed nothing
        return None


def can_run(version: tuple[int, int]) -> bool:
    """There is a driver that programs can use which are built for ``version`` of CUDA.

    It is loaded if nothing else has done so, and not initialised. Source: ``cuDriverGetVersion``; from CUDA 11 on the
    first number decides (docs.nvidia.com/deploy/cuda-compatibility, minor version compatibility).
    """
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    number = ctypes.c_int()
    if cuda.cuDriverGetVersion(ctypes.byref(number)) != _CUDA_SUCCESS or not _can_open(_MEMORY_FILE):
        return False
    major, minor = number.value // 1000, number.value % 1000 // 10
    return (major, minor) >= version or (major == version[0] and major >= 11)


def _can_open(path: str) -> bool:
    """A file of the driver is there for this process; true where the driver has other files, as on WSL2."""
    return os.access(path, os.R_OK | os.W_OK) or not os.access(_CONTROL_FILE, os.F_OK)


def ordinals_in_use() -> tuple[int, ...]:
    """The CUDA ordinals on which this process has a context. Source: ``cuDevicePrimaryCtxGetState``."""
    cuda: Any = _loaded_library()
    in_use = []
    for ordinal, device in enumerate(_devices(cuda) or ()):
        flags, active = ctypes.c_uint(), ctypes.c_int()
        cuda.cuDevicePrimaryCtxGetState(device, ctypes.byref(flags), ctypes.byref(active))
        if active.value:
            in_use.append(ordinal)
    return tuple(in_use)


def attributes() -> tuple[CudaAttributes, ...] | None:
    """The attributes of this process's GPUs, by CUDA ordinal; ``None`` if the driver does not tell."""
    cuda: Any = _loaded_library()
    devices = _devices(cuda)
    if devices is None:
        return None
    found = []
    for device in devices:
        name, bus = ctypes.create_string_buffer(256), ctypes.create_string_buffer(32)
        version = ctypes.c_int(), ctypes.c_int()
        failures = [cuda.cuDeviceGetName(name, len(name), device), cuda.cuDeviceGetPCIBusId(bus, len(bus), device)]
        for number, attribute in zip(version, _COMPUTE_CAPABILITY):
            failures.append(cuda.cuDeviceGetAttribute(ctypes.byref(number), attribute, device))
        if any(failures):
            return None
        capability = ".".join(str(number.value) for number in version)
        found.append(CudaAttributes(name.value.decode(errors="replace"), capability, bus.value.decode().lower()))
    return tuple(found)


@contextmanager
def primary_contexts(ordinals: Sequence[int]) -> Iterator[None]:
    """Hold the primary contexts of some GPUs, so that a reading taken meanwhile shows what a context costs.

    A framework makes the same contexts a moment later. A context that can't be made is left out.
    """
    cuda = _loaded_library()
    if cuda is None:
        yield
        return
    release = getattr(cuda, "cuDevicePrimaryCtxRelease_v2", None) or cuda.cuDevicePrimaryCtxRelease
    retained = []
    try:
        for ordinal in ordinals:
            device, context = ctypes.c_int(), ctypes.c_void_p()
            if cuda.cuDeviceGet(ctypes.byref(device), ordinal) != _CUDA_SUCCESS:
                continue
            if cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) == _CUDA_SUCCESS:
                retained.append(device)
        yield
    finally:
        for device in retained:
            release(device)


def _devices(cuda: ctypes.CDLL | None) -> list[ctypes.c_int] | None:
    """A handle for each of the process's GPUs; ``None`` while CUDA is not initialised."""
    count = ctypes.c_int()
    # Before cuInit the driver answers CUDA_ERROR_NOT_INITIALIZED to everything and changes nothing.
    if cuda is None or cuda.cuDeviceGetCount(ctypes.byref(count)) != _CUDA_SUCCESS:
        return None
    devices = [ctypes.c_int() for _ in range(count.value)]
    if any(cuda.cuDeviceGet(ctypes.byref(device), ordinal) for ordinal, device in enumerate(devices)):
        return None
    return devices


def _loaded_library() -> ctypes.CDLL | None:
    global _library
    if _library is None and sys.platform.startswith("linux"):
        try:
            _library = ctypes.CDLL("libcuda.so.1", mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
        except (OSError, AttributeError):
            return None
    return _library


def _uuid_text(raw: bytes) -> str:
    text = raw.hex()
    return f"GPU-{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
