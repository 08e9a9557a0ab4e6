"""Sentences about single GPUs: their names, their jobs and readings, and the obstacles to their use."""

from __future__ import annotations

from typing import Any, Callable, Iterable, Sequence

from autogpu.devices.model import Device, FailureCause, Inventory, UnreadableDevice
from autogpu.reporting.memory import took
from autogpu.selection.decision import Decision
from autogpu.selection.jobs import unmanaged_processes
from autogpu.selection.model import Candidate, Claim, LastRuns, Obstacle, Rejection
from autogpu.text import GIB, counted, listed, printable, size

# A message names at most this many GPUs, jobs or processes; ``autogpu status`` shows all.
MOST = 3

AWAITED = "a job in the queue waits for this GPU"

_OBSTACLES = {
    Obstacle.NOT_AMONG_DEVICES: "not among select.devices",
    Obstacle.EXCLUDED: "excluded by select.exclude",
    Obstacle.SMALL_CARD: "a small card, used only without larger ones",
    Obstacle.MIG_WITHOUT_INSTANCE: "in MIG mode, and has no instance here",
    Obstacle.PROHIBITED: "its compute mode is PROHIBITED",
    Obstacle.EXCLUSIVE: "its compute mode is EXCLUSIVE and another process uses it",
}


def gpu_names(labels: Iterable[object]) -> str:
    """Return ``GPU 2``, ``GPU 2 and GPU 3``, or ``GPU 2, GPU 3 and GPU 0:1``."""
    return listed([f"GPU {label}" for label in labels])


def labels(devices: Iterable[Device]) -> str:
    """Return the names of GPUs by their labels, as :func:`gpu_names` does."""
    return gpu_names(device.label for device in devices)


def are(count: int) -> str:
    return "is" if count == 1 else "are"


def some(reasons: Sequence[str]) -> str:
    """Return the first reasons in one line, and how many more there are."""
    if len(reasons) > MOST:
        reasons = [*reasons[: MOST - 1], f"and {len(reasons) - MOST + 1} more"]
    return "; ".join(reasons)


def free_memory(device: Device) -> str:
    free = device.memory_free_bytes
    total = device.memory_total_bytes
    if free is None or total is None:
        return "memory unknown"
    return f"{free / GIB:.1f} of {size(total)} free"


def health_faults(device: Device) -> tuple[str, ...]:
    """Return the faults of a GPU's memory."""
    faults = (
        (device.remapping_failed, "row remapping failed"),
        (device.remapping_pending, "row remapping pending until a reset"),
        (device.retirement_pending, "page retirement pending until a reset"),
        (device.uncorrected_errors, f"{counted(device.uncorrected_errors, 'uncorrectable memory error')} since boot"),
    )
    return tuple(words for is_there, words in faults if is_there)


def occupancy(device: Device, claims: Sequence[Claim] = (), own_pid: int | None = None) -> str:
    """Return the users and readings of a GPU: ``pid 4242 (no claim), 93 % busy, 8.5 of 11.0 GiB free``."""
    return ", ".join([*health_faults(device), _users(device, claims, own_pid), free_memory(device)])


def _users(device: Device, claims: Sequence[Claim], own_pid: int | None) -> str:
    parts = []
    if claims:
        parts.append("claimed by " + _and_more(claims, _holder_name))
    unmanaged = [process.pid for process in unmanaged_processes(device, claims, own_pid)]
    if unmanaged:
        parts.append(f"{'pid' if len(unmanaged) == 1 else 'pids'} {_and_more(unmanaged)} (no claim)")
    busy = device.utilization_percent
    parts.append("utilization unknown" if busy is None else f"{busy} % busy")
    return ", ".join(parts)


def users(candidate: Candidate, own_pid: int | None) -> str:
    """Return the jobs and processes on a GPU that a process shares, and how busy the GPU is."""
    return _users(candidate.device, candidate.claims, own_pid)


def candidate_state(candidate: Candidate, own_pid: int | None) -> str:
    """Return the occupancy of a candidate, or a note that a queued job waits for the GPU."""
    if candidate.is_awaited:
        return AWAITED
    return occupancy(candidate.device, candidate.claims, own_pid)


def obstacle(rejection: Rejection) -> str:
    """Return the reason why a process can't use a GPU."""
    if rejection.obstacle in _OBSTACLES:
        return _OBSTACLES[rejection.obstacle]
    need = f"{size(rejection.wanted_bytes)} needed"
    if rejection.obstacle is Obstacle.NEED_ABOVE_TOTAL:
        return f"{need}, the GPU has {size(rejection.available_bytes)}"
    if rejection.available_bytes <= 0:
        return f"{need}, all memory is used or claimed"
    return f"{need}, {size(rejection.available_bytes)} left"


def unreadable(lost: Sequence[UnreadableDevice]) -> str:
    return some([f"GPU {each.index}: {each.reason}" for each in lost])


def no_device(inventory: Inventory) -> str:
    """Return why a process sees no GPU."""
    if inventory.devices:
        return "CUDA_VISIBLE_DEVICES hides every GPU"
    if inventory.unreadable:
        return f"no GPU can be read ({unreadable(inventory.unreadable)})"
    return "no GPU here"


def driver_remedy(inventory: Inventory) -> str:
    """Return what the user can do if no GPU can be read; ``""`` if there is nothing to do."""
    if inventory.failure_cause is FailureCause.PYNVML:
        return "`pip install nvidia-ml-py`"
    if inventory.may_be_busy:
        return "perhaps the driver is just busy: try again when `nvidia-smi` answers"
    if inventory.devices or inventory.has_no_driver:
        return ""
    return "if `nvidia-smi` fails too, tell the administrator"


def each_gpu(decision: Decision, chosen: Sequence[Device] = (), first: str = "taken") -> list[str]:
    """Return one line for each GPU of the pool, best first.

    Args:
        first: The word that marks the chosen GPUs.
    """
    request = decision.request
    own_pid = request.own_pid if request else None
    found = []
    for number, candidate in enumerate(decision.ranking.candidates, start=1):
        found.append((candidate.device, f"choice {number}", _standing(candidate, own_pid)))
    for rejection in decision.ranking.rejected:
        found.append((rejection.device, "not suitable", obstacle(rejection)))
    lines = [f"GPU {d.label}: {first if d in chosen else verdict}: {why}" for d, verdict, why in found]
    if request:
        lines += [f"GPU {lost.index}: not readable: {lost.reason}" for lost in request.inventory.unreadable]
    return [printable(f"  {line}") for line in lines]


def _standing(candidate: Candidate, own_pid: int | None) -> str:
    """Return all that determines the rank of a candidate."""
    tier = candidate.tier.name.lower().replace("_", " ")
    state = f"{tier}, {occupancy(candidate.device, candidate.claims, own_pid)}"
    if candidate.is_awaited:
        state += f", {AWAITED}"
    if candidate.last_runs and not candidate.fits_last_runs:
        state += f"; {_too_little(candidate.free_bytes or 0, candidate.last_runs)}"
    return state


def _too_little(free_bytes: int, runs: LastRuns) -> str:
    return f"{size(max(free_bytes, 0))} neither used nor claimed, but {took(runs)}"


def _holder_name(claim: Claim) -> str:
    return (printable(claim.script, 80) or "a job") + (f" (pid {claim.pids[0]})" if claim.pids else "")


def _and_more(things: Sequence[Any], name: Callable[[Any], str] = str) -> str:
    more = f" and {len(things) - MOST} more" if len(things) > MOST else ""
    return ", ".join(map(name, things[:MOST])) + more
