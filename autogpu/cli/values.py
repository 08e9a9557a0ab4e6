"""What ``autogpu status --json`` prints; described for programs in ``docs/status.schema.json``."""

from __future__ import annotations

from autogpu.cli import reading
from autogpu.decision import Verdict
from autogpu.overview import VERSION

TYPE_CHECKING = False
if TYPE_CHECKING:
    from autogpu.cli.reading import Seen
    from autogpu.overview import Gpu, Overview

# Names of a version's contract, whatever the enum is called inside.
VERDICTS = {
    Verdict.TAKE: "take",
    Verdict.CPU: "cpu",
    Verdict.WAIT: "wait",
    Verdict.REFUSE: "error",
    Verdict.LEAVE: "leave",
}


def as_values(seen: Seen) -> dict[str, object]:
    """``seen`` in types that JSON knows. Sizes are bytes, spans are seconds; what is not known is ``null``."""
    view = seen.overview
    folder = seen.folder
    return {
        "version": VERSION,
        "driver_version": view.inventory.driver_version,
        "failure": view.inventory.failure,
        "gpus": [_gpu(gpu) for gpu in view.gpus],
        "unreadable": [{"index": lost.index, "reason": lost.reason} for lost in view.inventory.unreadable],
        "queue": [
            {
                "user": reading.user_name(waiting.uid),
                "uid": waiting.uid,
                "pid": waiting.pid,
                "script": waiting.script,
                "waited_s": waiting.waited_s,
                "count": waiting.count,
                "bytes_per_gpu": waiting.bytes_per_gpu,
                "is_passed_over": waiting.is_passed_over,
            }
            for waiting in view.queue
        ],
        "outlook": _outlook(view),
        "policy_problems": [str(problem) for problem in seen.resolved.problems],
        "lease_folder": None
        if folder is None
        else {"path": str(folder.path), "origin": folder.origin, "owner_uid": folder.owner_uid},
        "lease_folder_problem": seen.folder_problem or None,
    }


def _gpu(gpu: Gpu) -> dict[str, object]:
    device = gpu.device
    return {
        "uuid": device.uuid,
        "index": device.index,
        "name": device.name,
        "pci_bus_id": device.pci_bus_id,
        "memory_total_bytes": device.memory_total_bytes,
        "memory_used_bytes": device.memory_used_bytes,
        "utilization_percent": device.utilization_percent,
        "idle_s": device.idle_s,
        "compute_mode": device.compute_mode,
        "mig_enabled": device.mig_enabled,
        "state": gpu.tier.name.lower(),
        "jobs": [
            {
                "user": reading.user_name(job.uid),
                "uid": job.uid,
                "pid": job.pid,
                "script": job.script,
                "age_s": job.age_s,
                "processes": job.processes,
                "claim_bytes": job.claim_bytes,
                "used_bytes": job.used_bytes,
                "is_forgotten": job.is_forgotten,
            }
            for job in gpu.jobs
        ],
        "unseen_bytes": gpu.unseen_bytes,
        "strangers": [_stranger(each.pid, each.used_bytes, each.is_graphics) for each in gpu.strangers],
    }


def _stranger(pid: int, used_bytes: int | None, is_graphics: bool) -> dict[str, object]:
    owner, program = reading.process_name(pid)
    return {
        "user": owner or None,
        "pid": pid,
        "program": program or None,
        "used_bytes": used_bytes,
        "is_graphics": is_graphics,
    }


def _outlook(view: Overview) -> dict[str, object]:
    outlook = view.decision
    taken = outlook.devices if outlook.verdict is Verdict.TAKE else ()
    return {
        "verdict": VERDICTS[outlook.verdict],
        "why": outlook.why,
        "uuids": [device.uuid for device in taken],
        "candidates": [
            {"uuid": candidate.device.uuid, "state": candidate.tier.name.lower(), "why": candidate.why}
            for candidate in outlook.ranking.candidates
        ],
        "rejected": [
            {"uuid": rejection.device.uuid, "why": rejection.why, "cause": rejection.cause.name.lower()}
            for rejection in outlook.ranking.rejected
        ],
    }
