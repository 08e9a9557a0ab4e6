"""A :class:`autogpu.status.model.HostStatus` as metrics for Prometheus, in the text format 0.0.4. Pure.

https://prometheus.io/docs/instrumenting/exposition_formats/ and https://prometheus.io/docs/practices/naming/
"""

from __future__ import annotations

from collections import defaultdict
from typing import Callable, Iterable, Iterator, NamedTuple, Optional, Tuple

from autogpu import __version__
from autogpu.reporting.text import printable
from autogpu.status.model import TAKEABLE, GpuStatus, HostStatus

# Scripts name themselves: their label must not become the largest part of a database.
_LONGEST_LABEL = 64

# The metric, the values of its labels, and the number; what is not known is None: an empty label, and no sample.
Sample = Tuple[str, Tuple[Optional[str], ...], Optional[float]]


class Metric(NamedTuple):
    """One gauge; samples with the same labels, which may come only once, become one by ``merge``."""

    name: str
    labels: tuple[str, ...]
    about: str
    merge: Callable[[Iterable[float]], float] = sum


_GPU = ("gpu", "uuid", "name")
_JOB = (*_GPU, "user", "script")
_PROCESS = (*_GPU, "user")
_WAITER = ("user", "script")

METRICS = (
    Metric("info", ("version", "driver_version"), "Versions of autogpu and of the NVIDIA driver; always 1."),
    Metric("driver_read_success", (), "1 if the driver could be read, else 0; also 0 on a machine without one."),
    Metric("leases_read_success", (), "1 if the claims and the queue could be read, or there are none yet, else 0."),
    Metric("gpu_read_success", _GPU, "1 if the driver describes the GPU, 0 if it is lost."),
    Metric("gpu_memory_bytes", _GPU, "Memory that the GPU has."),
    Metric("gpu_memory_used_bytes", _GPU, "Memory that is used, by all processes."),
    Metric("gpu_utilization_ratio", _GPU, "Share of the driver's last seconds in which the GPU computed, 0 to 1."),
    Metric("gpu_state", (*_GPU, "state"), "1 for the state that the GPU is in, 0 for the others."),
    Metric(
        "gpu_health_problems",
        _GPU,
        "Kinds of problems of the GPU itself, memory errors and heat, that the driver tells; 0 if it is healthy.",
    ),
    Metric("claims", _JOB, "Jobs that claim the GPU."),
    Metric(
        "idle_claims",
        _JOB,
        "Of these, jobs that have held the GPU for half an hour or more while nothing computes on it.",
    ),
    Metric("claim_bytes", _JOB, "Memory promised to these jobs; 0 for best-effort jobs."),
    Metric("claim_used_bytes", _JOB, "Memory that these jobs use; missing where the driver does not tell."),
    Metric("unmanaged_processes", _PROCESS, "Processes that compute on the GPU and belong to no job."),
    Metric(
        "unmanaged_used_bytes", _PROCESS, "Memory that these processes use; missing where the driver does not tell."
    ),
    Metric("waiters", (), "Jobs in the queue."),
    Metric("longest_wait_seconds", (), "How long the job has been waiting that waits longest; 0 if none waits.", max),
    Metric("waiter_seconds", _WAITER, "How long these jobs have been waiting, at most.", max),
    Metric("waiter_gpus", _WAITER, "GPUs that these jobs wait for."),
)


def exposition(host: HostStatus) -> str:
    """All metrics of the host, for node_exporter's textfile collector."""
    known: dict[str, dict[tuple[str, ...], list[float]]] = {metric.name: defaultdict(list) for metric in METRICS}
    for name, values, number in _samples(host):
        if number is not None:
            known[name][tuple(map(_label, values))].append(number)
    lines = []
    for name, labels, about, merge in METRICS:
        lines += [f"# HELP autogpu_{name} {about}", f"# TYPE autogpu_{name} gauge"]
        for values, numbers in known[name].items():
            pairs = ",".join(f'{label}="{value}"' for label, value in zip(labels, values))
            lines.append(f"autogpu_{name}{f'{{{pairs}}}' if pairs else ''} {merge(numbers)}")
    return "\n".join([*lines, ""])


def _label(value: str | None) -> str:
    return printable(value or "", _LONGEST_LABEL).replace("\\", r"\\").replace('"', r"\"")


def _samples(host: HostStatus) -> Iterator[Sample]:
    yield "info", (__version__, host.driver_version), 1
    yield "driver_read_success", (), not host.failure
    yield "leases_read_success", (), bool(host.lease_folder or not host.lease_folder_problem)
    for gpu in host.gpus:
        yield from _of_gpu(gpu)
    for lost in host.unreadable:
        yield "gpu_read_success", (str(lost.index), "", ""), 0
    for gpu in host.takeable:
        for state in TAKEABLE:
            yield "gpu_state", (gpu.label, gpu.uuid, gpu.name, state), gpu.state == state
    yield "waiters", (), len(host.queue)
    yield "longest_wait_seconds", (), 0
    for waiter in host.queue:
        waited_s = round(waiter.waited_s or 0.0, 1)
        yield "longest_wait_seconds", (), waited_s
        yield "waiter_seconds", (waiter.user, waiter.script), waited_s
        yield "waiter_gpus", (waiter.user, waiter.script), waiter.count


def _of_gpu(gpu: GpuStatus) -> Iterator[Sample]:
    labels, busy = (gpu.label, gpu.uuid, gpu.name), gpu.utilization_percent
    yield "gpu_read_success", labels, 1
    yield "gpu_memory_bytes", labels, gpu.memory_total_bytes
    yield "gpu_memory_used_bytes", labels, gpu.memory_used_bytes
    yield "gpu_utilization_ratio", labels, None if busy is None else busy / 100
    yield "gpu_health_problems", labels, len(gpu.health_problems)
    for job in gpu.jobs:
        of_job = (*labels, job.user, job.script)
        yield "claims", of_job, 1
        yield "idle_claims", of_job, job.is_idle
        yield "claim_bytes", of_job, job.claim_bytes
        yield "claim_used_bytes", of_job, job.used_bytes
    for process in gpu.unmanaged_processes:
        if not process.is_graphics:
            yield "unmanaged_processes", (*labels, process.user), 1
            yield "unmanaged_used_bytes", (*labels, process.user), process.used_bytes
