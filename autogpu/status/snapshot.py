"""Read the host at one moment: the driver, the lease folder once, the names of users and programs."""

from __future__ import annotations

import os
import platform
import sys
import time
from pathlib import Path
from typing import Callable, Iterator, Mapping, Sequence

from autogpu import engines, lease
from autogpu.devices import probe
from autogpu.devices.model import Device, Inventory, Process
from autogpu.frozen import frozen, replace
from autogpu.lease import Folder, Holder, LeaseSnapshot, Processes, Waiter
from autogpu.policy import Resolved
from autogpu.reporting import messages
from autogpu.reporting.text import printable, user_name
from autogpu.selection import explain
from autogpu.selection.jobs import Job, claims_by_gpu, is_awaited_by, jobs_of
from autogpu.selection.members import Family, family_of
from autogpu.selection.model import Candidate, Claim, Decision, SelectionRequest, Tier, Verdict
from autogpu.selection.occupancy import IDLE_LEASE_S, compute_pids, health_problems, spare_bytes, tier, unlisted_bytes
from autogpu.selection.preview import preview, request_for_new_process
from autogpu.selection.ranking import unmatched_lists
from autogpu.status.model import (
    GpuStatus,
    HostStatus,
    JobStatus,
    LeaseFolder,
    Preview,
    RankedGpu,
    RejectedGpu,
    UnmanagedProcess,
    UnreadableGpu,
    WaiterStatus,
)

# The module of the start-up hook.
HOOK = "_autogpu_hook"

IsAwaited = Callable[[Candidate], bool]

# Of a GPU, what is told as it was read.
_READINGS = (
    *("uuid", "index", "pci_bus_id", "parent", "instance", "mig_enabled", "compute_mode"),
    *("memory_total_bytes", "memory_used_bytes", "utilization_percent", "idle_s"),
)


class Names:
    """Looks up what users and programs are called on this host, and the host itself."""

    def host(self) -> str:
        """Its name, without the domain."""
        return platform.node().partition(".")[0]

    def user(self, uid: int) -> str:
        """The name, or the number of one that is not known here."""
        return user_name(uid)

    def process(self, pid: int) -> tuple[str | None, str | None]:
        """Whose process that is and what it is called, where ``/proc`` shows it."""
        try:
            path = Path(f"/proc/{pid}")
            return self.user(path.stat().st_uid), printable((path / "comm").read_text().strip(), 32)
        except (OSError, UnicodeDecodeError):
            return None, None


def read_status(environ: Mapping[str, str], resolved: Resolved) -> HostStatus:
    """The host as it is now, for a script that would be started with ``environ`` under that policy."""
    reading = probe.start(environ)
    read = read_leases(environ)
    inventory = probe.finish(reading)
    return host_status(
        inventory,
        read,
        read.processes(inventory),
        resolved,
        request_here(resolved, inventory, environ),
        now_s=time.time(),
        # It stands there if this interpreter has loaded it.
        has_hook=any(getattr(finder, "__name__", "") == HOOK for finder in sys.meta_path),
        names=Names(),
    )


def request_here(
    resolved: Resolved, inventory: Inventory, environ: Mapping[str, str], own_pid: int | None = None
) -> SelectionRequest:
    """The request of this user's process that would be started here with ``environ``."""
    grant, is_set = engines.granted_here(environ), resolved.settings["select.count"].overrides is not None
    return request_for_new_process(
        resolved.policy, environ, inventory, grant, own_uid=os.getuid(), own_pid=own_pid, count_is_set=is_set
    )


@frozen
class LeasesHere:
    """The leases that count for this user's jobs; ``folder`` is ``None`` if there is none yet, or for ``problem``.

    Attributes:
        parent: The lease to whose job a process started here belongs, if there is one above it.
        has_parents_list: It would see the GPUs that the parent left to it.
        problem: Why this user's jobs can't coordinate, and the remedy.
    """

    folder: Folder | None = None
    leases: LeaseSnapshot = lease.LeaseSnapshot()
    parent: Holder | None = None
    has_parents_list: bool = False
    problem: str | None = None

    def processes(self, inventory: Inventory | None) -> Processes:
        """Those that hold the leases, and those of their jobs that the driver lists."""
        return lease.processes_of(self.leases.holders, compute_pids(inventory), is_complete=True)

    def family(self, processes: Processes, inventory: Inventory | None) -> Family | None:
        """The job to which a process started here belongs, if there is one above it."""
        if self.parent is None:
            return None
        holders, has_list = self.leases.holders, self.has_parents_list
        return family_of(self.parent, holders, processes, inventory, has_parents_list=has_list)


def read_leases(environ: Mapping[str, str]) -> LeasesHere:
    """Read the folder once."""
    try:
        folder = lease.find_folder(environ, make=False)
        leases, parent = lease.snapshot(folder), lease.ancestor_lease(environ, folder)
        return LeasesHere(folder, leases, parent, lease.has_parents_list(environ))
    except lease.NoFolderYet:
        return LeasesHere()
    except lease.LeaseUnavailable as error:
        return LeasesHere(problem=f"{printable(error.what)}; {printable(error.remedy)}")


def host_status(
    inventory: Inventory,
    read: LeasesHere,
    processes: Processes,
    resolved: Resolved,
    request: SelectionRequest,
    *,
    now_s: float,
    has_hook: bool,
    names: Names,
) -> HostStatus:
    """Put together what was read at ``now_s`` (Unix time), for the process that asks by ``request``.

    ``processes`` tells whose job those are that the driver lists, and ``has_hook`` that autogpu would be loaded in it.
    """
    leases, policy = read.leases, resolved.policy
    jobs = jobs_of(leases.holders, processes, inventory, now_s)
    claims = claims_by_gpu(jobs)
    is_awaited = is_awaited_by(leases.queue, claims)
    decision = Decision(Verdict.CANNOT_CHOOSE, explain.SWITCHED_OFF)
    if policy.enabled:
        decision = preview(request, leases, processes, now_s, read.family(processes, inventory))
    devices = [_without_instances(device, inventory) for device in inventory.devices]
    unmatched = unmatched_lists(resolved, inventory, request.visible_spec).values()
    has_grant = bool(request.grant.engine) and not request.grant.is_none
    return HostStatus(
        driver_version=inventory.driver_version,
        has_driver=not inventory.has_no_driver,
        failure=inventory.failure,
        gpus=tuple(_gpu(device, jobs, claims.get(device.uuid, ()), is_awaited, names) for device in devices),
        unreadable=tuple(UnreadableGpu(lost.index, printable(lost.reason)) for lost in inventory.unreadable),
        queue=tuple(_waiter_status(waiter, now_s, names) for waiter in leases.waiters),
        preview=_preview(decision, inventory, messages.origins(resolved)),
        policy_problems=(*map(str, resolved.problems), *unmatched),
        lease_folder=_lease_folder(read.folder, names),
        lease_folder_problem=read.problem,
        has_hook=has_hook,
        host=printable(names.host(), 64),
        time_s=now_s,
        engine="" if request.uuids is None else request.grant.engine,
        granted=tuple(request.uuids or ()) if has_grant else (),
    )


def _without_instances(device: Device, inventory: Inventory) -> Device:
    """A card with the processes that are on none of its MIG instances, each of which is shown by itself."""
    instances = [each for each in inventory.devices if each.parent == device.uuid]
    both = [each.compute_processes for each in instances] + [each.graphics_processes for each in instances]
    pids = {process.pid for processes in both for process in processes or ()}
    if not pids:
        return device
    compute, graphics = _others(device.compute_processes, pids), _others(device.graphics_processes, pids)
    return replace(device, compute_processes=compute, graphics_processes=graphics)


def _others(processes: Sequence[Process] | None, pids: set[int]) -> tuple[Process, ...]:
    return tuple(process for process in processes or () if process.pid not in pids)


def _gpu(
    device: Device, jobs: Sequence[Job], claims: Sequence[Claim], is_awaited: IsAwaited, names: Names
) -> GpuStatus:
    device_tier = tier(device, None, claims)
    candidate = Candidate(device, device_tier, "", spare_bytes=spare_bytes(device, None, claims))
    here = [job for job in jobs if device.uuid in job.claims]
    holders = {pid for job in here for pid in job.pids_here}
    return GpuStatus(
        **{name: getattr(device, name) for name in _READINGS},
        name=printable(device.name, 64),
        state=device_tier.name.lower(),
        jobs=tuple(_job_status(job, device, device_tier, names) for job in here),
        unmanaged_processes=tuple(_unmanaged(device, holders, names)),
        # Of a card in MIG mode all of it is used by its instances.
        unlisted_bytes=0 if device.mig_enabled else unlisted_bytes(device),
        health_problems=() if device.parent else health_problems(device),
        is_awaited=device_tier is Tier.FREE and is_awaited(candidate),
    )


def _job_status(job: Job, device: Device, device_tier: Tier, names: Names) -> JobStatus:
    return JobStatus(
        user=names.user(job.uid),
        uid=job.uid,
        pid=job.pid,
        script=job.script,
        age_s=job.age_s,
        processes=len(job.members),
        claim_bytes=job.claims[device.uuid],
        used_bytes=_used_bytes(job, device),
        is_idle=device_tier is Tier.IDLE_LEASE and (job.age_s or 0) >= IDLE_LEASE_S,
        is_active=_is_active(job, device),
    )


def _used_bytes(job: Job, device: Device) -> int | None:
    used = [p.memory_used_bytes for p in device.compute_processes or () if p.pid in job.pids_here]
    known = [size for size in used if size is not None]
    # A job of which the driver lists no process uses nothing, if its processes can be told at all.
    return sum(known) if known or (not used and job.pids_here) else None


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
        return None if unlisted_bytes(device) else True
    return None if device.active_pids is None else not mine.isdisjoint(device.active_pids)


def _unmanaged(device: Device, holders: set[int], names: Names) -> Iterator[UnmanagedProcess]:
    for processes, is_graphics in ((device.compute_processes, False), (device.graphics_processes, True)):
        for each in _others(processes, holders):
            yield UnmanagedProcess(each.pid, *names.process(each.pid), each.memory_used_bytes, is_graphics)


def _lease_folder(folder: Folder | None, names: Names) -> LeaseFolder | None:
    if folder is None:
        return None
    return LeaseFolder(printable(str(folder.path)), folder.origin, names.user(folder.owner_uid), folder.owner_uid)


def _waiter_status(waiter: Waiter, now_s: float, names: Names) -> WaiterStatus:
    return WaiterStatus(
        user=names.user(waiter.uid),
        uid=waiter.uid,
        pid=waiter.pid,
        script=waiter.script,
        waited_s=None if waiter.since_s is None else max(0.0, now_s - waiter.since_s),
        count=waiter.demand.count,
        bytes_per_gpu=waiter.demand.bytes_per_gpu,
        is_unresponsive=waiter.is_unresponsive,
        uuids=tuple(printable(uuid, 64) for uuid in waiter.demand.uuids),
        joins=waiter.demand.joins,
    )


def _preview(decision: Decision, inventory: Inventory, policy: str) -> Preview:
    taken = decision.devices if decision.verdict is Verdict.TAKE else ()
    ranking = decision.ranking
    return Preview(
        verdict=decision.verdict.name.lower(),
        why=printable(f"{decision.why}; {decision.why_capped}" if decision.why_capped else decision.why, 2000),
        uuids=tuple(device.uuid for device in taken),
        policy=policy,
        candidates=tuple(RankedGpu(c.device.uuid, c.tier.name.lower(), c.why) for c in ranking.candidates),
        rejected=tuple(RejectedGpu(r.device.uuid, r.why, r.cause.name.lower()) for r in ranking.rejected),
        reasons=tuple(explain.each_gpu(ranking, taken, inventory, "first choice")),
    )
