"""What of a host concerns one user. Pure."""

from __future__ import annotations

from dataclasses import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from autogpu.status.model import GpuStatus, HostStatus


def of_user(host: HostStatus, user: str | None) -> HostStatus:
    """Only the GPUs that a user's jobs and processes are on, with those alone, and the user's places in the queue.

    Args:
        user: By name; ``None`` for the host as it is.
    """
    if user is None:
        return host
    return replace(
        host,
        gpus=tuple(gpu_of_user(gpu, user) for gpu in host.gpus if is_on(gpu, user)),
        queue=tuple(waiter for waiter in host.queue if waiter.user == user),
    )


def is_on(gpu: GpuStatus, user: str) -> bool:
    """Whether a job or a process of the user's is on that GPU."""
    return user in [*(job.user for job in gpu.jobs), *(process.user for process in gpu.unmanaged_processes)]


def gpu_of_user(gpu: GpuStatus, user: str | None) -> GpuStatus:
    """The GPU with the jobs and processes of that user alone; ``None`` for all."""
    if user is None:
        return gpu
    return replace(
        gpu,
        jobs=tuple(job for job in gpu.jobs if job.user == user),
        unmanaged_processes=tuple(process for process in gpu.unmanaged_processes if process.user == user),
        unlisted_bytes=0,
    )
