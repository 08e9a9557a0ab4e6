"""The simulated machine as values: ``Gpu``, ``Fleet``, and reading them from TOML."""

from __future__ import annotations

import dataclasses
import importlib
import re
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, Mapping, Sequence, Union

# What a field may be given as: "24GiB", or a number of bytes.
Size = Union[str, int]

NVML_ERRORS = {
    "UNINITIALIZED": 1,
    "INVALID_ARGUMENT": 2,
    "NOT_SUPPORTED": 3,
    "NO_PERMISSION": 4,
    "NOT_FOUND": 6,
    "INSUFFICIENT_POWER": 8,
    "DRIVER_NOT_LOADED": 9,
    "TIMEOUT": 10,
    "IRQ_ISSUE": 11,
    "CORRUPTED_INFOROM": 14,
    "GPU_IS_LOST": 15,
    "RESET_REQUIRED": 16,
    "OPERATING_SYSTEM": 17,
    "LIB_RM_VERSION_MISMATCH": 18,
    "IN_USE": 19,
    "MEMORY": 20,
    "NO_DATA": 21,
    "INSUFFICIENT_RESOURCES": 23,
    "NOT_READY": 27,
    "GPU_NOT_FOUND": 28,
    "INVALID_STATE": 29,
    "UNKNOWN": 999,
}
CUDA_ERRORS = {
    "NO_DEVICE": 100,
    "SYSTEM_DRIVER_MISMATCH": 803,
    "COMPAT_NOT_SUPPORTED_ON_DEVICE": 804,
    "UNKNOWN": 999,
}
# Instead of an error: never answer, or take the process down.
HANG, CRASH = -1, -2
COMPUTE_MODES = ("default", "exclusive_process", "prohibited")
DENIED = ("refuse", "omit")
READINGS = (
    "name",
    "uuid",
    "pci",
    "memory",
    "utilization",
    "samples",
    "processes",
    "graphics_processes",
    "process_memory",
    "compute_mode",
    "temperature",
    "power",
    "nvlinks",
    "p2p",
    "topology",
)
# What NVML says of a GPU that is not well.
HEALTH = ("row_remapping_pending", "row_remapping_failed", "page_retirement_pending", "thermal_slowdown")
UNITS = {"": 1, "B": 1, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}
MOST_GPUS, MOST_SAMPLES, MOST_PROCESSES, MOST_LINKS = 64, 64, 64, 18
SAMPLES_OF_CONSTANT_LOAD = 10
# Linux's PID_MAX_LIMIT. A pid that a process of this machine can get would one day be that of a job on the server.
MOST_PROCESS_ID = 4 * 1024 * 1024


class FleetError(ValueError):
    """A fleet that can't be: says which key, and what it may be."""


@dataclass(frozen=True)
class Gpu:
    """One simulated GPU, with other people's load on it. Give the fields by name.

    Attributes:
        memory: All of it, as NVML's total.
        used: Held by others, and by no process that is listed.
        utilization: Percent, now and over the last ten seconds.
        utilization_samples: Percent, one a second, instead of ``utilization``; the last one is now.
        processes: Others' compute processes: pid to memory.
        graphics: Others' graphics processes: pid to memory.
        speed: Rank for ``FASTEST_FIRST``, higher is faster; 0 derives it from the two fields above it.
        uuid: ``""`` derives one from the position, the same in each run.
        pci: ``""`` is the bus after the GPU before.
        nvlinks: For each NVLink of the GPU, by its number, the PCI address at the other end: another GPU's, or that of
            an NVSwitch, which is any other; ``""`` for a link that leads nowhere. ``()`` is a GPU without NVLink.
        path: Where the GPU is on PCI Express, from the machine down to it, as numbers: NUMA node, host bridge, first
            and last switch, board; such as ``"0/1/4"``. What two GPUs have in common of it is NVML's common ancestor:
            nothing is SYSTEM, one number NODE, then HOSTBRIDGE, MULTIPLE, SINGLE, and all five INTERNAL. ``""`` is not
            told.
        compute_mode: ``"default"``, ``"exclusive_process"`` or ``"prohibited"``.
        nvml: What every NVML call on this GPU does: ``""`` answers, ``"hang"``, ``"crash"``, or fails with an
            error such as ``"GPU_IS_LOST"``. A context on it then fails (or hangs, crashes) as well, and with
            ``"NO_PERMISSION"`` CUDA doesn't list the GPU at all.
        hide_processes: NVML's process lists are empty, as in containers and WSL2.
        unsupported: Readings that NVML answers with NOT_SUPPORTED, out of ``READINGS``.
        ecc: Whether its memory has error correction; without, NVML has none of what follows but the slowdown.
        uncorrected_errors: Since boot.
        health: What else is wrong with it, out of ``HEALTH``.
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

    def __post_init__(self) -> None:
        _check(self)

    @property
    def memory_bytes(self) -> int:
        return size_bytes(self.memory)

    @property
    def used_bytes(self) -> int:
        return size_bytes(self.used)

    @property
    def samples(self) -> tuple[int, ...]:
        """Utilization in percent, oldest first."""
        return tuple(self.utilization_samples) or (self.utilization,) * SAMPLES_OF_CONSTANT_LOAD


@dataclass(frozen=True)
class Fleet:
    """The whole simulated machine.

    Attributes:
        gpus: In PCI order, which is NVML's.
        driver: The driver's version.
        cuda: The newest version of CUDA that the driver says it serves. Libraries have a version of their own, by
            the name under which they are opened.
        context: What a CUDA context costs each process on each GPU, besides what it allocates.
        nvml: What ``nvmlInit`` does: ``""`` works, ``"hang"``, ``"crash"``, or fails with an error such as
            ``"DRIVER_NOT_LOADED"``.
        cuda_init: The same for ``cuInit``, with CUDA's errors, such as ``"NO_DEVICE"``.
        compute_mode: Of each GPU that says ``"default"``.
        hide_processes: On every GPU.
        unsupported: On every GPU.
        device_files: A folder with ``nvidia0``, ``nvidia1`` and so on, in PCI order. A process that may not open the
            file of a GPU, or for which there is none, is denied that GPU: CUDA doesn't list it. ``""`` denies none.
        denied: What NVML does with such a GPU: ``"refuse"`` counts it and answers with NO_PERMISSION; ``"omit"``
            leaves it out and numbers the others from 0.
    """

    gpus: tuple[Gpu, ...] = ()
    driver: str = "550.54.15"
    cuda: str = "12.4"
    context: Size = "256MiB"
    nvml: str = ""
    cuda_init: str = ""
    compute_mode: str = "default"
    hide_processes: bool = False
    unsupported: Sequence[str] = ()
    device_files: str = ""
    denied: str = "refuse"

    def __post_init__(self) -> None:
        _check(self)
        if len(self.gpus) > MOST_GPUS:
            raise FleetError(f"gpu: {len(self.gpus)} GPUs, {MOST_GPUS} can be simulated")
        object.__setattr__(self, "gpus", _with_addresses(self.gpus))

    def text(self) -> str:
        """The fleet as the simulation reads it (``fleet.c``)."""
        lines = [
            f"driver = {self.driver}",
            f"cuda_version = {_cuda_number(self.cuda)}",
            f"context_bytes = {size_bytes(self.context)}",
            f"nvml_fault = {_fault(self.nvml, NVML_ERRORS)}",
            f"cuda_fault = {_fault(self.cuda_init, CUDA_ERRORS)}",
            f"device_files = {self.device_files}",
            f"omits_denied = {int(self.denied == 'omit')}",
        ]
        for gpu in self.gpus:
            mode = gpu.compute_mode if gpu.compute_mode != "default" else self.compute_mode
            unsupported = sorted({*gpu.unsupported, *self.unsupported})
            lines += [
                "[gpu]",
                f"name = {gpu.name}",
                f"uuid = {gpu.uuid}",
                f"pci = {gpu.pci}",
                f"nvlinks = {','.join(end or '-' for end in gpu.nvlinks)}",
                f"path = {gpu.path}",
                f"memory_bytes = {gpu.memory_bytes}",
                f"used_bytes = {gpu.used_bytes}",
                f"processes = {_holdings(gpu.processes)}",
                f"graphics = {_holdings(gpu.graphics)}",
                f"utilization_samples = {','.join(map(str, gpu.samples))}",
                f"compute_capability = {gpu.compute_capability}",
                f"multiprocessors = {gpu.multiprocessors}",
                f"speed = {gpu.speed}",
                f"compute_mode = {mode}",
                f"nvml_fault = {_fault(gpu.nvml, NVML_ERRORS)}",
                f"hide_processes = {int(gpu.hide_processes or self.hide_processes)}",
                f"unsupported = {','.join(unsupported)}",
                f"ecc = {int(gpu.ecc)}",
                f"uncorrected_errors = {gpu.uncorrected_errors}",
                f"health = {','.join(gpu.health)}",
            ]
        return "\n".join(lines) + "\n"


def size_bytes(size: Size) -> int:
    """``"1.5GiB"`` or ``1610612736`` as bytes.

    Raises:
        FleetError: It is neither.
    """
    if isinstance(size, int) and not isinstance(size, bool) and size >= 0:
        return size
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(\w*)\s*", str(size))
    if isinstance(size, bool) or match is None or match.group(2).upper() not in UNITS:
        raise FleetError(f'{size!r} is not a size such as "24GiB", "512MiB" or a number of bytes')
    return int(float(match.group(1)) * UNITS[match.group(2).upper()])


def read_fleet(path: Path) -> Fleet:
    """The fleet that a TOML file such as ``lab.toml`` describes.

    Raises:
        FleetError: Something is wrong with it; one line that names the file and the key.
        OSError: It can't be read.
    """
    toml = _toml()
    try:
        described = toml.loads(path.read_text(encoding="utf-8"))
    except (toml.TOMLDecodeError, UnicodeDecodeError) as error:
        raise FleetError(f"{path}: {error}") from None
    tables = described.pop("gpu", [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise FleetError(f"{path}: gpu: write each GPU as a table [[gpu]]")
    gpus = []
    for position, table in enumerate(tables):
        for key in ("processes", "graphics"):
            if isinstance(table.get(key), dict):
                table[key] = {_pid(pid): memory for pid, memory in table[key].items()}
        gpus.append(_from_table(Gpu, table, f"{path}: gpu {position}"))
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


def _pid(text: str) -> Any:
    # TOML's keys are text; what is no number is left for the check to name.
    return int(text) if text.isdecimal() else text


def _toml() -> Any:
    try:
        return importlib.import_module("tomllib")
    except ImportError:
        return importlib.import_module("tomli")


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
        placed.append(dataclasses.replace(gpu, pci=pci, uuid=name))
        before = (here[0], here[1], here[2])
    return tuple(placed)


def _holdings(holdings: Mapping[int, Size]) -> str:
    return ",".join(f"{pid}:{size_bytes(memory)}" for pid, memory in holdings.items())


def _fault(name: str, errors: Mapping[str, int]) -> int:
    return {"": 0, "hang": HANG, "crash": CRASH, **errors}[name]


def _cuda_number(version: str) -> int:
    major, minor = version.split(".")
    return int(major) * 1000 + int(minor) * 10


# ---- what each field may be: a test of the value, and the words for it ----


def _is_size(value: Any) -> bool:
    try:
        size_bytes(value)
    except FleetError:
        return False
    return True


def _is_whole(value: Any, least: int, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _is_percent(value: Any) -> bool:
    return _is_whole(value, 0, 100)


def _is_list_of(value: Any, is_item: Callable[[Any], bool], most: int) -> bool:
    return isinstance(value, (list, tuple)) and len(value) <= most and all(map(is_item, value))


def _is_holdings(value: Any) -> bool:
    return (
        isinstance(value, Mapping)
        and len(value) <= MOST_PROCESSES
        and all(_is_whole(pid, MOST_PROCESS_ID + 1, 2**31) and _is_size(memory) for pid, memory in value.items())
    )


def _is_text(pattern: str) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, str) and re.fullmatch(pattern, value) is not None


def _is_one_of(*words: str) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, str) and value in words


_is_address = _is_text(r"([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.0)?")

SIZE = (_is_size, 'a size such as "24GiB", "512MiB" or a number of bytes')
NVML = (
    _is_one_of("", "hang", "crash", *NVML_ERRORS),
    f'"", "hang", "crash" or one of {", ".join(NVML_ERRORS)}',
)
MODE = (_is_one_of(*COMPUTE_MODES), f"one of {', '.join(COMPUTE_MODES)}")
HOLDINGS = (
    _is_holdings,
    f'at most {MOST_PROCESSES} pids above {MOST_PROCESS_ID}, each with its memory, such as {{ 5004242 = "2GiB" }}',
)
FLAG = (lambda value: isinstance(value, bool), "true or false")
MISSING = (
    lambda value: _is_list_of(value, _is_one_of(*READINGS), len(READINGS)),
    f"a list out of {', '.join(READINGS)}",
)
SICKNESSES = (lambda value: _is_list_of(value, _is_one_of(*HEALTH), len(HEALTH)), f"a list out of {', '.join(HEALTH)}")
RULES: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "gpus": (lambda value: _is_list_of(value, lambda gpu: isinstance(gpu, Gpu), 2**31), "a list of Gpu"),
    "driver": (_is_text(r"[\w.]{1,31}"), 'a version such as "550.54.15"'),
    "cuda": (_is_text(r"\d+\.\d+"), 'a version such as "12.4"'),
    "context": SIZE,
    "nvml": NVML,
    "cuda_init": (
        _is_one_of("", "hang", "crash", *CUDA_ERRORS),
        f'"", "hang", "crash" or one of {", ".join(CUDA_ERRORS)}',
    ),
    "compute_mode": MODE,
    "hide_processes": FLAG,
    "unsupported": MISSING,
    "ecc": FLAG,
    "uncorrected_errors": (lambda value: _is_whole(value, 0, 2**31 - 1), "a whole number"),
    "health": SICKNESSES,
    "device_files": (_is_text(r"(/[^\n]{1,1022})?"), 'a path from the root of up to 1023 characters, or ""'),
    "denied": (_is_one_of(*DENIED), f"one of {', '.join(DENIED)}"),
    "name": (_is_text(r"[^\n]{1,95}"), "text of up to 95 characters"),
    "memory": SIZE,
    "used": SIZE,
    "utilization": (_is_percent, "a whole number from 0 to 100"),
    "utilization_samples": (
        lambda value: _is_list_of(value, _is_percent, MOST_SAMPLES),
        f"a list of up to {MOST_SAMPLES} whole numbers from 0 to 100",
    ),
    "processes": HOLDINGS,
    "graphics": HOLDINGS,
    "compute_capability": (_is_text(r"\d+\.\d+"), 'text such as "7.5"'),
    "multiprocessors": (lambda value: _is_whole(value, 1, 9999), "a whole number above 0"),
    "speed": (lambda value: _is_whole(value, 0, 2**31 - 1), "a whole number, 0 to derive it"),
    "uuid": (
        _is_text(r"(GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12})?"),
        'a UUID such as "GPU-5d0f8a3c-1111-2222-3333-444444444444", or "" to derive it',
    ),
    "nvlinks": (
        lambda value: _is_list_of(value, _is_address, MOST_LINKS),
        f'a list of up to {MOST_LINKS} addresses such as "0000:05:00.0", "" for a link that leads nowhere',
    ),
    "path": (_is_text(r"(\d{1,6}(/\d{1,6}){0,4})?"), 'up to five numbers such as "0/1/4", or "" for none'),
    "pci": (
        _is_address,
        'an address such as "0000:05:00.0", or "" to derive it',
    ),
}


def _check(described: Any) -> None:
    for each in dataclasses.fields(described):
        is_right, allowed = RULES[each.name]
        value = getattr(described, each.name)
        if not is_right(value):
            raise FleetError(f"{each.name}: {value!r} is not {allowed}")
