"""GPUs as plain values: one reading of the driver."""

from __future__ import annotations

import enum
from types import MappingProxyType
from typing import Any, ContextManager, Mapping, Sequence

from autogpu.frozen import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Iterator, Protocol

    # Nearness of two cards, keyed by their UUIDs: NVLINK, or else a number for the part of PCI Express that they share,
    # from 60 (one board) and 50 (one switch) to 10 (the machine). A pair is missing if the driver reports nothing about
    # it. Source: nvmlDeviceGetP2PStatus, nvmlDeviceGetTopologyCommonAncestor.
    Topology = Mapping[frozenset[str], int]

NVLINK = 100

# Larger than any new CUDA context with the code that is loaded into it. Users report 300 to 600 MiB.
_MOST_OF_A_CONTEXT_BYTES = 1 << 30


class ComputeMode(enum.Enum):
    """Number of processes that the driver lets compute on a GPU at once. Source: ``nvmlComputeMode_t``."""

    DEFAULT = 0
    EXCLUSIVE_THREAD = 1
    PROHIBITED = 2
    EXCLUSIVE_PROCESS = 3


class FailureCause(enum.Enum):
    """The reason why there is no reading. The values are those of :func:`autogpu.devices.nvml.read_inventory`."""

    NO_DRIVER = "no-driver"  # the ordinary state of a machine without an NVIDIA GPU: not a fault
    DRIVER = "driver"
    TIMEOUT = "timeout"  # the driver has not answered in time
    PYNVML = "pynvml"  # missing or unusable


class Process(Value):
    """A process that the driver lists on a GPU.

    Attributes:
        pid: The driver's pid. In a container it is the host's pid, and identifies no process of the container.
        memory_used_bytes: ``None`` if the driver does not report it (WSL2, another user's process).
        is_bare: True if the process has only an idle CUDA context here, and more memory on another GPU. Frameworks make
            a context on every GPU that they see. Some frameworks make it only at the first copy between two GPUs.
    """

    pid: int
    memory_used_bytes: int | None
    is_bare: bool = False


class Device(Value):
    """One GPU, or one MIG instance, at one moment. Only ``uuid`` and ``index`` are always known.

    Attributes:
        uuid: Stable name: ``GPU-5d0f...``, or ``MIG-...`` for an instance. No other identity is stored or exported.
        index: Position in PCI bus order, as in ``nvidia-smi``. It is for people only, because it may change after a
            reboot. An instance has the index of its card.
        memory_total_bytes: ``None`` on GPUs without memory of their own (GB10). Source: ``nvmlDeviceGetMemoryInfo``.
        memory_used_bytes: Memory that all processes and the driver itself have allocated. Same source.
        utilization_percent: 0-100: the mean over the newest 10 s of the driver's samples (``nvmlDeviceGetSamples``),
            else the momentary value (``nvmlDeviceGetUtilizationRates``).
        compute_processes: ``None`` if the driver can't list them. An empty list does not prove that the GPU is idle,
            because containers and WSL2 hide processes.
        graphics_processes: The processes of a desktop; ``None`` if the driver can't list them.
        active_pids: Processes that have computed in the last 10 s (``nvmlDeviceGetProcessUtilization``). Read only if
            several processes share a GPU that is not idle. ``None`` if not read, or not reported by the driver.
        mig_enabled: True if the GPU is in MIG mode and can't be used as a whole. Its instances are separate devices.
        parent: The UUID of an instance's card; ``None`` for a card.
        instance: The number of an instance on its card, as in ``nvidia-smi``; ``None`` for a card. There may be gaps.
        has_mps: True if an MPS server makes the contexts of this user's processes, also on a GPU in an exclusive mode.
        is_small: True if a framework leaves out this GPU when there are larger GPUs. Such a GPU has fewer
            multiprocessors than ``TF_MIN_GPU_MULTIPROCESSOR_COUNT``, or fewer than 8 if that variable is not set
            (``nvmlDeviceGetNumGpuCores``).
        remapping_failed: True if a broken memory row could not be replaced (``nvmlDeviceGetRemappedRows``).
        remapping_pending: True if a memory row will be replaced at the GPU's next reset. Same source.
        retirement_pending: True if a memory page will be retired at the next reset of a GPU older than Ampere
            (``nvmlDeviceGetRetiredPagesPendingStatus``).
        uncorrected_errors: Memory errors since boot (``nvmlDeviceGetTotalEccErrors``); 0 without error correction.
        temperature_celsius: For an instance, the card's temperature (``nvmlDeviceGetTemperature``).
        power_watts: For an instance, the card's power (``nvmlDeviceGetPowerUsage``).
    """

    uuid: str
    index: int
    name: str = "GPU"
    pci_bus_id: str | None = None
    memory_total_bytes: int | None = None
    memory_used_bytes: int | None = None
    utilization_percent: int | None = None
    compute_processes: tuple[Process, ...] | None = None
    graphics_processes: tuple[Process, ...] | None = None
    active_pids: Sequence[int] | None = None
    compute_mode: ComputeMode | None = None
    mig_enabled: bool = False
    parent: str | None = None
    instance: int | None = None
    has_mps: bool = False
    is_small: bool = False
    remapping_failed: bool = False
    remapping_pending: bool = False
    retirement_pending: bool = False
    uncorrected_errors: int = 0
    temperature_celsius: int | None = None
    power_watts: int | None = None

    @property
    def label(self) -> str:
        """The number that people see: ``0`` for a card, ``0:1`` for instance 1 of that card."""
        return str(self.index) if self.instance is None else f"{self.index}:{self.instance}"

    @property
    def memory_free_bytes(self) -> int | None:
        if self.memory_total_bytes is None or self.memory_used_bytes is None:
            return None
        return max(0, self.memory_total_bytes - self.memory_used_bytes)

    @property
    def unlisted_bytes(self) -> int:
        """Bytes used by processes that the driver does not list.

        It is 0 if the number is unknown or at most 1 GiB, and for a card in MIG mode.
        """
        listed = [*(self.compute_processes or ()), *(self.graphics_processes or ())]
        known = [process.memory_used_bytes for process in listed if process.memory_used_bytes is not None]
        unlisted = (self.memory_used_bytes or 0) - sum(known)
        # The driver itself uses a few hundred MiB on large GPUs. In MIG mode, the instances use a card's memory.
        is_known = len(known) == len(listed) and not self.mig_enabled
        return unlisted if is_known and unlisted > 1 << 30 else 0

    @property
    def is_healthy(self) -> bool:
        """True if the GPU's memory has no fault.

        A fault may end a job at any time, until the administrator resets or replaces the GPU. Source:
        docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt.
        """
        has_fault = self.remapping_failed or self.remapping_pending or self.retirement_pending
        return not (has_fault or self.uncorrected_errors)


class CudaAttributes(Value):
    """Attributes of one of this process's GPUs that can be read without a CUDA context.

    Attributes:
        compute_capability: Such as ``7.5``.
        pci_bus_id: Such as ``0000:05:00.0``.
    """

    name: str
    compute_capability: str
    pci_bus_id: str


class CudaProperties(Value):
    """Properties of a GPU that CUDA reported to another process. Source: ``cuDeviceGetAttribute``."""

    name: str
    memory_total_bytes: int
    major: int
    minor: int
    multiprocessors: int


class UnreadableDevice(Value):
    """A GPU that the driver counts but can't describe, such as a lost GPU."""

    index: int
    reason: str


class Inventory(Value):
    """All GPUs of the machine in one reading, in PCI bus order.

    Attributes:
        devices: Every card. The instances of a card in MIG mode follow it.
        failure: The reason why there is no reading; ``None`` if there is a reading.
        denied: Number of GPUs that this process may not use. CUDA does not list them either.
        topology: The nearness of the cards, from the first reading; empty if that reading has none.
    """

    devices: tuple[Device, ...] = ()
    unreadable: tuple[UnreadableDevice, ...] = ()
    driver_version: str | None = None
    failure: str | None = None
    failure_cause: FailureCause | None = None
    denied: int = 0
    topology: Topology = MappingProxyType({})

    @classmethod
    def from_reading(cls, reading: Mapping[str, Any]) -> Inventory:
        """Return the inventory for a result of :func:`autogpu.devices.nvml.read_inventory`, or its marshalled copy."""
        cause = reading.get("failure_cause")
        return cls(
            **{
                **reading,
                "failure_cause": cause and FailureCause(cause),
                "devices": tuple(_devices_from(reading.get("devices", ()))),
                "unreadable": tuple(UnreadableDevice(**fields) for fields in reading.get("unreadable", ())),
                "topology": MappingProxyType({frozenset(pair): what for pair, what in reading.get("topology", ())}),
            }
        )

    @property
    def has_no_driver(self) -> bool:
        return self.failure_cause is FailureCause.NO_DRIVER

    @property
    def may_be_busy(self) -> bool:
        """True if the only failure is that the driver has not answered in time. That alone is no fault."""
        from autogpu.devices.nvml import NO_ANSWER

        is_silent = [lost.reason == NO_ANSWER for lost in self.unreadable]
        return self.failure_cause is FailureCause.TIMEOUT or (bool(is_silent) and all(is_silent))


# The inventory for a reading that has not ended in time.
NO_READING = Inventory(failure="NVML timed out", failure_cause=FailureCause.TIMEOUT)


# A newer driver may report a mode that is not known here.
_COMPUTE_MODES = {mode.value: mode for mode in ComputeMode}


def _devices_from(read: Sequence[Mapping[str, Any]]) -> Iterator[Device]:
    most: dict[int, int] = {}
    for pid, used in (process for fields in read for process in fields["compute_processes"] or ()):
        most[pid] = max(used or 0, most.get(pid, 0))
    for fields in read:
        values = dict(fields)
        values["compute_mode"] = _COMPUTE_MODES.get(fields["compute_mode"])
        for key in ("compute_processes", "graphics_processes"):
            if values[key] is not None:
                values[key] = tuple(_process(fields, pid, used, most) for pid, used in values[key])
        yield Device(**values)


def _process(fields: Mapping[str, Any], pid: int, used_bytes: int | None, most: Mapping[int, int]) -> Process:
    return Process(pid, used_bytes, _is_bare(fields, pid, used_bytes or 0, most.get(pid, 0)))


def _is_bare(fields: Mapping[str, Any], pid: int, used_bytes: int, most_bytes: int) -> bool:
    active = fields["active_pids"]
    is_at_rest = fields["utilization_percent"] == 0 or (active is not None and pid not in active)
    return is_at_rest and 0 < used_bytes <= _MOST_OF_A_CONTEXT_BYTES and used_bytes < most_bytes


def by_uuid(devices: Sequence[Device]) -> dict[str, Device]:
    return {device.uuid: device for device in devices}


if TYPE_CHECKING:

    class Reading(Protocol):
        """A reading of the GPUs in progress."""

        def result(self, deadline_s: float) -> Inventory | None:
            """Return the inventory; ``None`` if the reading has not ended ``deadline_s`` seconds after its start."""

        @property
        def is_running(self) -> bool:
            """True if the driver has not answered yet, and this process can still receive its answer."""

        def close(self) -> None:
            """End the reading, and leave no child process that the script's ``os.wait`` would find."""

    class DeviceReader(Protocol):
        """Reads the GPUs of the machine: :mod:`autogpu.devices.probe`."""

        def start(self, environ: Mapping[str, str]) -> Reading: ...
        def start_in_process(self, environ: Mapping[str, str], last: Inventory | None) -> Reading: ...
        def prepare(self, last: Inventory) -> None: ...

    class CudaDriver(Protocol):
        """The CUDA driver that this process has loaded: :mod:`autogpu.devices.cuda`."""

        def visible_uuids(self) -> tuple[str, ...] | None: ...
        def gpus_elsewhere(
            self, environ: Mapping[str, str], built_for: tuple[int, int]
        ) -> tuple[CudaProperties, ...] | None: ...
        def ordinals_in_use(self) -> tuple[int, ...]: ...
        def attributes(self) -> tuple[CudaAttributes, ...] | None: ...
        def primary_contexts(self, ordinals: Sequence[int]) -> ContextManager[None]: ...
        def begin_use(self, ordinals: Sequence[int]) -> None: ...
