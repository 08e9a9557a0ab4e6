"""Sentences about a host that ``autogpu status`` shows on a terminal and on a web page.

Every name in a sentence is printable.
"""

from __future__ import annotations

import re
from typing import Iterator, Sequence

from autogpu.frozen import Value
from autogpu.reporting.gpus import gpu_names
from autogpu.status.model import (
    TAKEABLE,
    GpuStatus,
    HostStatus,
    JobStatus,
    UnmanagedProcess,
    UnreadableGpu,
    WaiterStatus,
)
from autogpu.text import GIB, counted, listed, printable, size, span

# Terms in the output of ``autogpu status``, and their meanings.
TERMS = {
    "claimed": "memory reserved for autogpu's jobs, in GiB",
    "utilization": "how much of the last few seconds the GPU spent computing",
    "awaited": "free, but a job in the queue will get it first",
    "excluded": "not used by scripts started here (select.devices, select.exclude)",
    "idle lease": "held for half an hour or more, and nothing computes",
    "no claim": "a process that autogpu does not manage",
    "best effort": "a job without reserved memory, which uses what others leave free",
}

QUEUE_HEADING = "Waiting for a GPU, in this order:"

_STATES = {"split": "MIG", "no_instance": "MIG, no instance"}


class Occupant(Value):
    """Line about a job or a process on a GPU.

    Attributes:
        user: Owner of the job or process; ``""`` if the line sums up several.
        activity: ``"active"``, ``"idle"``, or ``""`` if unknown.
        is_idle_lease: True if the job has held the GPU for long and nothing computes.
        printed: What autogpu printed when the job started, if it is the reader's own job.
        pid: Of a job; ``None`` for other lines.
    """

    user: str
    words: str
    activity: str = ""
    is_idle_lease: bool = False
    printed: tuple[str, ...] = ()
    pid: int | None = None


def about_host(host: HostStatus) -> list[str]:
    """Return texts on the driver, the free GPUs and the waiting jobs; omit each of the three that the host lacks."""
    about = (
        f"driver {printable(host.driver_version, 32)}" if host.driver_version else "",
        _free_gpus(host) if host.gpus else "",
        f"{counted(len(host.queue), 'job')} waiting" if host.queue else "",
    )
    return list(filter(None, about))


def _free_gpus(host: HostStatus) -> str:
    # If an engine granted GPUs, only those count.
    states = [gpu.state for gpu in host.gpus if gpu.uuid in host.granted or not host.engine]
    usable = [state for state in states if state in TAKEABLE]
    excluded = _further(states, "excluded")
    if not usable and not host.engine:
        return f"no usable GPU{excluded}"
    free = states.count("free")
    found = f"{free} of {counted(len(usable), 'GPU')} free"
    if host.engine:
        found = f"{free} free of {counted(len(usable), 'GPU')} granted by {printable(host.engine, 32)}"
    return f"{found}{_further(states, 'awaited')}{excluded}"


def _further(states: Sequence[str], state: str) -> str:
    """Return the number of GPUs in this state, as the end of a sentence; ``""`` if there are none."""
    count = states.count(state)
    return f", {count} {state}" if count else ""


def driver_failure(host: HostStatus) -> str:
    """Return why the driver can't be read; ``""`` if it can."""
    if not host.failure:
        return ""
    return printable(host.failure) if host.has_driver else "No NVIDIA driver on this host."


def claim_problems(host: HostStatus) -> Iterator[str]:
    """Yield the problems because of which claims can't be read or made on the host."""
    folder = host.lease_folder
    unreadable = host.unreadable_leases
    if folder and unreadable:
        first = unreadable[0]
        owner = f" of {printable(first.user)}" if first.user else ""
        further = f" and {len(unreadable) - 1} more" if len(unreadable) > 1 else ""
        yield (
            f"GPUs may be claimed although they look free, because files in {printable(folder.path)} can't be read: "
            f"{printable(first.name)}{owner} ({printable(first.reason)}){further}; ask the owner or root to remove them"
        )
    if host.lease_folder_problem:
        yield f"Jobs of this user can't claim GPUs: {printable(host.lease_folder_problem, 2000)}"


def short_name(gpu: GpuStatus) -> str:
    """Return the name of a GPU without ``NVIDIA`` and ``GeForce``, such as ``RTX 4090``."""
    return re.sub("NVIDIA |GeForce ", "", printable(gpu.name, 64))


def state_words(gpu: GpuStatus) -> str:
    """Return the state of a GPU. A newer autogpu on another host may report a state that this version lacks."""
    return _STATES.get(gpu.state) or printable(gpu.state, 20).replace("_", " ")


def lost_gpu(lost: UnreadableGpu) -> str:
    return f"not readable: {printable(lost.reason)}"


def health_words(gpu: GpuStatus) -> str:
    """Return the faults of a GPU; ``""`` if it is healthy."""
    return f"not healthy: {printable(listed(gpu.health_problems))}" if gpu.health_problems else ""


def memory_words(gpu: GpuStatus) -> str:
    claimed = f", {gib(gpu.claimed_bytes)} claimed" if gpu.claimed_bytes else ""
    return f"{gib(gpu.memory_used_bytes)} of {gib(gpu.memory_total_bytes)} GiB{claimed}"


def sensor_words(gpu: GpuStatus) -> str:
    """Return the temperature and the power of a GPU; omit those that the driver does not report."""
    readings = ((gpu.temperature_celsius, "°C"), (gpu.power_watts, "W"))
    return ", ".join(f"{reading} {unit}" for reading, unit in readings if reading is not None)


def bar_shares(gpu: GpuStatus) -> tuple[float, float] | None:
    """Return the shares of memory in use and of memory claimed beyond that; ``None`` if they are unknown."""
    used = gpu.memory_used_bytes
    total = gpu.memory_total_bytes
    if used is None or not total:
        return None
    unused_claims = sum(max(job.claim_bytes - (job.used_bytes or 0), 0) for job in gpu.jobs)
    return used / total, unused_claims / total


def occupants(gpu: GpuStatus, most_jobs: int, most_processes: int) -> Iterator[Occupant]:
    """Yield a line for each job and each unmanaged process, and one line for those beyond the limits."""
    yield from map(_job, gpu.jobs[:most_jobs])
    if len(gpu.jobs) > most_jobs:
        yield Occupant("", f"and {counted(len(gpu.jobs) - most_jobs, 'more job')}")
    processes = sorted(gpu.unmanaged_processes, key=lambda process: -(process.used_bytes or 0))
    yield from map(_process, processes[:most_processes])
    rest = processes[most_processes:]
    if rest:
        total = sum(process.used_bytes or 0 for process in rest)
        more = counted(len(rest), "more process", "more processes")
        yield Occupant("", f"and {more} not managed by autogpu, {size(total)}")
    if gpu.unlisted_bytes:
        yield Occupant("", f"{size(gpu.unlisted_bytes)} used by processes that the driver does not list")


def _job(job: JobStatus) -> Occupant:
    members = "" if job.processes == 1 else f", {job.processes} processes"
    what = f"{printable(job.script, 40) or '?'} (pid {job.pid or '?'}{members})"
    is_active = False if job.is_idle else job.is_active
    activity = "" if is_active is None else "active" if is_active else "idle"
    words = f"{what} {_memory(job)}{_lasting(job.age_s)}"
    return Occupant(printable(job.user, 32), words, activity, job.is_idle, job.printed, job.pid)


def _process(process: UnmanagedProcess) -> Occupant:
    kind = "desktop" if process.is_graphics else "no claim"
    uses = "" if process.used_bytes is None else f", uses {size(process.used_bytes)}"
    what = f"{printable(process.program, 32)} (pid {process.pid})" if process.program else f"pid {process.pid}"
    return Occupant(printable(process.user or "unknown", 32), f"{what}{uses}, {kind}")


def waiter_words(waiter: WaiterStatus, gpus: Sequence[GpuStatus]) -> str:
    """Return the line of a waiting job: its owner, script, wanted GPUs and waiting time."""
    wanted = f"{counted(waiter.count, 'GPU')}, whole or shared"
    if not waiter.joins:
        wanted = counted(waiter.count, "whole GPU")
    if waiter.bytes_per_gpu is not None:
        wanted = f"{counted(waiter.count, 'GPU')} with {size(waiter.bytes_per_gpu)}{' each' * (waiter.count > 1)}"
    wanted += _only_words(waiter, gpus)
    stopped = ", unresponsive: passed over" if waiter.is_unresponsive else ""
    who = f"{printable(waiter.user, 32)} {printable(waiter.script, 40) or '?'} (pid {waiter.pid or '?'})"
    return f"{who}: {wanted}{_lasting(waiter.waited_s)}{stopped}"


def _only_words(waiter: WaiterStatus, gpus: Sequence[GpuStatus]) -> str:
    """Name the GPUs that a job waits for; ``""`` if it takes any GPU."""
    served = [gpu.label for gpu in gpus if gpu.uuid in waiter.uuids]
    if not waiter.uuids or len(served) == len(gpus):
        return ""
    return f", only {gpu_names(served)}" if served else ", only GPUs that are not shown here"


def _lasting(seconds: float | None) -> str:
    return "" if seconds is None else f", for {span(seconds)}"


def _memory(job: JobStatus) -> str:
    if not job.claim_bytes:
        return "best effort" if job.used_bytes is None else f"best effort, uses {size(job.used_bytes)}"
    if job.used_bytes is None:
        return f"claims {size(job.claim_bytes)}"
    return f"uses {gib(job.used_bytes)} of {size(job.claim_bytes)}"


def gib(size_bytes: int | None) -> str:
    """Return a size in GiB without the unit; ``?`` if it is unknown."""
    return "?" if size_bytes is None else f"{size_bytes / GIB:.1f}"
