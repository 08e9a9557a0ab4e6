"""How a process ran out of a GPU's memory, as facts, and what avoids it. Pure."""

from __future__ import annotations

import enum
import sys

from autogpu.caps import Cap, CapCause
from autogpu.devices.model import Device
from autogpu.frozen import Value
from autogpu.selection.memory import demand_told
from autogpu.selection.model import SelectionRequest
from autogpu.text import GIB, whole_gib


class Remedy(enum.Enum):
    """What avoids the error."""

    NONE = enum.auto()  # the process needs more than the GPU has
    BY_CAP = enum.auto()  # what the cause of the cap suggests
    OTHER_GPU = enum.auto()  # the script named a busy GPU while another is idle
    STATUS = enum.auto()  # to look who is there
    OWN_GPU = enum.auto()  # to wait for a GPU that nobody uses
    NEED = enum.auto()  # to state a need


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
    """How a process ran out of memory on a GPU.

    Attributes:
        cap: What the process may allocate there; ``None`` if nothing limits it.
        held_bytes: What it had, with its CUDA context; 0 if the driver does not tell.
        asked_bytes: What it could not allocate; 0 if the error does not say.
        needed_bytes: What it would have had with that; 0 if that is unknown.
        others: The largest first.
        next_waits: True if the next run of the script joins others only if ``needed_bytes`` are free.
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
    # A child has its job's GPU, and a job whose GPUs were named gets no other. A need that is claimed already does not
    # help either.
    has_no_other = is_child if cap is None else request.names_cards
    if has_no_other or needed_bytes <= (demand_told(request).bytes or 0):
        return Remedy.STATUS
    # No GPU of that kind has so many whole GiB.
    return Remedy.OWN_GPU if whole_gib(needed_bytes) * GIB > total_bytes else Remedy.NEED
