"""What the fields of a simulated machine may be: sizes, errors, readings, and a check of each value."""

from __future__ import annotations

import dataclasses
import re
from typing import Any, Callable, Mapping, Sequence, Tuple, Union

# What a field may be given as: "24GiB", or a number of bytes.
Size = Union[str, int]

# Of NVML's and CUDA's errors, those that are told of real machines.
NVML_ERRORS = {
    "NO_PERMISSION": 4,
    "DRIVER_NOT_LOADED": 9,
    "TIMEOUT": 10,
    "GPU_IS_LOST": 15,
    "RESET_REQUIRED": 16,
    "LIB_RM_VERSION_MISMATCH": 18,
    "UNKNOWN": 999,
}
CUDA_ERRORS = {"NO_DEVICE": 100, "SYSTEM_DRIVER_MISMATCH": 803, "UNKNOWN": 999}
# Instead of an error: never answer, or take the process down.
HANG, CRASH = -1, -2
COMPUTE_MODES = ("default", "exclusive_process", "prohibited")
DENIED = ("refuse", "omit")
READINGS = (
    *("name", "uuid", "pci", "memory", "utilization", "samples", "processes", "graphics_processes", "process_memory"),
    *("compute_mode", "temperature", "power", "p2p", "topology"),
)
# What NVML says of a GPU that is not well.
HEALTH = ("row_remapping_pending", "row_remapping_failed", "page_retirement_pending")
UNITS = {"": 1, "B": 1, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}
MOST_GPUS, MOST_SAMPLES, MOST_PROCESSES, MOST_LINKS, MOST_INSTANCES = 64, 64, 64, 18, 7
SAMPLES_OF_CONSTANT_LOAD = 10
# Linux's PID_MAX_LIMIT. A pid that a process of this machine can get would one day be that of a job on the server.
MOST_PROCESS_ID = 4 * 1024 * 1024


Rule = Tuple[Callable[[Any], bool], str]


class FleetError(ValueError):
    """A fleet that can't be: says which key, and what it may be."""


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


def is_list_of(value: Any, is_item: Callable[[Any], bool], most: int) -> bool:
    return isinstance(value, (list, tuple)) and len(value) <= most and all(map(is_item, value))


def _is_holdings(value: Any) -> bool:
    return (
        isinstance(value, Mapping)
        and len(value) <= MOST_PROCESSES
        and all(_is_whole(pid, MOST_PROCESS_ID + 1, 2**31) and _is_size(memory) for pid, memory in value.items())
    )


def is_text(pattern: str) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, str) and re.fullmatch(pattern, value) is not None


_is_address = is_text(r"([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.0)?")


def _one_of(*words: str) -> Rule:
    return lambda value: isinstance(value, str) and value in words, f"one of {', '.join(words)}"


def _out_of(words: Sequence[str]) -> Rule:
    return lambda value: is_list_of(value, words.__contains__, len(words)), f"a list out of {', '.join(words)}"


def _fault_out_of(errors: Mapping[str, int]) -> Rule:
    is_right, _ = _one_of("", "hang", "crash", *errors)
    return is_right, f'"", "hang", "crash" or one of {", ".join(errors)}'


_SIZE = (_is_size, 'a size such as "24GiB", "512MiB" or a number of bytes')
_FLAG = (lambda value: isinstance(value, bool), "true or false")
_HOLDINGS = (
    _is_holdings,
    f'at most {MOST_PROCESSES} pids above {MOST_PROCESS_ID}, each with its memory, such as {{ 5004242 = "2GiB" }}',
)
RULES: Mapping[str, Rule] = {
    "driver": (is_text(r"[\w.]{1,31}"), 'a version such as "550.54.15"'),
    "cuda": (is_text(r"\d+\.\d+"), 'a version such as "12.4"'),
    "context": _SIZE,
    "nvml": _fault_out_of(NVML_ERRORS),
    "cuda_init": _fault_out_of(CUDA_ERRORS),
    "compute_mode": _one_of(*COMPUTE_MODES),
    "hide_processes": _FLAG,
    "unsupported": _out_of(READINGS),
    "ecc": _FLAG,
    "uncorrected_errors": (lambda value: _is_whole(value, 0, 2**31 - 1), "a whole number"),
    "health": _out_of(HEALTH),
    "device_files": (is_text(r"(/[^\n]{1,1022})?"), 'a path from the root of up to 1023 characters, or ""'),
    "denied": _one_of(*DENIED),
    "name": (is_text(r"[^\n]{1,95}"), "text of up to 95 characters"),
    "memory": _SIZE,
    "used": _SIZE,
    "utilization": (_is_percent, "a whole number from 0 to 100"),
    "utilization_samples": (
        lambda value: is_list_of(value, _is_percent, MOST_SAMPLES),
        f"a list of up to {MOST_SAMPLES} whole numbers from 0 to 100",
    ),
    "processes": _HOLDINGS,
    "graphics": _HOLDINGS,
    "compute_capability": (is_text(r"\d+\.\d+"), 'text such as "7.5"'),
    "multiprocessors": (lambda value: _is_whole(value, 1, 9999), "a whole number above 0"),
    "speed": (lambda value: _is_whole(value, 0, 2**31 - 1), "a whole number, 0 to derive it"),
    "uuid": (
        is_text(r"(GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12})?"),
        'a UUID such as "GPU-5d0f8a3c-1111-2222-3333-444444444444", or "" to derive it',
    ),
    "nvlinks": (
        lambda value: is_list_of(value, _is_address, MOST_LINKS),
        f'a list of up to {MOST_LINKS} addresses such as "0000:05:00.0", "" for a link that leads nowhere',
    ),
    "path": (is_text(r"(\d{1,6}(/\d{1,6}){0,4})?"), 'up to five numbers such as "0/1/4", or "" for none'),
    "pci": (_is_address, 'an address such as "0000:05:00.0", or "" to derive it'),
    "mig": (
        lambda value: value is None or (isinstance(value, (list, tuple)) and len(value) <= MOST_INSTANCES),
        f'a list of up to {MOST_INSTANCES} profiles such as ["3g.20gb", "1g.5gb"]',
    ),
    "profile": (lambda value: isinstance(value, str), 'a profile such as "1g.5gb", or ""'),
    "gpus": (lambda value: isinstance(value, tuple), "a tuple of Gpu"),
}
UUID_OF_INSTANCE = (
    is_text(r"(MIG-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12})?"),
    'a UUID such as "MIG-5d0f8a3c-1111-2222-3333-444444444444", or "" to derive it',
)


def check(described: Any, **own_rules: Rule) -> None:
    """Raise for the first field of a dataclass that can't be; ``own_rules`` are those of its kind alone.

    Raises:
        FleetError: One line that names the field.
    """
    for each in dataclasses.fields(described):
        is_right, allowed = own_rules.get(each.name) or RULES[each.name]
        value = getattr(described, each.name)
        if not is_right(value):
            raise FleetError(f"{each.name}: {value!r} is not {allowed}")
