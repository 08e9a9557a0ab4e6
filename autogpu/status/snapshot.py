"""Reading of a host at one moment: the driver, the lease folder, and the names of users and programs."""

from __future__ import annotations

import os
import platform
import sys
import time
from pathlib import Path
from types import MappingProxyType
from typing import Callable, Iterable, Iterator, Mapping, Sequence

from autogpu import lease
from autogpu.devices import probe
from autogpu.devices.model import ComputeMode, Device, Inventory, Process
from autogpu.engines.facts import granted_here
from autogpu.frozen import Value
from autogpu.history import JobLines
from autogpu.install import is_hosts
from autogpu.lease import Folder, LeaseSnapshot, Processes, UnreadableFile, Waiter
from autogpu.policy import Resolved
from autogpu.process import with_ancestors
from autogpu.reporting import choice, gpus
from autogpu.reporting import policy as policy_messages
from autogpu.reporting.leases import lease_problem
from autogpu.reporting.mistakes import policy_problem
from autogpu.selection.decision import Decision, Reason, Verdict
from autogpu.selection.jobs import Job, awaited, claims_by_gpu, compute_pids, jobs_of, spare_bytes, tier
from autogpu.selection.members import Family, family_of
from autogpu.selection.model import Candidate, Cause, Claim, SelectionRequest, Tier
from autogpu.selection.ranking import excluded_by
from autogpu.selection.visible_devices import original_environ
from autogpu.status import model
from autogpu.status.preview import preview, request_for_new_process
from autogpu.text import printable
from autogpu.users import user_name

# Name of the start-up hook's module.
HOOK = "_autogpu_hook"


class Names(Value):
    """Name of the host, without its domain, and functions that look up the names of users and processes.

    Attributes:
        process: Returns what :func:`user_and_program` returns.
    """

    host: str
    user: Callable[[int], str]
    process: Callable[[int], tuple[str | None, str | None]]


def user_and_program(pid: int) -> tuple[str | None, str | None]:
    """Return the user and the program of a process; ``None`` for both if ``/proc`` does not show it."""
    try:
        path = Path(f"/proc/{pid}")
        return user_name(path.stat().st_uid), printable((path / "comm").read_text().strip(), 32)
    except (OSError, UnicodeDecodeError):
        return None, None


def read_status(environ: Mapping[str, str], resolved: Resolved) -> model.HostStatus:
    inventory = probe.finish(probe.start(environ))
    return host_status(
        inventory,
        read_leases(environ, inventory.devices),
        resolved,
        request_here(resolved, inventory, environ),
        now_s=time.time(),
        # The hook has an entry in sys.meta_path if this interpreter has loaded it.
        hook=next(
            (vars(finder)["__file__"] for finder in sys.meta_path if getattr(finder, "__name__", "") == HOOK), None
        ),
        names=Names(platform.node().partition(".")[0], user_name, user_and_program),
    )


def request_here(
    resolved: Resolved, inventory: Inventory, environ: Mapping[str, str], own_pid: int | None = None
) -> SelectionRequest:
    grant = granted_here(environ)
    environ = original_environ(environ)
    return request_for_new_process(resolved, environ, inventory, grant, own_uid=os.getuid(), own_pid=own_pid)


class LeasesHere(Value):
    """The leases that count for this user's jobs.

    Attributes:
        folder: ``None`` if no folder exists yet, or because of ``problem``.
        processes: Processes that hold the leases, and processes of their jobs that the driver lists.
        family: Job to which a process started here belongs; ``None`` if no ancestor holds a lease.
        problem: Why this user's jobs can't coordinate, and the remedy.
        obstacle: Why this user's jobs can't claim, although they see the claims of other jobs.
        printed: Lines that autogpu printed about this user's jobs, keyed by the name of their leases.
    """

    folder: Folder | None = None
    leases: LeaseSnapshot = lease.LeaseSnapshot()
    processes: Processes = Processes(MappingProxyType({}))
    family: Family | None = None
    problem: str | None = None
    obstacle: str | None = None
    printed: Mapping[str, Sequence[str]] = MappingProxyType({})


def read_leases(environ: Mapping[str, str], devices: Sequence[Device] = ()) -> LeasesHere:
    """Read the lease folder once. A missing folder is not made."""
    try:
        folder = lease.find_folder(environ, make=False)
        leases = lease.snapshot(folder)
    except lease.NoFolderYet:
        return LeasesHere()
    except lease.LeaseUnavailable as error:
        return LeasesHere(problem="; ".join(lease_problem(error.problem)))
    processes = lease.processes_of(leases.holders, compute_pids(devices), is_complete=True)
    parent = lease.ancestor_lease(environ, leases.holders, with_ancestors())
    family = family_of(parent, leases.holders, has_parents_list=lease.has_parents_list(original_environ(environ)))
    is_open = os.access(str(folder.path), os.W_OK | os.X_OK, effective_ids=True)
    closed = f"can't write to the lease folder {folder.path}; to find the cause: `autogpu doctor`"
    printed = JobLines(environ).read()
    return LeasesHere(folder, leases, processes, family, obstacle=None if is_open else closed, printed=printed)


def host_status(
    inventory: Inventory,
    read: LeasesHere,
    resolved: Resolved,
    request: SelectionRequest,
    *,
    now_s: float,
    hook: str | None,
    names: Names,
) -> model.HostStatus:
    """Return the status from readings that were taken at ``now_s`` (Unix time).

    Args:
        request: The request of the process that the preview is for.
        hook: File of the start-up hook that this process would load; ``None`` if it would load none.
    """
    leases = read.leases
    jobs = jobs_of(leases.holders, read.processes, inventory.devices, now_s)
    decision = Decision(Verdict.CANNOT_CHOOSE, Reason.DISABLED)
    if resolved.policy.enabled:
        decision = preview(request, leases, read.processes, now_s, read.family)
    unmatched = policy_messages.unmatched(resolved, inventory, request.visible_spec)
    return model.HostStatus(
        driver_version=inventory.driver_version,
        has_driver=not inventory.has_no_driver,
        failure=inventory.failure and "; ".join(filter(None, (inventory.failure, gpus.driver_remedy(inventory)))),
        gpus=tuple(_gpus(request, jobs, read, decision, names)),
        unreadable=tuple(model.UnreadableGpu(lost.index, printable(lost.reason)) for lost in inventory.unreadable),
        queue=tuple(_waiter_status(waiter, now_s, names) for waiter in leases.waiters),
        preview=_preview(decision, inventory, policy_messages.origins(resolved)),
        policy_problems=(*map(policy_problem, resolved.problems), *unmatched),
        lease_folder=None if read.folder is None else _lease_folder(read.folder, names),
        lease_folder_problem=read.problem or read.obstacle,
        has_hook=hook is not None,
        has_hosts_hook=hook is not None and is_hosts(Path(hook)),
        is_enabled=resolved.policy.enabled,
        host=printable(names.host, 64),
        time_s=now_s,
        engine="" if request.uuids is None else request.grant.engine,
        granted=_granted(request),
        unreadable_leases=tuple(_unreadable_lease(file, names) for file in leases.unreadable),
    )


def _lease_folder(folder: Folder, names: Names) -> model.LeaseFolder:
    uid = folder.owner_uid
    return model.LeaseFolder(printable(str(folder.path)), folder.origin.value, names.user(uid), uid)


def _granted(request: SelectionRequest) -> tuple[str, ...]:
    """Return the UUIDs of the GPUs that an engine granted."""
    if request.uuids is None or not request.grant.engine or request.grant.is_none:
        return ()
    return tuple(request.uuids)


def _unreadable_lease(file: UnreadableFile, names: Names) -> model.UnreadableLease:
    user = "" if file.uid is None else names.user(file.uid)
    return model.UnreadableLease(printable(file.name), user, printable(str(file.error.strerror)))


def _gpus(
    request: SelectionRequest, jobs: Sequence[Job], read: LeasesHere, decision: Decision, names: Names
) -> Iterator[model.GpuStatus]:
    devices = request.inventory.devices
    claims = claims_by_gpu(jobs)
    printed = _printed_by_own_jobs(read, jobs, request.own_uid)
    for device in devices:
        device_tier = tier(device, None, claims.get(device.uuid, ()))
        instances = [each for each in devices if each.parent == device.uuid]
        state = _untakeable_state(device, instances, request, decision)
        if state is None:
            state = _takeable_state(device, device_tier, read.leases.queue, claims)
        jobs_here = [_job_status(job, device, device_tier, names, printed) for job in jobs if device.uuid in job.claims]
        yield _gpu_status(device, state, jobs_here, _unmanaged(device, instances, jobs, names))


def _gpu_status(
    device: Device, state: str, jobs: Iterable[model.JobStatus], unmanaged: Iterable[model.UnmanagedProcess]
) -> model.GpuStatus:
    # Copy the fields that GpuStatus shares with Device, then set those that differ.
    told = {name: value for name, value in vars(device).items() if name in model.GpuStatus.__annotations__}
    told.update(
        name=printable(device.name, 64),
        compute_mode=device.compute_mode and device.compute_mode.name.lower(),
        state=state,
        jobs=tuple(jobs),
        unmanaged_processes=tuple(unmanaged),
        unlisted_bytes=device.unlisted_bytes,
        health_problems=() if device.parent else gpus.health_faults(device),
    )
    return model.GpuStatus(**told)


def _printed_by_own_jobs(read: LeasesHere, jobs: Sequence[Job], own_uid: int) -> dict[str, list[str]]:
    # Another user can make a lease with any name, also with one of this user's.
    own = {member.name for job in jobs if job.uid == own_uid for member in job.members}
    return {name: list(map(printable, lines)) for name, lines in read.printed.items() if name in own}


def _untakeable_state(
    device: Device, instances: Sequence[Device], request: SelectionRequest, decision: Decision
) -> str | None:
    """Return the state of a GPU that no job can get; ``None`` if a job can get it."""
    if instances:
        return "split"
    if device.mig_enabled:
        return "no_instance"
    if device.compute_mode is ComputeMode.PROHIBITED:
        return "prohibited"
    policy = request.policy
    if policy.enabled and excluded_by(device, policy, request.visible_spec) is not None:
        return "excluded"
    is_too_small = any(
        each.device.uuid == device.uuid and each.cause is Cause.TOO_SMALL for each in decision.ranking.rejected
    )
    return "too_small" if is_too_small else None


def _takeable_state(
    device: Device, device_tier: Tier, queue: Iterable[Waiter], claims: Mapping[str, Sequence[Claim]]
) -> str:
    if device_tier is Tier.FREE:
        candidate = Candidate(device, device_tier, spare_bytes=spare_bytes(device))
        if awaited([candidate], queue, claims):
            return "awaited"
    return device_tier.name.lower()


def _job_status(
    job: Job, device: Device, device_tier: Tier, names: Names, printed: Mapping[str, Sequence[str]]
) -> model.JobStatus:
    return model.JobStatus(
        user=names.user(job.uid),
        uid=job.uid,
        pid=job.pid,
        script=job.script,
        age_s=job.age_s,
        processes=len(job.members),
        claim_bytes=job.claims[device.uuid].bytes,
        used_bytes=_used_bytes(job, device),
        is_idle=device_tier is Tier.IDLE_LEASE,
        is_active=_is_active(job, device),
        printed=tuple(line for member in job.members for line in printed.get(member.name, ())),
    )


def _used_bytes(job: Job, device: Device) -> int | None:
    if not job.pids_here:
        return None
    used = [p.memory_used_bytes for p in device.compute_processes or () if p.pid in job.pids_here]
    known = [size for size in used if size is not None]
    if used and not known:
        return None
    return sum(known)


def _is_active(job: Job, device: Device) -> bool | None:
    if not device.utilization_percent:
        return None if device.utilization_percent is None else False
    if device.compute_processes is None or not job.pids_here:
        return None
    listed = {process.pid for process in device.compute_processes}
    mine = listed.intersection(job.pids_here)
    if not mine:
        return False
    if mine == listed:
        return None if device.unlisted_bytes else True
    return None if device.active_pids is None else not mine.isdisjoint(device.active_pids)


def _processes(device: Device) -> Iterator[tuple[Process, bool]]:
    """Yield the processes on the device, each with ``True`` if it is a graphics process."""
    yield from ((each, False) for each in device.compute_processes or ())
    yield from ((each, True) for each in device.graphics_processes or ())


def _unmanaged(
    device: Device, instances: Sequence[Device], jobs: Sequence[Job], names: Names
) -> Iterator[model.UnmanagedProcess]:
    # A card also lists the processes of its MIG instances. They are shown only on the instance.
    known = {process.pid for each in instances for process, _ in _processes(each)}
    known.update(pid for job in jobs for pid in job.pids_here)
    for each, is_graphics in _processes(device):
        if each.pid not in known:
            yield model.UnmanagedProcess(each.pid, *names.process(each.pid), each.memory_used_bytes, is_graphics)


def _waiter_status(waiter: Waiter, now_s: float, names: Names) -> model.WaiterStatus:
    return model.WaiterStatus(
        user=names.user(waiter.uid),
        uid=waiter.uid,
        pid=waiter.pid,
        script=waiter.script,
        waited_s=max(0.0, now_s - waiter.since_s),
        count=waiter.demand.count,
        bytes_per_gpu=waiter.demand.bytes_per_gpu,
        is_unresponsive=waiter.is_unresponsive,
        uuids=tuple(printable(uuid, 64) for uuid in waiter.demand.uuids),
        joins=waiter.demand.joins,
    )


def _preview(decision: Decision, inventory: Inventory, policy: str) -> model.Preview:
    taken = decision.devices if decision.verdict is Verdict.TAKE else ()
    return model.Preview(
        verdict=decision.verdict.name.lower(),
        why=printable(choice.why(decision, with_cap=True), 2000),
        uuids=tuple(device.uuid for device in taken),
        policy=policy,
        reasons=tuple(gpus.each_gpu(decision, taken, "first choice")),
    )
