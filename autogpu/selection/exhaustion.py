"""The facts of an out-of-memory error on a GPU, and the advice that fits it. Pure functions."""

from __future__ import annotations

import enum
import sys

from autogpu.caps import Cap, CapCause
from autogpu.devices.model import Device
from autogpu.frozen import Value
from autogpu.selection.model import SelectionRequest
from autogpu.text import GIB, whole_gib


class Remedy(enum.Enum):
    """The advice to the user after an out-of-memory error."""

    NONE = enum.auto()  # the process needs more than the GPU has
    BY_CAP = enum.auto()  # it depends on the cause of the cap
    OTHER_GPU = enum.auto()  # use the idle GPU instead of the named one
    STATUS = enum.auto()  # look at the other jobs in `autogpu status`
    OWN_GPU = enum.auto()  # wait for a GPU that no other job uses
    NEED = enum.auto()  # state the need, so that enough memory is reserved


class Neighbour(Value):
    """Another job or process on the GPU.

    Attributes:
        uid: ``None`` if the owner is unknown.
        pid: ``None`` if the driver does not show the processes.
        script: Name of the script, for a job with a lease.
    """

    used_bytes: int
    uid: int | None = None
    pid: int | None = None
    script: str | None = None


class Exhaustion(Value):
    """An out-of-memory error of a process on a GPU.

    Attributes:
        cap: The most that the process may allocate on the GPU; ``None`` if nothing limits it.
        held_bytes: Memory that the process used, with its CUDA context; 0 if the driver does not report it.
        asked_bytes: Size of the allocation that failed; 0 if the error does not contain it.
        needed_bytes: Memory that the process would have used with this allocation; 0 if unknown.
        others: The other jobs and processes on the GPU, the largest first.
        next_waits: True if the script's next run joins other jobs only on a GPU with ``needed_bytes`` free.
    """

    device: Device
    cap: Cap | None
    held_bytes: int
    asked_bytes: int
    needed_bytes: int
    others: tuple[Neighbour, ...]
    remedy: Remedy
    next_waits: bool = False


def remedy_for(
    cap: Cap | None, needed_bytes: int, device: Device, request: SelectionRequest, *, is_child: bool, names_busy: bool
) -> Remedy:
    total_bytes = device.memory_total_bytes or sys.maxsize
    if needed_bytes > total_bytes:
        return Remedy.NONE
    if cap is not None and cap.cause is not CapCause.SHARED:
        return Remedy.BY_CAP
    if names_busy:
        return Remedy.OTHER_GPU
    # A child process stays on its job's GPU, and a job whose GPUs were named gets no others. If the need is claimed
    # already, it does not help to state it.
    has_no_other = is_child if cap is None else request.names_cards
    if has_no_other or needed_bytes <= (request.demand.bytes or 0):
        return Remedy.STATUS
    # A need is stated in whole GiB, and rounded up it can exceed the GPU's memory.
    return Remedy.OWN_GPU if whole_gib(needed_bytes) * GIB > total_bytes else Remedy.NEED
