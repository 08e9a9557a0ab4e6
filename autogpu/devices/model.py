"""GPUs as plain values: what the driver said at one moment."""

from __future__ import annotations

import enum
from types import MappingProxyType
from typing import Any, ContextManager, Mapping, Sequence

from autogpu.frozen import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Iterator, Protocol

    # How near two cards are, by their UUIDs: NVLINK, or by what both hang on of PCI Express, from 60 (one board) and 50
    # (one switch) to 10 (the machine). Two of which the driver tells nothing are missing. Source:
    # nvmlDeviceGetP2PStatus, nvmlDeviceGetTopologyCommonAncestor.
    Topology = Mapping[frozenset[str], int]

NVLINK = 100

# More than any CUDA context takes with what is loaded into it when it is made: 300 to 600 MiB in reports.
_MOST_OF_A_CONTEXT_BYTES = 1 << 30


class ComputeMode(enum.Enum):
    """Number of processes that the driver lets compute on a GPU at once. Source: ``nvmlComputeMode_t``."""

    DEFAULT = 0
    EXCLUSIVE_THREAD = 1
    PROHIBITED = 2
    EXCLUSIVE_PROCESS = 3


class FailureCause(enum.Enum):
    """Why there is no reading at all. The values are those of :func:`autogpu.devices.nvml.read_inventory`."""

    NO_DRIVER = "no-driver"  # the ordinary state of a machine without an NVIDIA GPU: not a fault
    DRIVER = "driver"
    TIMEOUT = "timeout"  # the driver has not answered in time
    PYNVML = "pynvml"  # missing or unusable


class Process(Value):
    """A process that the driver lists on a GPU.

    Attributes:
        pid: As the driver counts it; inside a container it is the host's number and means no process here.
        memory_used_bytes: ``None`` where the driver does not tell (WSL2, another user's process).
        is_bare: It has more on another GPU, and here a CUDA context in which nothing is computed: frameworks make one
            on every GPU that they see, some of them at the first copy from one to another.
    """

    pid: int
    memory_used_bytes: int | None
    is_bare: bool = False


class Device(Value):
    """One GPU, or one MIG instance, at one moment. Every reading but the identity may be missing.

    Attributes:
        uuid: Stable name (``GPU-5d0f...``, of an instance ``MIG-...``). The only identity that is stored or exported.
        index: Position in PCI bus order, as ``nvidia-smi`` shows it; for people, it may change after a reboot. Of an
            instance, its card's.
        memory_total_bytes: Source: ``nvmlDeviceGetMemoryInfo``. ``None`` on parts without own memory (GB10).
        memory_used_bytes: Allocated now, by every process and by the driver itself. Same source.
        utilization_percent: 0-100, the mean over the driver's own sample buffer (``nvmlDeviceGetSamples``), else
            its momentary value (``nvmlDeviceGetUtilizationRates``).
        compute_processes: ``None`` where the driver can't list them; an empty list is not a proof of idleness,
            since containers and WSL2 hide processes.
        graphics_processes: A desktop's; likewise.
        active_pids: Where several processes share a GPU that is not idle, those that have computed in the driver's last
            seconds (``nvmlDeviceGetProcessUtilization``); ``None`` where it does not tell.
        mig_enabled: The GPU is in MIG mode and can't be used as a whole; its instances are devices of their own.
        parent: Of a MIG instance the UUID of its card; ``None`` for a card.
        instance: Of a MIG instance its number on the card, as ``nvidia-smi`` counts it; some may be missing.
        has_mps: An MPS server makes the contexts of this user's processes, also on a GPU in an exclusive mode.
        is_small: Has fewer multiprocessors than a framework takes beside larger GPUs: 8, or what
            ``TF_MIN_GPU_MULTIPROCESSOR_COUNT`` says (``nvmlDeviceGetNumGpuCores``).
        remapping_failed: A row of its memory is broken and could not be replaced (``nvmlDeviceGetRemappedRows``).
        remapping_pending: A row of it will be replaced at the GPU's next reset; likewise.
        retirement_pending: Before Ampere, a page of it will be retired then (``…RetiredPagesPendingStatus``).
        uncorrected_errors: Of its memory since boot (``nvmlDeviceGetTotalEccErrors``); 0 without error correction.
        temperature_celsius: Of an instance, its card's (``nvmlDeviceGetTemperature``).
        power_watts: Likewise (``nvmlDeviceGetPowerUsage``).
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
        """Its number for people: ``0``, and ``0:1`` for the instance 1 of that card."""
        return str(self.index) if self.instance is None else f"{self.index}:{self.instance}"

    @property
    def memory_free_bytes(self) -> int | None:
        """The memory that is not allocated, or ``None`` where the driver does not tell."""
        if self.memory_total_bytes is None or self.memory_used_bytes is None:
            return None
        return max(0, self.memory_total_bytes - self.memory_used_bytes)

    @property
    def unlisted_bytes(self) -> int:
        """Used by processes that the driver does not list; 0 where nothing can be said, and of a card in MIG mode."""
        listed = [*(self.compute_processes or ()), *(self.graphics_processes or ())]
        known = [process.memory_used_bytes for process in listed if process.memory_used_bytes is not None]
        unlisted = (self.memory_used_bytes or 0) - sum(known)
        # The driver keeps some for itself, a few hundred MiB on large GPUs; and its instances all of a card.
        is_known = len(known) == len(listed) and not self.mig_enabled
        return unlisted if is_known and unlisted > 1 << 30 else 0

    @property
    def is_healthy(self) -> bool:
        """False if the GPU's memory has a fault by which a job may end at any time, until the administrator acts.

        Source: NVIDIA's guide asks for a reset or a replacement (docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt).
        """
        has_fault = self.remapping_failed or self.remapping_pending or self.retirement_pending
        return not (has_fault or self.uncorrected_errors)


class CudaAttributes(Value):
    """CUDA's attributes of one of this process's GPUs, such as ``7.5`` and ``0000:05:00.0``; they need no context."""

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
    """A GPU that the driver counts but can't describe, such as one that is lost."""

    index: int
    reason: str


class Inventory(Value):
    """All GPUs of the machine in one reading, in PCI bus order.

    Attributes:
        devices: Every card, and behind a card in MIG mode its instances.
        failure: Why there is no reading at all, in words; ``None`` when there is one.
        denied: How many GPUs of the machine are not this process's to use; CUDA does not list them either.
        topology: What connects them, as the first reading told it; empty where that did not come.
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
        """An inventory of what :func:`autogpu.devices.nvml.read_inventory` returned, perhaps by way of marshal."""
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
        """The driver has not answered in time, which alone is no fault."""
        from autogpu.devices.nvml import NO_ANSWER

        is_silent = [lost.reason == NO_ANSWER for lost in self.unreadable]
        return self.failure_cause is FailureCause.TIMEOUT or (bool(is_silent) and all(is_silent))


# Stands for a reading that has not come in time.
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
                values[key] = tuple(
                    Process(pid, used, _is_bare(fields, pid, used or 0, most.get(pid, 0))) for pid, used in values[key]
                )
        yield Device(**values)


def _is_bare(fields: Mapping[str, Any], pid: int, used_bytes: int, most_bytes: int) -> bool:
    active = fields["active_pids"]
    is_at_rest = fields["utilization_percent"] == 0 or (active is not None and pid not in active)
    return is_at_rest and 0 < used_bytes <= _MOST_OF_A_CONTEXT_BYTES and used_bytes < most_bytes


def by_uuid(devices: Sequence[Device]) -> dict[str, Device]:
    return {device.uuid: device for device in devices}


if TYPE_CHECKING:

    class Reading(Protocol):
        """A reading of the GPUs that is under way."""

        def result(self, deadline_s: float) -> Inventory | None:
            """The reading, or ``None`` if it has not come ``deadline_s`` seconds after its start."""

        @property
        def is_running(self) -> bool:
            """The driver has not answered yet, and may still do so to this process."""

        def close(self) -> None:
            """End it. Leaves no process behind for a script's ``os.wait`` to find."""

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
