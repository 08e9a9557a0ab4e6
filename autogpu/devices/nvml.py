"""Readings of all GPUs through NVML, as lists and dictionaries. Only this file imports pynvml (nvidia-ml-py).

When a framework is imported, :func:`main` runs in a helper process. If the driver hangs or crashes there, the training
job is not affected. The helper starts fast because this file imports few modules, and nothing of autogpu at the start.
"""

from __future__ import annotations

import os
import sys
import threading
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Collection, Iterable, Mapping, Sequence

# Read utilization and active processes over this span, because a job between two batches shows 0 % for a moment.
UTILIZATION_SPAN_S = 10.0

# A working GPU answers in milliseconds. A GPU that has fallen off the bus can block a call forever, and must not stop
# the readings of the other GPUs.
DEVICE_DEADLINE_S = 3.0
_STEP_S = 0.02
NO_ANSWER = "the driver does not answer"

# No caller waits longer for a reading. A helper process ends itself after this time, whatever the driver does.
LIFETIME_S = 20.0

# End of a complete reading. The reader of the pipe need not wait until the helper process closes it.
END = b"\nwhole\n"

# Without these functions there is no reading. If any other function is missing, only its value is missing.
_ESSENTIAL = ("NVMLError", "nvmlInit", "nvmlShutdown", "nvmlDeviceGetCount", "nvmlDeviceGetHandleByIndex")

_P2P_OVER_NVLINK = 2  # NVML_P2P_CAPS_INDEX_NVLINK
_P2P_OK = 0  # NVML_P2P_STATUS_OK
_NVLINK = 100  # as in model.py
_TEMPERATURE_OF_GPU = 0  # nvmlTemperatureSensors_t
_BEST_ANCESTOR = 60  # nearness is this minus nvmlGpuTopologyLevel_t (0: one board, 50: two sockets)

# CUDA cores of a multiprocessor, keyed by compute capability or its major version. All others have 128 cores (CUDA C++
# Programming Guide, 32-bit floating-point operations per clock cycle).
_CORES: Mapping[Any, int] = {3: 192, (6, 0): 64, 7: 64, (8, 0): 64}
_LEAST_MULTIPROCESSORS = 8  # kDefaultMinGPUMultiprocessorCount of gpu_device.cc

# Versions of the process lists, newest first. Each has its own structure. A pynvml has a function for each version
# that existed at its release.
_PROCESS_LIST_VERSIONS = ("_v3", "_v2", "")

# The second function returns NVML_ERROR_DEPRECATED from CUDA 14 on. Drivers before 570 have only the second.
_TEMPERATURE_CALLS = ("nvmlDeviceGetTemperatureV", "nvmlDeviceGetTemperature")


class UnusableBinding(Exception):
    """``pynvml`` is missing, can't be imported, or is another project's module."""


class Nvml:
    """NVML, as far as this pynvml and this driver offer it."""

    def __init__(self, pynvml: Any) -> None:
        self.error: type[Exception] = pynvml.NVMLError
        self._pynvml = pynvml

    def call(self, name: str, *arguments: Any) -> Any:
        """Call a function of NVML. Raises ``self.error`` if NVML reports an error."""
        return getattr(self._pynvml, name)(*arguments)

    def reading(self, name: str, *arguments: Any) -> Any:
        """Call a function whose value is optional. Return ``None`` if it fails; raise if the GPU is lost."""
        try:
            return self.call(name, *arguments)
        except Exception as error:  # another version of pynvml may lack the function, or expect other arguments
            if self.is_code(error, "NVML_ERROR_GPU_IS_LOST"):
                raise
            return None

    def first_reading(self, names: Sequence[str], *arguments: Any) -> Any:
        for name in names:
            found = self.reading(name, *arguments)
            if found is not None:
                return found
        return None

    def processes(self, name: str, gpu: Any) -> list[tuple[int, int | None]] | None:
        found = self.first_reading([name + version for version in _PROCESS_LIST_VERSIONS], gpu)
        return None if found is None else [(each.pid, each.usedGpuMemory) for each in found]

    def is_code(self, error: Exception, *names: str) -> bool:
        return getattr(error, "value", None) in [getattr(self._pynvml, name, ()) for name in names]


def load_pynvml() -> Any:
    """Import pynvml. Raises :class:`UnusableBinding` with the reason if it can't be used."""
    try:
        if __package__:
            from autogpu._vendor import pynvml  # type: ignore[attr-defined]
        else:  # in the helper process, which imports this file as a top-level module
            import pynvml
    except ImportError as error:
        is_missing = getattr(error, "name", None) in ("autogpu._vendor", "pynvml")
        reason = "pynvml (nvidia-ml-py) is not installed" if is_missing else f"pynvml can't be imported: {error}"
        raise UnusableBinding(reason) from None
    except (Exception, SystemExit) as error:  # another project's module of that name may raise anything
        raise UnusableBinding(f"pynvml can't be imported: {type(error).__name__}: {error}") from None
    missing = [name for name in _ESSENTIAL if not hasattr(pynvml, name)]
    if missing:
        where = getattr(pynvml, "__file__", None)
        raise UnusableBinding(f"{where} is not NVIDIA's pynvml: it has no {missing[0]}")
    return pynvml


def read_inventory(silent: Collection[int] | None = None) -> dict[str, Any]:
    """Read the fields of :class:`autogpu.devices.model.Inventory`, in built-in types.

    If the reading fails, the result holds the reason, and no exception is raised.

    Args:
        silent: Indices of the GPUs that did not answer before. They are not queried again. ``None`` for the first
            reading of a process. Only that reading includes the topology.
    """
    try:
        nvml = Nvml(load_pynvml())
    except UnusableBinding as error:
        return {"failure": str(error), "failure_cause": "pynvml"}
    version = None
    try:
        nvml.call("nvmlInit")
        version = text(nvml.reading("nvmlSystemGetDriverVersion"))
        count = nvml.call("nvmlDeviceGetCount")
    except nvml.error as error:
        return {"driver_version": version, **_failure(nvml, error)}
    answers = dict.fromkeys(range(count), NO_ANSWER)
    asked = [index for index in answers if index not in (silent or ())]
    answers.update(_ask_all_at_once(lambda index: _answer(nvml, index), asked))
    reading = {"driver_version": version, **_sorted(answers)}
    told = _links_of_cards(nvml, reading["devices"]) if silent is None else []
    reading["topology"] = [link for links in told if links != NO_ANSWER for link in links]
    if NO_ANSWER not in (*answers.values(), *told):  # otherwise a thread may still be inside the library
        nvml.reading("nvmlShutdown")
    return reading


def _links_of_cards(nvml: Nvml, devices: Sequence[Mapping[str, Any]]) -> list[Any]:
    # Query only cards: an instance has its card's bus, and no links.
    cards = [device for device in devices if "parent" not in device]
    return list(_ask_all_at_once(lambda number: _links(nvml, *cards[number:]), range(len(cards))).values())


def _sorted(answers: Mapping[int, Any]) -> dict[str, Any]:
    told = answers.items()
    return {
        "devices": _with_small_marked([device for _, answer in told if isinstance(answer, list) for device in answer]),
        "unreadable": [{"index": index, "reason": answer} for index, answer in told if isinstance(answer, str)],
        "denied": sum(answer is None for _, answer in told),
    }


def _with_small_marked(devices: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Mark the cards that a framework leaves out if there are larger cards.

    Source: GetMinGPUMultiprocessorCount of gpu_device.cc.
    """
    counts = [device.pop("multiprocessors") for device in devices]
    asked = os.environ.get("TF_MIN_GPU_MULTIPROCESSOR_COUNT", "").strip()
    least = int(asked) if asked.isdecimal() else min(_LEAST_MULTIPROCESSORS, max(filter(None, counts), default=0))
    for device, count in zip(devices, counts):
        device["is_small"] = bool(count and count < least)
    return devices


def _failure(nvml: Nvml, error: Exception) -> dict[str, str]:
    # If a library can't be loaded, pynvml always reports it as missing. The loader's own error is the context.
    loader = error.__context__
    if isinstance(loader, OSError) and "No such file" not in str(loader):
        return {"failure": f"NVML can't be loaded: {loader}", "failure_cause": "driver"}
    # A missing driver is the ordinary state of a machine without a GPU, not a fault.
    is_absent = nvml.is_code(error, "NVML_ERROR_DRIVER_NOT_LOADED", "NVML_ERROR_LIBRARY_NOT_FOUND")
    reason = str(error).rstrip(".")
    return {"failure": f"NVML reports: {reason}", "failure_cause": "no-driver" if is_absent else "driver"}


def _ask_all_at_once(ask: Callable[[int], Any], numbers: Iterable[int]) -> dict[int, Any]:
    """Call ``ask`` for each number in a thread. A result that is late is ``NO_ANSWER``."""
    answers: dict[int, Any] = dict.fromkeys(numbers, NO_ANSWER)

    def answer(number: int) -> None:
        answers[number] = ask(number)

    threads = [threading.Thread(target=answer, args=(number,), daemon=True) for number in answers]
    for thread in threads:
        try:
            thread.start()
        except RuntimeError:  # no more threads: Python 3.12 starts none once the main thread has ended
            thread.run()
    # Count steps instead of time. While C code of the script holds the GIL, as the start of CUDA does, no thread runs.
    steps = iter(range(int(DEVICE_DEADLINE_S / _STEP_S)))
    for thread in threads:
        while thread.is_alive() and next(steps, None) is not None:
            thread.join(_STEP_S)
    return dict(answers)


def _answer(nvml: Nvml, index: int) -> list[dict[str, Any]] | str | None:
    """Return a GPU and its MIG instances, or the reason for a failure; ``None`` if this process may not use the GPU."""
    try:
        return _read_device(nvml, index)
    except Exception as error:
        # A device cgroup or a container denies access. That is not a fault.
        if nvml.is_code(error, "NVML_ERROR_NO_PERMISSION"):
            return None
        # The UUID is the only reading that every GPU must support.
        if nvml.is_code(error, "NVML_ERROR_NOT_SUPPORTED"):
            return "NVML reports no UUID for the GPU"
        # Another version of pynvml may lack a function, or fail to decode a name.
        return (
            str(error)
            if isinstance(error, nvml.error)
            else f"pynvml fails to read the GPU: {type(error).__name__}: {error}"
        )


def _read_device(nvml: Nvml, index: int) -> list[dict[str, Any]]:
    gpu = nvml.call("nvmlDeviceGetHandleByIndex", index)
    memory = nvml.reading("nvmlDeviceGetMemoryInfo", gpu)
    pci = nvml.reading("nvmlDeviceGetPciInfo", gpu)
    mig = nvml.reading("nvmlDeviceGetMigMode", gpu)
    utilization = _utilization_percent(nvml, gpu)
    processes = nvml.processes("nvmlDeviceGetComputeRunningProcesses", gpu)
    is_shared = utilization and len(processes or ()) > 1
    milliwatts = nvml.reading("nvmlDeviceGetPowerUsage", gpu)
    card = {
        "uuid": text(nvml.call("nvmlDeviceGetUUID", gpu)),
        "index": index,
        "name": text(nvml.reading("nvmlDeviceGetName", gpu)) or "GPU",
        "pci_bus_id": text(getattr(pci, "busId", None)),
        "memory_total_bytes": getattr(memory, "total", None),
        "memory_used_bytes": max(memory.used - _file_cache_bytes(pci), 0) if memory else None,
        "utilization_percent": utilization,
        "compute_processes": processes,
        # For a single process, the GPU's own utilization is enough.
        "active_pids": _active_pids(nvml, gpu) if is_shared else None,
        "graphics_processes": nvml.processes("nvmlDeviceGetGraphicsRunningProcesses", gpu),
        "compute_mode": nvml.reading("nvmlDeviceGetComputeMode", gpu),
        "mig_enabled": bool(mig and mig[0]),
        # CUDA looks for the control daemon of MPS at this path (docs.nvidia.com/deploy/mps).
        "has_mps": os.access(f"{os.environ.get('CUDA_MPS_PIPE_DIRECTORY') or '/tmp/nvidia-mps'}/control", os.F_OK),
        "multiprocessors": _multiprocessors(nvml, gpu),
        "temperature_celsius": nvml.first_reading(_TEMPERATURE_CALLS, gpu, _TEMPERATURE_OF_GPU),
        "power_watts": None if milliwatts is None else round(milliwatts / 1000),
        **_health(nvml, gpu),
    }
    return [card, *read_instances(nvml, gpu, card)] if card["mig_enabled"] else [card]


def read_instances(nvml: Nvml, gpu: Any, card: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Read the MIG instances of a card, each as a device. An instance that can't be read is left out.

    Instances have the health of their card. They have no utilization, because NVML reports none.
    """
    found = []
    for number in range(nvml.reading("nvmlDeviceGetMaxMigDeviceCount", gpu) or 0):
        # The numbers have a gap if an instance was removed.
        try:
            instance = nvml.reading("nvmlDeviceGetMigDeviceHandleByIndex", gpu, number)
            uuid = text(nvml.reading("nvmlDeviceGetUUID", instance)) if instance is not None else None
            if uuid:
                found.append({**card, "uuid": uuid, **_read_instance(nvml, instance, card), "instance": number})
        except nvml.error:  # any call may report that the card is lost
            continue
    return found


def _read_instance(nvml: Nvml, instance: Any, card: Mapping[str, Any]) -> dict[str, Any]:
    memory = nvml.reading("nvmlDeviceGetMemoryInfo", instance)
    name = text(nvml.reading("nvmlDeviceGetName", instance)) or ""
    return {
        **dict.fromkeys(("utilization_percent", "active_pids", "multiprocessors")),
        "name": name if " MIG " in name else f"{card['name']} MIG",  # the first drivers with MIG report the card's name
        "memory_total_bytes": getattr(memory, "total", None),
        "memory_used_bytes": getattr(memory, "used", None),
        "compute_processes": nvml.processes("nvmlDeviceGetComputeRunningProcesses", instance),
        "graphics_processes": nvml.processes("nvmlDeviceGetGraphicsRunningProcesses", instance),
        "mig_enabled": False,
        "parent": card["uuid"],
    }


def _file_cache_bytes(pci: Any) -> int:
    """Return the bytes of a GPU's memory in which the kernel caches files; 0 if the memory is not a NUMA node.

    The memory of a GH200 can be a NUMA node of the host. NVML counts such a cache as used
    (``nvmlDeviceGetMemoryInfo_v2``), but the kernel frees it for any process that allocates.
    """
    try:
        # NVML writes the domain with eight digits, the driver's folder with four.
        bus = text(pci.busId).lower()[-len("0000:01:00.0") :]
        with open(f"/proc/driver/nvidia/gpus/{bus}/numa_status") as status:  # noqa: PTH123  (a slow import)
            node = int(status.readline().partition(":")[2])
        with open(f"/sys/devices/system/node/node{node}/meminfo") as lines:  # noqa: PTH123
            (cached,) = [line.split() for line in lines if " FilePages:" in line]
        return int(cached[-2]) << 10
    except (AttributeError, OSError, ValueError):  # most GPUs have no such file
        return 0


def _multiprocessors(nvml: Nvml, gpu: Any) -> int | None:
    cores = nvml.reading("nvmlDeviceGetNumGpuCores", gpu)
    capability = nvml.reading("nvmlDeviceGetCudaComputeCapability", gpu)
    if not cores or not capability:
        return None
    major, minor = capability
    return int(cores) // _CORES.get((major, minor), _CORES.get(major, 128))


def _health(nvml: Nvml, gpu: Any) -> dict[str, Any]:
    # GPUs from Ampere on remap rows: (corrected, uncorrected, pending, failed). Older GPUs retire pages.
    rows = nvml.reading("nvmlDeviceGetRemappedRows", gpu)
    pages = nvml.reading("nvmlDeviceGetRetiredPagesPendingStatus", gpu)
    uncorrected = 1  # nvmlMemoryErrorType_t
    since_boot = 0  # nvmlEccCounterType_t
    return {
        "remapping_failed": bool(rows and rows[3]),
        "remapping_pending": bool(rows and rows[2]),
        "retirement_pending": bool(pages),
        "uncorrected_errors": nvml.reading("nvmlDeviceGetTotalEccErrors", gpu, uncorrected, since_boot) or 0,
    }


def _links(nvml: Nvml, card: Mapping[str, Any], *others: Mapping[str, Any]) -> list[tuple[tuple[str, str], int]]:
    """Return ``((uuid, uuid), nearness)`` for the card and each of ``others``. Leave out a pair of unknown nearness."""
    found = [((card["uuid"], other["uuid"]), _nearness(nvml, card["index"], other["index"])) for other in others]
    return [(pair, near) for pair, near in found if near]


def _nearness(nvml: Nvml, *indices: int) -> int:
    try:
        gpus = [nvml.call("nvmlDeviceGetHandleByIndex", index) for index in indices]
        if nvml.reading("nvmlDeviceGetP2PStatus", *gpus, _P2P_OVER_NVLINK) == _P2P_OK:
            return _NVLINK
        level = nvml.reading("nvmlDeviceGetTopologyCommonAncestor", *gpus)
        return 0 if level is None else _BEST_ANCESTOR - int(level)
    except nvml.error:  # a GPU was lost since it was read
        return 0


def _utilization_percent(nvml: Nvml, gpu: Any) -> int | None:
    gpu_utilization = 1  # NVML_GPU_UTILIZATION_SAMPLES of nvmlSamplingType_t
    all_of_them = 0
    found = nvml.reading("nvmlDeviceGetSamples", gpu, gpu_utilization, all_of_them)
    samples = [(sample.timeStamp, sample.sampleValue.uiVal) for sample in found[1]] if found else []
    if not samples:
        rates = nvml.reading("nvmlDeviceGetUtilizationRates", gpu)
        return None if rates is None else int(rates.gpu)
    newest_us = max(samples)[0]
    recent = [percent for time_us, percent in samples if newest_us - time_us <= UTILIZATION_SPAN_S * 1e6]
    # Round up: samples are whole percents, and a little activity in the span must not become 0 %.
    return int(min(100, -(-sum(recent) // len(recent))))


def _active_pids(nvml: Nvml, gpu: Any) -> list[int] | None:
    found = nvml.reading("nvmlDeviceGetProcessUtilization", gpu, int((time.time() - UTILIZATION_SPAN_S) * 1e6))
    return None if found is None else sorted({each.pid for each in found if each.smUtil})


def text(value: Any) -> Any:
    """Return a text as ``str``. Older versions of pynvml return bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _capwords(text: str, separator: str | None = None) -> str:
    return (separator or " ").join(map(str.capitalize, text.split(separator)))


def main() -> None:
    """Write the reading to stdout for ``marshal.loads``. Both processes run the same Python, and json takes longer."""
    import marshal

    # The parent may be killed while the driver hangs, so this process must end by itself.
    end = threading.Timer(LIFETIME_S, os._exit, [1])
    end.daemon = True
    end.start()
    # pynvml calls find_library only on Windows, and uses only capwords of string. The real modules' import takes 10 ms.
    stand_ins: dict[str, Any] = {"ctypes.util": {"find_library": None}, "string": {"capwords": _capwords}}
    for name, functions in stand_ins.items():
        sys.modules[name] = type(sys)(name)
        vars(sys.modules[name]).update(functions)
    try:
        load_pynvml()
    except UnusableBinding:  # it may use other functions of these modules
        for name in stand_ins:
            del sys.modules[name]
    written = marshal.dumps(read_inventory()) + END
    while written:
        written = written[os.write(1, written) :]
    # Not sys.exit, which would wait for a thread that is stuck in the driver.
    os._exit(0)
