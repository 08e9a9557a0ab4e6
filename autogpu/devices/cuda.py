"""Queries to the CUDA driver that this process has loaded. Only :func:`begin_use` initialises the driver."""

from __future__ import annotations

import ctypes
import os
import sys
from contextlib import contextmanager
from typing import Any, Iterator, Mapping, Sequence

from autogpu.devices.model import CudaAttributes, CudaProperties
from autogpu.errors import raise_if_from_script

_CUDA_SUCCESS = 0

# The driver allocates memory in pages of this size.
_LEAST_ALLOCATION_BYTES = 2 << 20

# CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR of cuda.h.
_COMPUTE_CAPABILITY = (75, 76)

# A program that prints the number of GPUs, the version of CUDA and the properties of each GPU, or why CUDA fails to
# start. It runs in its own process because the driver may crash. 75, 76 and 16 are the values of
# CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, _COMPUTE_CAPABILITY_MINOR and _MULTIPROCESSOR_COUNT in cuda.h.
START = """
import ctypes, json
try:
    cuda, count, version, why = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(), ctypes.c_int(), ctypes.c_char_p()
except OSError as error:
    raise SystemExit(str(error))
code = cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count))
if code:
    cuda.cuGetErrorString(code, ctypes.byref(why))
    raise SystemExit("cuInit fails with %d: %s" % (code, (why.value or b"unknown").decode()))
cuda.cuDriverGetVersion(ctypes.byref(version))
gpus = []
for device in range(count.value):
    name, total, numbers = ctypes.create_string_buffer(256), ctypes.c_size_t(), []
    cuda.cuDeviceGetName(name, len(name), device)
    cuda.cuDeviceTotalMem_v2(ctypes.byref(total), device)
    for attribute in (75, 76, 16):
        number = ctypes.c_int()
        cuda.cuDeviceGetAttribute(ctypes.byref(number), attribute, device)
        numbers.append(number.value)
    gpus.append([name.value.decode(errors="replace"), total.value] + numbers)
print()
print(json.dumps([count.value, version.value, gpus]))
"""
START_DEADLINE_S = 20.0


def visible_uuids() -> tuple[str, ...] | None:
    """Return the UUIDs of this process's GPUs, in the order of CUDA ordinals; ``None`` while CUDA is not initialised.

    The driver has applied ``CUDA_VISIBLE_DEVICES`` and ``CUDA_DEVICE_ORDER`` itself, so the result is right even if
    autogpu could only guess it. Source: ``cuDeviceGetCount``, ``cuDeviceGetUuid_v2`` (also for MIG instances).
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


def gpus_elsewhere(environ: Mapping[str, str], built_for: tuple[int, int]) -> tuple[CudaProperties, ...] | None:
    """Start CUDA in another process and return its GPUs.

    Return ``()`` if CUDA does not start there or is older than ``built_for``, and ``None`` if no process can be
    started. CUDA can fail although NVML works: ``cuInit`` fails without a fabric manager, or after a suspend.

    Args:
        built_for: The version of CUDA, as (major, minor), that the framework was built for. From CUDA 11 on, a driver
            of the same major version is new enough (docs.nvidia.com/deploy/cuda-compatibility, minor version
            compatibility). Source of the driver's version: ``cuDriverGetVersion``.
    """
    from autogpu.devices.probe import is_this_python, reaps_children  # imported late, because few processes need it

    if not is_this_python(sys.executable) or reaps_children():
        return None
    from autogpu.snippet import run_snippet  # imported late for the same reason

    answer = run_snippet(sys.executable, START, environ, START_DEADLINE_S, options=("-I", "-S"))
    if answer.value is None:
        return ()
    _, number, gpus = answer.value
    version = number // 1000, number % 1000 // 10
    is_new_enough = version >= built_for or version[0] == built_for[0] >= 11
    return tuple(CudaProperties(*gpu) for gpu in gpus) if is_new_enough else ()


def ordinals_in_use() -> tuple[int, ...]:
    """Return the CUDA ordinals on which this process has a context. Source: ``cuDevicePrimaryCtxGetState``."""
    cuda, devices = _loaded()
    in_use = []
    for ordinal, device in enumerate(devices or ()):
        flags = ctypes.c_uint()
        active = ctypes.c_int()
        cuda.cuDevicePrimaryCtxGetState(device, ctypes.byref(flags), ctypes.byref(active))
        if active.value:
            in_use.append(ordinal)
    return tuple(in_use)


def attributes() -> tuple[CudaAttributes, ...] | None:
    """Return the attributes of this process's GPUs, in the order of CUDA ordinals; ``None`` if a call fails."""
    cuda, devices = _loaded()
    if devices is None:
        return None
    found = []
    for device in devices:
        name = ctypes.create_string_buffer(256)
        bus = ctypes.create_string_buffer(32)
        failures = [cuda.cuDeviceGetName(name, len(name), device), cuda.cuDeviceGetPCIBusId(bus, len(bus), device)]
        capability = [_written_by(cuda.cuDeviceGetAttribute, each, device) for each in _COMPUTE_CAPABILITY]
        if any(failures) or None in capability:
            return None
        version = ".".join(map(str, capability))
        found.append(CudaAttributes(name.value.decode(errors="replace"), version, bus.value.decode().lower()))
    return tuple(found)


@contextmanager
def primary_contexts(ordinals: Sequence[int]) -> Iterator[None]:
    """Hold the primary contexts of some GPUs, so that a reading in the meantime includes the memory of a context.

    A framework makes the same contexts a moment later. A context that can't be made is left out.
    """
    cuda, _ = _loaded()
    retained = {} if cuda is None else _retain_primary_contexts(cuda, ordinals)
    try:
        yield
    finally:
        for device in retained:
            (getattr(cuda, "cuDevicePrimaryCtxRelease_v2", None) or cuda.cuDevicePrimaryCtxRelease)(device)


def begin_use(ordinals: Sequence[int]) -> None:
    """Make the primary contexts of some GPUs, allocate a little memory in each, and keep both until this process ends.

    Call this before a framework makes contexts on these GPUs and on others. Because of the memory, this process uses
    more on these GPUs than on the others, so other jobs recognise its contexts on the others as idle
    (``Process.is_bare``).
    """
    try:
        cuda: Any = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise_if_from_script(error)
        return  # the framework reports the missing driver
    cuda.cuInit(0)
    for context in _retain_primary_contexts(cuda, ordinals).values():
        if cuda.cuCtxPushCurrent_v2(ctypes.c_void_p(context)) == _CUDA_SUCCESS:
            _written_by(cuda.cuMemAlloc_v2, ctypes.c_size_t(_LEAST_ALLOCATION_BYTES), kind=ctypes.c_void_p)
            _written_by(cuda.cuCtxPopCurrent_v2, kind=ctypes.c_void_p)


def _retain_primary_contexts(cuda: Any, ordinals: Sequence[int]) -> dict[int, int]:
    """Return the primary contexts that could be made, keyed by CUDA's handle of the GPU."""
    contexts = {}
    for ordinal in ordinals:
        device = _written_by(cuda.cuDeviceGet, ordinal)
        context = None if device is None else _written_by(cuda.cuDevicePrimaryCtxRetain, device, kind=ctypes.c_void_p)
        if context:
            contexts[device] = context
    return contexts


def _loaded() -> tuple[Any, list[int] | None]:
    """Return the driver, and a handle for each of this process's GPUs.

    The driver is ``None`` if it is not loaded. The handles are ``None`` while CUDA is not initialised.
    """
    try:
        cuda: Any = ctypes.CDLL("libcuda.so.1", mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
    except (OSError, AttributeError) as error:  # AttributeError: Windows has no RTLD_NOLOAD
        raise_if_from_script(error)
        return None, None
    # Before cuInit, every call returns CUDA_ERROR_NOT_INITIALIZED and changes nothing.
    count = _written_by(cuda.cuDeviceGetCount)
    devices = [_written_by(cuda.cuDeviceGet, ordinal) for ordinal in range(count or 0)]
    return cuda, None if count is None or None in devices else devices


def _written_by(function: Any, *arguments: Any, kind: Any = ctypes.c_int) -> Any:
    """Call a function that writes its result to its first argument. Return the result; ``None`` if the call fails."""
    value = kind()
    return value.value if function(ctypes.byref(value), *arguments) == _CUDA_SUCCESS else None


def _uuid_text(raw: bytes) -> str:
    text = raw.hex()
    return f"GPU-{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
