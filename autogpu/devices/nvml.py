"""Read every GPU through NVML, as plain lists and dictionaries. The only file that loads libnvidia-ml.

At the import of a framework :func:`main` runs as a program of its own: a driver that hangs or crashes then takes that
process along and not a training job. The file therefore imports nothing of autogpu, and as little as can be.

NVML is called by ctypes, for ``nvidia-ml-py`` declares the whole library at its import, which takes two thirds of the
time that the program would need. Structures and numbers are those of the NVML API reference; a test holds the readings
against that package's.
"""

from __future__ import annotations

import ctypes
import threading
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Mapping, Sequence

# "Idle" is judged over this span of the driver's sample buffer: a job between two batches shows 0 % for a moment.
UTILIZATION_SPAN_S = 10.0

# A GPU that answers at all answers in milliseconds; one that has fallen off the bus can block a call for ever, and
# must not take the readings of the others along.
DEVICE_DEADLINE_S = 3.0

# Nobody waits longer for a reading; as a program of its own this ends then, whatever the driver does.
LIFETIME_S = 20.0

LIBRARY = "libnvidia-ml.so.1"

# nvmlReturn_t
_INSUFFICIENT_SIZE = 7
_DRIVER_NOT_LOADED = 9
_LIBRARY_NOT_FOUND = 12
_FUNCTION_NOT_FOUND = 13
_GPU_IS_LOST = 15
_UNKNOWN = 999

_GPU_UTILIZATION_SAMPLES = 1  # nvmlSamplingType_t
_NOT_AVAILABLE = (1 << 64) - 1  # NVML_VALUE_NOT_AVAILABLE
_LONGEST_TEXT = 96  # NVML_DEVICE_UUID_V2_BUFFER_SIZE, the longest of those asked for
_COMPUTE_MODES = ("default", "exclusive_thread", "prohibited", "exclusive_process")  # nvmlComputeMode_t
_PROCESSES_AT_FIRST = 32


class NvmlError(Exception):
    """NVML said no: ``code`` is its ``nvmlReturn_t``."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class _Pci(ctypes.Structure):
    _fields_ = (
        ("bus_id_legacy", ctypes.c_char * 16),
        ("numbers", ctypes.c_uint * 5),
        ("bus_id", ctypes.c_char * 32),
    )


class _Sample(ctypes.Structure):
    # The value is a union of eight bytes; utilization is an unsigned int in it.
    _fields_ = (("time_us", ctypes.c_ulonglong), ("value", ctypes.c_uint), ("rest", ctypes.c_uint))


class _Process(ctypes.Structure):
    _fields_ = (
        ("pid", ctypes.c_uint),
        ("used_bytes", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


class _ProcessV1(ctypes.Structure):
    _fields_ = (("pid", ctypes.c_uint), ("used_bytes", ctypes.c_ulonglong))


class _Nvml:
    """The library, started."""

    def __init__(self) -> None:
        try:
            self._library = ctypes.CDLL(LIBRARY)
        except OSError as error:
            is_absent = "No such file" in str(error)
            raise NvmlError(_LIBRARY_NOT_FOUND if is_absent else _UNKNOWN, str(error)) from None
        self._library.nvmlErrorString.restype = ctypes.c_char_p
        self.call("nvmlInit_v2")

    def call(self, name: str, *arguments: Any) -> None:
        function = getattr(self._library, name, None)
        if function is None:
            raise NvmlError(_FUNCTION_NOT_FOUND, f"this driver has no {name}")
        code = function(*arguments)
        if code:
            text = self._library.nvmlErrorString(code)
            raise NvmlError(code, text.decode(errors="replace") if text else f"error {code}")

    def filled(self, structure: Any, name: str, gpu: Any) -> Any:
        self.call(name, gpu, ctypes.byref(structure))
        return structure

    def text(self, name: str, *handle: Any) -> str:
        buffer = ctypes.create_string_buffer(_LONGEST_TEXT)
        self.call(name, *handle, buffer, ctypes.c_uint(_LONGEST_TEXT))
        return buffer.value.decode(errors="replace")

    def number(self, name: str, *handle: Any) -> int:
        number = ctypes.c_uint()
        self.call(name, *handle, ctypes.byref(number))
        return number.value


def read(known_unreadable: Mapping[int, str] | None = None) -> dict[str, Any]:
    """Everything :class:`autogpu.devices.model.Inventory` holds, in built-in types. Never raises.

    Args:
        known_unreadable: By index, why a GPU could not be read before; these are not touched again. Where it is given
            the GPUs have answered before and are asked one after the other, which is five times faster: handing the
            interpreter from thread to thread takes longer than the calls. ``None``: one that hangs holds up nobody.
    """
    reading: dict[str, Any] = {
        "devices": [],
        "unreadable": [],
        "driver_version": None,
        "failure": None,
        "is_driverless": False,
    }
    try:
        nvml = _Nvml()
        reading["driver_version"] = _or_none(lambda: nvml.text("nvmlSystemGetDriverVersion"))
        count = nvml.number("nvmlDeviceGetCount_v2")
    except NvmlError as error:
        reading["failure"] = f"NVML says: {error}"
        # An absent driver is a machine without GPU, not a fault.
        reading["is_driverless"] = error.code in (_DRIVER_NOT_LOADED, _LIBRARY_NOT_FOUND)
        return reading
    if known_unreadable is None:
        answers = _ask_all_at_once(nvml, range(count))
    else:
        answers = {index: known_unreadable.get(index) or _answer(nvml, index) for index in range(count)}
    if len(answers) == count:  # else somebody is still inside the library
        nvml.call("nvmlShutdown")
    for index in range(count):
        answer = answers.get(index, "it does not answer")
        if isinstance(answer, str):
            reading["unreadable"].append({"index": index, "reason": answer})
        else:
            reading["devices"].append(answer)
    return reading


def _ask_all_at_once(nvml: _Nvml, indices: Sequence[int]) -> dict[int, Any]:
    """By index, what each says; a GPU that does not answer is missing."""
    answers: dict[int, Any] = {}

    def ask(index: int) -> None:
        answers[index] = _answer(nvml, index)

    threads = [threading.Thread(target=ask, args=(index,), daemon=True) for index in indices]
    deadline_s = time.monotonic() + DEVICE_DEADLINE_S
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, deadline_s - time.monotonic()))
    return dict(answers)


def _answer(nvml: _Nvml, index: int) -> dict[str, Any] | str:
    """A GPU's readings, or the reason why there are none."""
    try:
        return _device(nvml, index)
    except NvmlError as error:
        return str(error)


def _device(nvml: _Nvml, index: int) -> dict[str, Any]:
    gpu = ctypes.c_void_p()
    nvml.call("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(gpu))
    memory = _or_none(lambda: nvml.filled(_Memory(), "nvmlDeviceGetMemoryInfo", gpu))
    pci = _or_none(lambda: nvml.filled(_Pci(), "nvmlDeviceGetPciInfo_v3", gpu))
    mode = _or_none(lambda: nvml.number("nvmlDeviceGetComputeMode", gpu))
    samples = _or_none(lambda: _samples(nvml, gpu)) or []
    return {
        "uuid": nvml.text("nvmlDeviceGetUUID", gpu),
        "index": index,
        "name": _or_none(lambda: nvml.text("nvmlDeviceGetName", gpu)) or "GPU",
        "pci_bus_id": pci.bus_id.decode(errors="replace") if pci else None,
        "memory_total_bytes": memory.total if memory else None,
        "memory_used_bytes": memory.used if memory else None,
        "utilization_percent": _utilization_percent(nvml, gpu, samples),
        "idle_s": _idle_s(samples),
        "compute_processes": _or_none(lambda: _processes(nvml, "nvmlDeviceGetComputeRunningProcesses", gpu)),
        "graphics_processes": _or_none(lambda: _processes(nvml, "nvmlDeviceGetGraphicsRunningProcesses", gpu)),
        "compute_mode": _COMPUTE_MODES[mode] if mode is not None and mode < len(_COMPUTE_MODES) else None,
        "mig_enabled": bool(_or_none(lambda: _mig_mode(nvml, gpu))),
    }


def _mig_mode(nvml: _Nvml, gpu: Any) -> int:
    current, pending = ctypes.c_uint(), ctypes.c_uint()
    nvml.call("nvmlDeviceGetMigMode", gpu, ctypes.byref(current), ctypes.byref(pending))
    return current.value


def _utilization_percent(nvml: _Nvml, gpu: Any, samples: Sequence[tuple[int, int]]) -> int | None:
    if samples:
        newest_us = max(time_us for time_us, _ in samples)
        recent = [percent for time_us, percent in samples if newest_us - time_us <= UTILIZATION_SPAN_S * 1e6]
        # The driver rounds to whole percents; any activity in the span must not round down to idle.
        return min(100, -(-sum(recent) // len(recent)))
    # Of the GPU's engines, and of its memory.
    rates = _or_none(lambda: nvml.filled((ctypes.c_uint * 2)(), "nvmlDeviceGetUtilizationRates", gpu))
    return None if rates is None else int(rates[0])


def _idle_s(samples: Sequence[tuple[int, int]]) -> float | None:
    if not samples:
        return None
    times_us = [time_us for time_us, _ in samples]
    since_us = max((time_us for time_us, percent in samples if percent), default=min(times_us))
    return (max(times_us) - since_us) / 1e6


def _samples(nvml: _Nvml, gpu: Any) -> list[tuple[int, int]]:
    """When, in the driver's microseconds, and how busy in percent."""
    name, kind, all_of_them = "nvmlDeviceGetSamples", ctypes.c_uint(_GPU_UTILIZATION_SAMPLES), ctypes.c_ulonglong(0)
    value_type, count = ctypes.c_uint(), ctypes.c_uint()
    nvml.call(name, gpu, kind, all_of_them, ctypes.byref(value_type), ctypes.byref(count), None)
    samples = (_Sample * count.value)()
    nvml.call(name, gpu, kind, all_of_them, ctypes.byref(value_type), ctypes.byref(count), samples)
    return [(sample.time_us, sample.value) for sample in samples[: count.value]]


def _processes(nvml: _Nvml, name: str, gpu: Any) -> list[tuple[int, int | None]]:
    """Pid and bytes of each; drivers before 450 know only the first version of the structure."""
    for version, kind in (("_v3", _Process), ("_v2", _Process), ("", _ProcessV1)):
        try:
            return _listed(nvml, name + version, kind, gpu)
        except NvmlError as error:
            if error.code != _FUNCTION_NOT_FOUND:
                raise
    raise NvmlError(_FUNCTION_NOT_FOUND, f"this driver has no {name}")


def _listed(nvml: _Nvml, name: str, kind: Any, gpu: Any) -> list[tuple[int, int | None]]:
    room = _PROCESSES_AT_FIRST
    while True:
        count, listed = ctypes.c_uint(room), (kind * room)()
        try:
            nvml.call(name, gpu, ctypes.byref(count), listed)
        except NvmlError as error:
            if error.code != _INSUFFICIENT_SIZE or count.value <= room:
                raise
            room = count.value + _PROCESSES_AT_FIRST  # more may come until it is asked again
            continue
        found = listed[: count.value]
        return [(each.pid, None if each.used_bytes == _NOT_AVAILABLE else each.used_bytes) for each in found]


def _or_none(ask: Callable[[], Any]) -> Any:
    """A reading, or ``None`` where this GPU or driver lacks it; a lost GPU is not a missing reading."""
    try:
        return ask()
    except NvmlError as error:
        if error.code == _GPU_IS_LOST:
            raise
        return None


def _end_by(time_s: float) -> None:
    import os

    time.sleep(max(0.0, time_s - time.monotonic()))
    os._exit(1)


def main() -> None:
    """Write one reading to stdout for ``marshal.load``: both ends are the same Python, and json would take longer."""
    import marshal
    import os

    # Whoever started this may be gone, killed while it waited for a driver that hangs.
    threading.Thread(target=_end_by, args=(time.monotonic() + LIFETIME_S,), daemon=True).start()
    written = marshal.dumps(read())
    while written:
        written = written[os.write(1, written) :]
    # Not sys.exit: a thread that is stuck in the driver would be waited for.
    os._exit(0)
