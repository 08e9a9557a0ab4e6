"""GPUs as plain values: what the driver said at one moment."""

from __future__ import annotations

from autogpu.frozen import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Mapping


@frozen
class Process:
    """A process that the driver lists on a GPU.

    Attributes:
        pid: As the driver counts it; inside a container it is the host's number and names nobody here.
        memory_used_bytes: ``None`` where the driver does not tell (WSL2, another user's process).
    """

    pid: int
    memory_used_bytes: int | None


@frozen
class Device:
    """One GPU as the driver described it at one moment. Every reading but the identity may be missing.

    Attributes:
        uuid: Stable name (``GPU-5d0f...``). The only identity that is stored or exported.
        index: Position in PCI bus order, as ``nvidia-smi`` shows it; for people, it may change after a reboot.
        memory_total_bytes: Source: ``nvmlDeviceGetMemoryInfo``. ``None`` on parts without own memory (GB10).
        memory_used_bytes: Allocated now, by every process and by the driver itself. Same source.
        utilization_percent: 0-100, the mean over the driver's own sample buffer (``nvmlDeviceGetSamples``), else
            its momentary value (``nvmlDeviceGetUtilizationRates``).
        idle_s: Since the last sample with activity; at least that long where no sample has any, for the buffer reaches
            back seconds to minutes. ``None`` without samples.
        compute_processes: ``None`` where the driver can't list them; an empty list is not a proof of idleness,
            since containers and WSL2 hide processes.
        graphics_processes: A desktop's; likewise.
        compute_mode: ``"default"``, ``"exclusive_process"``, ``"exclusive_thread"``, ``"prohibited"`` or ``None``.
        mig_enabled: The GPU is split into MIG instances and can't be used as a whole.
    """

    uuid: str
    index: int
    name: str = "GPU"
    pci_bus_id: str | None = None
    memory_total_bytes: int | None = None
    memory_used_bytes: int | None = None
    utilization_percent: int | None = None
    idle_s: float | None = None
    compute_processes: tuple[Process, ...] | None = None
    graphics_processes: tuple[Process, ...] | None = None
    compute_mode: str | None = None
    mig_enabled: bool = False

    @property
    def memory_free_bytes(self) -> int | None:
        """What nobody has allocated, or ``None`` where the driver does not tell."""
        if self.memory_total_bytes is None or self.memory_used_bytes is None:
            return None
        return max(0, self.memory_total_bytes - self.memory_used_bytes)


@frozen
class Unreadable:
    """A GPU that the driver counts but can't describe: lost, or not permitted to this process."""

    index: int
    reason: str


@frozen
class Inventory:
    """All GPUs of the machine in one reading, in PCI bus order.

    Attributes:
        failure: Why there is no reading at all, in words; ``None`` when there is one.
        is_driverless: The failure is the ordinary one of a machine without an NVIDIA GPU: nothing to report.
    """

    devices: tuple[Device, ...] = ()
    unreadable: tuple[Unreadable, ...] = ()
    driver_version: str | None = None
    failure: str | None = None
    is_driverless: bool = False

    @classmethod
    def from_reading(cls, reading: Mapping[str, Any]) -> Inventory:
        """An inventory from what :func:`autogpu.devices.nvml.read` returned, perhaps by way of JSON."""
        return cls(
            devices=tuple(_device(fields) for fields in reading["devices"]),
            unreadable=tuple(Unreadable(**fields) for fields in reading["unreadable"]),
            driver_version=reading["driver_version"],
            failure=reading["failure"],
            is_driverless=reading["is_driverless"],
        )


def _device(fields: Mapping[str, Any]) -> Device:
    values = dict(fields)
    for key in ("compute_processes", "graphics_processes"):
        if values[key] is not None:
            values[key] = tuple(Process(pid, used) for pid, used in values[key])
    return Device(**values)
