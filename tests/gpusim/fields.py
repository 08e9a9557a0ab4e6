"""Valid values for the fields of a simulated machine, and a check for each field."""

from __future__ import annotations

import dataclasses
import re
from typing import Any, Callable, Mapping, Union

# A text such as "24GiB", or a number of bytes.
Size = Union[str, int]

# The errors of NVML and CUDA that have been reported from real machines.
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
# Faults that return no error code: the call never returns, or the process is aborted.
HANG, CRASH = -1, -2
COMPUTE_MODES = ("default", "exclusive_process", "prohibited")
DENIED = ("refuse", "omit")
READINGS = (
    *("name", "uuid", "pci", "memory", "utilization", "samples", "processes", "graphics_processes", "process_memory"),
    *("compute_mode", "temperature", "power", "p2p", "topology"),
)
# Memory faults that NVML reports for a GPU.
HEALTH = ("row_remapping_pending", "row_remapping_failed", "page_retirement_pending")
UNITS = {"": 1, "B": 1, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}
MOST_GPUS, MOST_SAMPLES, MOST_PROCESSES, MOST_LINKS, MOST_INSTANCES = 64, 64, 64, 18, 7
SAMPLES_OF_CONSTANT_LOAD = 10
# Linux's PID_MAX_LIMIT. Invented pids must be larger: a smaller one could be the pid of a real job on the server.
MOST_PROCESS_ID = 4 * 1024 * 1024


Rule = Callable[[Any], bool]


class FleetError(ValueError):
    """The description of a fleet is invalid. The message names the key and its valid values."""


def size_bytes(size: Size) -> int:
    """Convert a size, such as ``"1.5GiB"`` or ``1610612736``, to bytes.

    Raises:
        FleetError: The size is neither a text of this form nor a number of bytes.
    """
    if isinstance(size, int) and not isinstance(size, bool) and size >= 0:
        return size
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(\w*)\s*", str(size))
    if isinstance(size, bool) or match is None or match.group(2).upper() not in UNITS:
        raise FleetError(f'{size!r} is not a size such as "24GiB", "512MiB" or a number of bytes')
    return int(float(match.group(1)) * UNITS[match.group(2).upper()])


def _is_size(value: Any) -> bool:
    try:
        size_bytes(value)
    except FleetError:
        return False
    return True


def _is_whole(least: int, most: int) -> Rule:
    return lambda value: isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _is_list_of(is_item: Rule, most: int) -> Rule:
    return lambda value: isinstance(value, (list, tuple)) and len(value) <= most and all(map(is_item, value))


def _is_text(pattern: str) -> Rule:
    return lambda value: isinstance(value, str) and re.fullmatch(pattern, value) is not None


def _is_one_of(*words: str) -> Rule:
    return lambda value: isinstance(value, str) and value in words


def _is_holdings(value: Any) -> bool:
    """True if the value maps pids of other users' processes to sizes."""
    is_pid = _is_whole(MOST_PROCESS_ID + 1, 2**31)
    is_short = isinstance(value, Mapping) and len(value) <= MOST_PROCESSES
    return is_short and all(is_pid(pid) and _is_size(memory) for pid, memory in value.items())


_is_flag: Rule = lambda value: isinstance(value, bool)  # noqa: E731
_is_number = _is_whole(0, 2**31 - 1)
_is_percent = _is_whole(0, 100)
_is_address = _is_text(r"([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.0)?")
RULES: Mapping[str, Rule] = {
    "driver": _is_text(r"[\w.]{1,31}"),
    "cuda": _is_text(r"\d+\.\d+"),
    "context": _is_size,
    "nvml": _is_one_of("", "hang", "crash", *NVML_ERRORS),
    "cuda_init": _is_one_of("", "hang", "crash", *CUDA_ERRORS),
    "compute_mode": _is_one_of(*COMPUTE_MODES),
    "hide_processes": _is_flag,
    "unsupported": _is_list_of(_is_one_of(*READINGS), len(READINGS)),
    "ecc": _is_flag,
    "uncorrected_errors": _is_number,
    "health": _is_list_of(_is_one_of(*HEALTH), len(HEALTH)),
    "device_files": _is_text(r"(/[^\n]{1,1022})?"),
    "denied": _is_one_of(*DENIED),
    "name": _is_text(r"[^\n]{1,95}"),
    "memory": _is_size,
    "used": _is_size,
    "utilization": _is_percent,
    "utilization_samples": _is_list_of(_is_percent, MOST_SAMPLES),
    "processes": _is_holdings,
    "graphics": _is_holdings,
    "compute_capability": _is_text(r"\d+\.\d+"),
    "multiprocessors": _is_whole(1, 9999),
    "speed": _is_number,
    "uuid": _is_text(r"((GPU|MIG)-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12})?"),
    "nvlinks": _is_list_of(_is_address, MOST_LINKS),
    "path": _is_text(r"(\d{1,6}(/\d{1,6}){0,4})?"),
    "pci": _is_address,
    "mig": lambda value: value is None or (isinstance(value, (list, tuple)) and len(value) <= MOST_INSTANCES),
    "profile": lambda value: isinstance(value, str),
    "gpus": lambda value: isinstance(value, tuple),
}


def check(described: Any) -> None:
    """Check the value of each field of a dataclass.

    Raises:
        FleetError: A field has an invalid value. The message is one line, which names the first such field.
    """
    for each in dataclasses.fields(described):
        value = getattr(described, each.name)
        if not RULES[each.name](value):
            raise FleetError(f"{each.name} can't be {value!r}; tests/gpusim/lab.toml explains it")
