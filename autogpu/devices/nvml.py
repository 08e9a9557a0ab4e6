"""Read every GPU through NVML, as plain lists and dictionaries. The only importer of pynvml.

It runs as a program of its own, ``python -I -S nvml.py FOLDER_OF_PYNVML``, and prints JSON: a driver that hangs or
crashes then takes this process along and not a training job. It therefore imports nothing of autogpu.
"""

from __future__ import annotations

import sys
import threading
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

# "Idle" is judged over this span of the driver's sample buffer: a job between two batches shows 0 % for a moment.
UTILIZATION_SPAN_S = 10.0

# A GPU that answers at all answers in milliseconds; one that has fallen off the bus can block a call for ever, and
# must not take the readings of the others along.
DEVICE_DEADLINE_S = 3.0

# Nobody waits longer for a reading; as a program of its own this ends then, whatever the driver does.
LIFETIME_S = 20.0

# An absent driver is a machine without GPU, not a fault. Numbers: nvmlReturn_t of the NVML API reference.
_DRIVER_NOT_LOADED = 9
_LIBRARY_NOT_FOUND = 12


def read() -> dict[str, Any]:
    """Everything :class:`autogpu.devices.model.Inventory` holds, in types that JSON knows. Never raises."""
    reading: dict[str, Any] = {
        "devices": [],
        "unreadable": [],
        "driver_version": None,
        "failure": None,
        "is_driverless": False,
    }
    try:
        import pynvml  # noqa: TID251
    except ImportError as error:
        reading["failure"] = f"nvidia-ml-py can't be imported ({error})"
        return reading
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        reading["failure"] = f"NVML says: {error}"
        reading["is_driverless"] = error.value in (_DRIVER_NOT_LOADED, _LIBRARY_NOT_FOUND)
        return reading
    reading["driver_version"] = _or_none(pynvml, lambda: _text(pynvml.nvmlSystemGetDriverVersion()))
    count = _or_none(pynvml, pynvml.nvmlDeviceGetCount)
    if count is None:
        reading["failure"] = "NVML can't count the GPUs"
        return reading
    answers = _ask_all_at_once(pynvml, count)
    for index in range(count):
        answer = answers.get(index, "it does not answer")
        if isinstance(answer, str):
            reading["unreadable"].append({"index": index, "reason": answer})
        else:
            reading["devices"].append(answer)
    return reading


def _ask_all_at_once(nvml: Any, count: int) -> dict[int, Any]:
    """By index, a GPU's readings or the reason why there are none; a GPU that does not answer is missing."""
    answers: dict[int, Any] = {}

    def ask(index: int) -> None:
        try:
            answers[index] = _device(nvml, nvml.nvmlDeviceGetHandleByIndex(index), index)
        except nvml.NVMLError as error:
            answers[index] = str(error)

    threads = [threading.Thread(target=ask, args=(index,), daemon=True) for index in range(count)]
    deadline_s = time.monotonic() + DEVICE_DEADLINE_S
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, deadline_s - time.monotonic()))
    return dict(answers)


def _device(nvml: Any, handle: Any, index: int) -> dict[str, Any]:
    memory = _or_none(nvml, lambda: nvml.nvmlDeviceGetMemoryInfo(handle))
    mig_mode = _or_none(nvml, lambda: nvml.nvmlDeviceGetMigMode(handle))
    return {
        "uuid": _text(nvml.nvmlDeviceGetUUID(handle)),
        "index": index,
        "name": _or_none(nvml, lambda: _text(nvml.nvmlDeviceGetName(handle))) or "GPU",
        "pci_bus_id": _or_none(nvml, lambda: _text(nvml.nvmlDeviceGetPciInfo(handle).busId)),
        "memory_total_bytes": memory and memory.total,
        "memory_used_bytes": memory and memory.used,
        "utilization_percent": _utilization_percent(nvml, handle),
        "compute_processes": _processes(nvml, "nvmlDeviceGetComputeRunningProcesses", handle),
        "graphics_processes": _processes(nvml, "nvmlDeviceGetGraphicsRunningProcesses", handle),
        "compute_mode": _compute_mode(nvml, handle),
        "mig_enabled": bool(mig_mode and mig_mode[0]),
    }


def _utilization_percent(nvml: Any, handle: Any) -> int | None:
    samples = _or_none(nvml, lambda: nvml.nvmlDeviceGetSamples(handle, nvml.NVML_GPU_UTILIZATION_SAMPLES, 0))
    if samples:
        newest_us = max(sample.timeStamp for sample in samples[1])
        recent = [
            sample.sampleValue.uiVal
            for sample in samples[1]
            if newest_us - sample.timeStamp <= UTILIZATION_SPAN_S * 1e6
        ]
        # The driver rounds to whole percents; any activity in the span must not round down to idle.
        return min(100, int(-(-sum(recent) // len(recent))))
    rates = _or_none(nvml, lambda: nvml.nvmlDeviceGetUtilizationRates(handle))
    return None if rates is None else int(rates.gpu)


def _processes(nvml: Any, function: str, handle: Any) -> list[tuple[int, int | None]] | None:
    listed = _or_none(nvml, lambda: getattr(nvml, function)(handle))
    if listed is None:
        return None
    return [(process.pid, process.usedGpuMemory) for process in listed]


def _compute_mode(nvml: Any, handle: Any) -> str | None:
    names = {
        nvml.NVML_COMPUTEMODE_DEFAULT: "default",
        nvml.NVML_COMPUTEMODE_EXCLUSIVE_THREAD: "exclusive_thread",
        nvml.NVML_COMPUTEMODE_PROHIBITED: "prohibited",
        nvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS: "exclusive_process",
    }
    return names.get(_or_none(nvml, lambda: nvml.nvmlDeviceGetComputeMode(handle)))


def _or_none(nvml: Any, call: Callable[[], Any]) -> Any:
    """A reading, or ``None`` where this GPU, driver or binding lacks it; a lost GPU is not a missing reading."""
    try:
        return call()
    except nvml.NVMLError as error:
        if error.value == nvml.NVML_ERROR_GPU_IS_LOST:
            raise
        return None
    except (AttributeError, ValueError):  # an old binding, or bytes that it can't decode
        return None


def _text(value: Any) -> str:
    # Bindings before 11.510 return bytes.
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _spare_pynvml_what_only_windows_needs() -> None:
    # pynvml imports find_library for Windows alone, and with it shutil, subprocess and tempfile: more than a third of
    # what this process takes.
    from types import ModuleType

    util = ModuleType("ctypes.util")
    util.find_library = lambda name: None  # type: ignore[attr-defined]
    sys.modules["ctypes.util"] = util


def _end_by(time_s: float) -> None:
    import os

    time.sleep(max(0.0, time_s - time.monotonic()))
    os._exit(1)


def main() -> None:
    """Print one reading as JSON; the folder of pynvml comes last on the path, so it can't hide a standard module."""
    import json
    import os

    # Whoever started this may be gone, killed while it waited for a driver that hangs.
    threading.Thread(target=_end_by, args=(time.monotonic() + LIFETIME_S,), daemon=True).start()
    sys.path.extend(sys.argv[1:2])
    _spare_pynvml_what_only_windows_needs()
    printed = json.dumps(read()).encode()
    while printed:
        printed = printed[os.write(1, printed) :]
    # Not sys.exit: a thread that is stuck in the driver would be waited for.
    os._exit(0)


if __name__ == "__main__":
    main()
