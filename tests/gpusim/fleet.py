"""Description of a simulated machine (``Fleet``, ``Gpu``), and its reader for TOML files."""

from __future__ import annotations

import dataclasses
import re
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Mapping, Sequence

from tests.gpusim import mig
from tests.gpusim.fields import (
    CRASH,
    CUDA_ERRORS,
    HANG,
    MOST_GPUS,
    NVML_ERRORS,
    SAMPLES_OF_CONSTANT_LOAD,
    FleetError,
    Size,
    check,
    size_bytes,
)

__all__ = ["Device", "Fleet", "FleetError", "Gpu", "Instance", "Size", "read_fleet", "size_bytes"]


@dataclass(frozen=True)
class Instance:
    """A MIG instance of a card.

    Attributes:
        profile: Size of the instance, such as ``"1g.5gb"``. ``mig.CARDS`` lists the profiles of each card. ``""`` is an
            index without an instance.
        uuid: ``""`` derives a UUID from the positions of the card and the instance.
        nvml: Fault of the instance, as in ``Gpu``. A fault of the card applies to its instances too.
    """

    profile: str = ""
    used: Size = 0
    processes: Mapping[int, Size] = field(default_factory=dict)
    uuid: str = ""
    nvml: str = ""

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True)
class Gpu:
    """A simulated GPU and the load of other users. ``lab.toml`` explains the fields. Pass them by name.

    Attributes:
        speed: Rank in CUDA's own order. 0 derives it from ``compute_capability`` and ``multiprocessors``.
        nvlinks: PCI address at the other end of each NVLink. ``()`` is a GPU without NVLink.
        path: Up to five numbers on the way from the machine to the GPU. NVML's common ancestor of two GPUs follows from
            the first numbers that are equal: none is SYSTEM, one is NODE, then HOSTBRIDGE, MULTIPLE, SINGLE, and all
            five are INTERNAL. With ``""`` NVML answers NOT_SUPPORTED.
        unsupported: Readings, out of ``READINGS``, that NVML answers with NOT_SUPPORTED.
        mig: ``None`` if the card is not in MIG mode. Else its instances in the order of their index: each is a profile
            of the card (``mig.CARDS``) or an ``Instance``. ``""`` is an index without an instance, as after an instance
            was destroyed; ``()`` is MIG mode without instances. The compute processes of other users are then fields of
            the instances and not of the card.
    """

    name: str = "NVIDIA TITAN RTX"
    memory: Size = "24GiB"
    used: Size = 0
    utilization: int = 0
    utilization_samples: Sequence[int] = ()
    processes: Mapping[int, Size] = field(default_factory=dict)
    graphics: Mapping[int, Size] = field(default_factory=dict)
    compute_capability: str = "7.5"
    multiprocessors: int = 72
    speed: int = 0
    uuid: str = ""
    pci: str = ""
    nvlinks: Sequence[str] = ()
    path: str = ""
    compute_mode: str = "default"
    nvml: str = ""
    hide_processes: bool = False
    unsupported: Sequence[str] = ()
    ecc: bool = False
    uncorrected_errors: int = 0
    health: Sequence[str] = ()
    mig: Sequence[str | Instance] | None = None

    def __post_init__(self) -> None:
        check(self)
        if self.mig is not None:
            object.__setattr__(self, "mig", self.instances)
            _check_mig(self)

    @property
    def memory_bytes(self) -> int:
        return size_bytes(self.memory)

    @property
    def used_bytes(self) -> int:
        return size_bytes(self.used)

    @property
    def instances(self) -> tuple[Instance, ...]:
        return tuple(each if isinstance(each, Instance) else Instance(each) for each in self.mig or ())

    @property
    def samples(self) -> tuple[int, ...]:
        """Utilization in percent, oldest first."""
        return tuple(self.utilization_samples) or (self.utilization,) * SAMPLES_OF_CONSTANT_LOAD


@dataclass(frozen=True)
class Device:
    """A MIG instance on its card, as programs see it.

    Attributes:
        card: Position of the card among the GPUs of the fleet.
        index: Index of the instance on the card.
        number: Number of the instance in the simulation, which numbers all cards first.
    """

    card: int
    index: int
    number: int
    instance: Instance
    name: str
    uuid: str
    gpu_instance: int
    profile: mig.Profile

    @property
    def memory_bytes(self) -> int:
        return self.profile.memory_mib << 20


@dataclass(frozen=True)
class Fleet:
    """The whole simulated machine; ``lab.toml`` explains its fields.

    Attributes:
        gpus: GPUs in PCI order, which is NVML's order.
        driver: Version of the driver. CUDA lists MIG instances differently before and since R570.
        cuda: CUDA version of the driver. The version of a CUDA library depends on the name by which it is opened.

    A MIG instance has a file in ``device_files`` too: ``nvidia-caps/gpu0/gi2/access`` for GPU instance 2 of the first
    card. A process that can't open this file is denied the instance, and NVML renumbers the others. A process needs
    ``nvidia-caps/monitor`` to read the memory and the processes of a whole card in MIG mode. A container with one
    instance has only the files of the card and of the instance.
    """

    gpus: tuple[Gpu, ...] = ()
    driver: str = "580.95.05"
    cuda: str = "13.2"
    context: Size = "256MiB"
    nvml: str = ""
    cuda_init: str = ""
    device_files: str = ""
    denied: str = "refuse"

    def __post_init__(self) -> None:
        check(self)
        if len(self.gpus) > MOST_GPUS:
            raise FleetError(f"gpu: {len(self.gpus)} GPUs, {MOST_GPUS} can be simulated")
        object.__setattr__(self, "gpus", _with_addresses(self.gpus))
        if len(self.instances) > MOST_GPUS:
            raise FleetError(f"mig: {len(self.instances)} instances, {MOST_GPUS} can be simulated")

    @property
    def instances(self) -> tuple[Device, ...]:
        found: list[Device] = []
        for card, gpu in enumerate(self.gpus):
            there = [(index, each) for index, each in enumerate(gpu.instances) if each.profile]
            profiles = [mig.CARDS[gpu.name][each.profile] for _, each in there]
            for (index, each), profile, gpu_instance in zip(there, profiles, mig.numbers(profiles)):
                name = f"{gpu.name} MIG {each.profile}"
                number = len(self.gpus) + len(found)
                found.append(Device(card, index, number, each, name, each.uuid, gpu_instance, profile))
        return tuple(found)

    def text(self) -> str:
        parts = [
            _lines(
                driver=self.driver,
                cuda_version=_cuda_number(self.cuda),
                context_bytes=size_bytes(self.context),
                nvml_fault=_fault(self.nvml, NVML_ERRORS),
                cuda_fault=_fault(self.cuda_init, CUDA_ERRORS),
                device_files=self.device_files,
                omits_denied=self.denied == "omit",
            )
        ]
        for gpu in self.gpus:
            own = ("name", "uuid", "path", "multiprocessors", "speed", "ecc", "uncorrected_errors", "health")
            described = _lines(
                **{name: getattr(gpu, name) for name in own},
                nvlinks=[end or "-" for end in gpu.nvlinks],
                graphics=_holdings(gpu.graphics),
                utilization_samples=gpu.samples,
                can_mig=gpu.name in mig.CARDS,
                in_mig_mode=gpu.mig is not None,
            )
            parts += ["[gpu]", described, _lines_of_both(gpu, gpu)]
        for each in self.instances:
            described = _lines(
                card=each.card,
                mig_index=each.index,
                gpu_instance=each.gpu_instance,
                name=each.name,
                uuid=each.uuid,
                multiprocessors=each.profile.multiprocessors,
            )
            parts += ["[instance]", described, _lines_of_both(self.gpus[each.card], each)]
        return "\n".join(parts) + "\n"


def _lines_of_both(card: Gpu, part: Gpu | Device) -> str:
    """Return the lines that cards and instances have in common, for a card or one of its instances."""
    loaded = part.instance if isinstance(part, Device) else part
    return _lines(
        memory_bytes=part.memory_bytes,
        used_bytes=size_bytes(loaded.used),
        processes=_holdings(loaded.processes),
        nvml_fault=_fault(loaded.nvml, NVML_ERRORS),
        pci=card.pci,
        compute_capability=card.compute_capability,
        compute_mode=card.compute_mode,
        hide_processes=card.hide_processes,
        unsupported=sorted(card.unsupported),
    )


def _lines(**values: Any) -> str:
    return "\n".join(f"{key} = {_in_text(value)}" for key, value in values.items())


def _in_text(value: Any) -> str:
    if isinstance(value, bool):
        return str(int(value))
    return ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def read_fleet(path: Path) -> Fleet:
    """Return the fleet that a TOML file such as ``lab.toml`` describes.

    Raises:
        FleetError: The description is invalid. The message is one line with the file and the key.
        OSError: The file can't be read.
    """
    # Import here, because some Pythons that simulate a fleet have no TOML parser.
    try:
        import tomllib as toml
    except ImportError:
        import tomli as toml
    try:
        described = toml.loads(path.read_text(encoding="utf-8"))
    except (toml.TOMLDecodeError, UnicodeDecodeError) as error:
        raise FleetError(f"{path}: {error}") from None
    tables = described.pop("gpu", [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise FleetError(f"{path}: gpu: write each GPU as a table [[gpu]]")
    gpus = []
    for position, table in enumerate(tables):
        _read_pids(table)
        where = f"{path}: gpu {position}"
        if isinstance(table.get("mig"), list):
            table["mig"] = [_instance_from(each, f"{where}: mig {index}") for index, each in enumerate(table["mig"])]
        gpus.append(_from_table(Gpu, table, where))
    fleet: Fleet = _from_table(Fleet, {**described, "gpus": tuple(gpus)}, str(path))
    return fleet


def _from_table(kind: type[Any], table: Mapping[str, Any], where: str) -> Any:
    names = [each.name for each in dataclasses.fields(kind) if each.name != "gpus"]
    for key in table:
        if key not in names and key != "gpus":
            raise FleetError(f"{where}: {key}: no such key; there are {', '.join(names)}")
    try:
        return kind(**table)
    except FleetError as error:
        raise FleetError(f"{where}: {error}") from None


def _instance_from(described: Any, where: str) -> Any:
    if not isinstance(described, dict):
        return described
    _read_pids(described)
    return _from_table(Instance, described, where)


def _read_pids(table: dict[str, Any]) -> None:
    for key in ("processes", "graphics"):
        if isinstance(table.get(key), dict):
            table[key] = {_pid(pid): memory for pid, memory in table[key].items()}


def _pid(text: str) -> Any:
    # TOML's keys are text. The check of the field reports a key that is not a number.
    return int(text) if text.isdecimal() else text


def _with_addresses(gpus: Sequence[Gpu]) -> tuple[Gpu, ...]:
    placed: list[Gpu] = []
    before = (0, 0, 0)
    for position, gpu in enumerate(gpus):
        derived = f"{before[0]:04x}:{before[1] + 1:02x}:00.0"
        pci = gpu.pci or derived
        here = tuple(int(part, 16) for part in re.split(r"[:.]", pci)[:3])
        if here <= before:
            raise FleetError(f"gpu {position}: pci: {pci} is not after that of the GPU before")
        name = gpu.uuid or f"GPU-{uuid.uuid5(uuid.NAMESPACE_URL, f'gpusim:{position}')}"
        if name in [earlier.uuid for earlier in placed]:
            raise FleetError(f"gpu {position}: uuid: {name} is another GPU's already")
        cut = None if gpu.mig is None else [_named(each, position, index) for index, each in enumerate(gpu.instances)]
        placed.append(dataclasses.replace(gpu, pci=pci, uuid=name, mig=cut))
        before = (here[0], here[1], here[2])
    return tuple(placed)


def _named(instance: Instance, position: int, index: int) -> Instance:
    derived = f"MIG-{uuid.uuid5(uuid.NAMESPACE_URL, f'gpusim:{position}:{index}')}"
    return dataclasses.replace(instance, uuid=instance.uuid or derived)


def _holdings(holdings: Mapping[int, Size]) -> list[str]:
    return [f"{pid}:{size_bytes(memory)}" for pid, memory in holdings.items()]


def _fault(name: str, errors: Mapping[str, int]) -> int:
    return {"": 0, "hang": HANG, "crash": CRASH, **errors}[name]


def _cuda_number(version: str) -> int:
    major, minor = version.split(".")
    return int(major) * 1000 + int(minor) * 10


def _check_mig(gpu: Gpu) -> None:
    profiles = mig.CARDS.get(gpu.name)
    if profiles is None:
        raise FleetError(f"mig: nothing is known of how {gpu.name} is cut; there are {', '.join(mig.CARDS)}")
    names = [each.profile for each in gpu.instances if each.profile]
    for name in names:
        if name not in profiles:
            raise FleetError(f"mig: {name!r} is no profile of {gpu.name}; there are {', '.join(profiles)}")
    if not mig.fits([profiles[name] for name in names]):
        raise FleetError(f"mig: {', '.join(names)} do not fit on one {gpu.name}")
    if gpu.processes or gpu.graphics:
        raise FleetError(
            "processes: on a card in MIG mode they are on its instances: mig = [{ profile = ..., processes = ... }]"
        )
