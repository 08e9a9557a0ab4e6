"""A :class:`autogpu.status.model.HostStatus` as metrics for Prometheus, in the text format 0.0.4. Pure.

https://prometheus.io/docs/instrumenting/exposition_formats/ and https://prometheus.io/docs/practices/naming/
"""

from __future__ import annotations

from typing import Callable, Iterable, Iterator, NamedTuple, Optional, Sequence, Tuple

from autogpu import __version__
from autogpu.reporting.text import printable
from autogpu.status.model import GpuStatus, HostStatus, JobStatus, UnmanagedProcess, WaiterStatus

# The values of the labels, and the number; what is not known is None: an empty label, and no sample.
Sample = Tuple[Sequence[Optional[str]], Optional[float]]
Merge = Callable[[Iterable[float]], float]

_GPU = ("gpu", "uuid", "name")
_STATES = ("free", "idle_lease", "busy")

# Scripts name themselves: their label must not become the largest part of a database.
_LONGEST_LABEL = 64


class Metric(NamedTuple):
    """One gauge; samples with the same labels, which may come only once, become one by ``merge``."""

    name: str
    about: str
    labels: tuple[str, ...]
    samples: Callable[[HostStatus], Iterable[Sample]]
    merge: Merge = sum


def exposition(host: HostStatus) -> str:
    """All metrics of the host, for node_exporter's textfile collector."""
    return "".join(line + "\n" for metric in METRICS for line in _lines(metric, host))


def _lines(metric: Metric, host: HostStatus) -> Iterator[str]:
    yield f"# HELP {metric.name} {metric.about}"
    yield f"# TYPE {metric.name} gauge"
    known: dict[tuple[str, ...], list[float]] = {}
    for labels, number in metric.samples(host):
        numbers = known.setdefault(tuple(printable(label or "", _LONGEST_LABEL) for label in labels), [])
        if number is not None:
            numbers.append(number)
    for values, numbers in known.items():
        pairs = ",".join(f'{name}="{_escaped(value)}"' for name, value in zip(metric.labels, values))
        if numbers:
            yield f"{metric.name}{f'{{{pairs}}}' if pairs else ''} {metric.merge(numbers)}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _gpu_labels(gpu: GpuStatus) -> tuple[str, ...]:
    return gpu.label, gpu.uuid, gpu.name


def _of_host(name: str, about: str, value: Callable[[HostStatus], float]) -> Metric:
    return Metric(name, about, (), lambda host: [((), value(host))])


def _of_gpus(name: str, about: str, value: Callable[[GpuStatus], float | None]) -> Metric:
    return Metric(name, about, _GPU, lambda host: [(_gpu_labels(gpu), value(gpu)) for gpu in host.gpus])


def _of_jobs(name: str, about: str, value: Callable[[JobStatus], int | None]) -> Metric:
    def samples(host: HostStatus) -> Iterable[Sample]:
        return [((*_gpu_labels(gpu), job.user, job.script), value(job)) for gpu in host.gpus for job in gpu.jobs]

    return Metric(name, about, (*_GPU, "user", "script"), samples)


def _of_processes(name: str, about: str, value: Callable[[UnmanagedProcess], int | None]) -> Metric:
    def samples(host: HostStatus) -> Iterator[Sample]:
        for gpu in host.gpus:
            computing = (process for process in gpu.unmanaged_processes if not process.is_graphics)
            yield from (((*_gpu_labels(gpu), process.user), value(process)) for process in computing)

    return Metric(name, about, (*_GPU, "user"), samples)


def _of_waiters(name: str, about: str, value: Callable[[WaiterStatus], float], merge: Merge) -> Metric:
    def samples(host: HostStatus) -> Iterable[Sample]:
        return [((waiter.user, waiter.script), value(waiter)) for waiter in host.queue]

    return Metric(name, about, ("user", "script"), samples, merge)


def _gpu_reads(host: HostStatus) -> Iterator[Sample]:
    yield from ((_gpu_labels(gpu), 1) for gpu in host.gpus)
    yield from (((str(lost.index), "", ""), 0) for lost in host.unreadable)


def _states(host: HostStatus) -> Iterable[Sample]:
    # A card that is split is no job's to take, whatever is on its instances.
    return [((*_gpu_labels(gpu), state), int(gpu.state == state)) for gpu in host.takeable for state in _STATES]


def _waited_s(waiter: WaiterStatus) -> float:
    return round(waiter.waited_s or 0.0, 1)


METRICS = (
    Metric(
        "autogpu_info",
        "Versions of autogpu and of the NVIDIA driver; always 1.",
        ("version", "driver_version"),
        lambda host: [((__version__, host.driver_version), 1)],
    ),
    _of_host(
        "autogpu_driver_read_success",
        "1 if the driver could be read, else 0; also 0 on a machine without one.",
        lambda host: int(not host.failure),
    ),
    _of_host(
        "autogpu_leases_read_success",
        "1 if the claims and the queue could be read, or there are none yet, else 0.",
        lambda host: int(not host.lease_folder_problem),
    ),
    Metric("autogpu_gpu_read_success", "1 if the driver describes the GPU, 0 if it is lost.", _GPU, _gpu_reads),
    _of_gpus("autogpu_gpu_memory_bytes", "Memory that the GPU has.", lambda gpu: gpu.memory_total_bytes),
    _of_gpus(
        "autogpu_gpu_memory_used_bytes", "Memory that is used, by all processes.", lambda gpu: gpu.memory_used_bytes
    ),
    _of_gpus(
        "autogpu_gpu_utilization_ratio",
        "Share of the driver's last seconds in which the GPU computed, 0 to 1.",
        lambda gpu: None if gpu.utilization_percent is None else gpu.utilization_percent / 100,
    ),
    Metric("autogpu_gpu_state", "1 for the state that the GPU is in, 0 for the others.", (*_GPU, "state"), _states),
    _of_gpus(
        "autogpu_gpu_health_problems",
        "Kinds of problems of the GPU itself, memory errors and heat, that the driver tells; 0 if it is healthy.",
        lambda gpu: len(gpu.health_problems),
    ),
    _of_jobs("autogpu_claims", "Jobs that claim the GPU.", lambda job: 1),
    _of_jobs(
        "autogpu_idle_claims",
        "Of these, jobs that have held the GPU for half an hour or more while nothing computes on it.",
        lambda job: int(job.is_idle),
    ),
    _of_jobs(
        "autogpu_claim_bytes", "Memory promised to these jobs; 0 for best-effort jobs.", lambda job: job.claim_bytes
    ),
    _of_jobs(
        "autogpu_claim_used_bytes",
        "Memory that these jobs use; missing where the driver does not tell.",
        lambda job: job.used_bytes,
    ),
    _of_processes(
        "autogpu_unmanaged_processes", "Processes that compute on the GPU and belong to no job.", lambda process: 1
    ),
    _of_processes(
        "autogpu_unmanaged_used_bytes",
        "Memory that these processes use; missing where the driver does not tell.",
        lambda process: process.used_bytes,
    ),
    _of_host("autogpu_waiters", "Jobs in the queue.", lambda host: len(host.queue)),
    _of_host(
        "autogpu_longest_wait_seconds",
        "How long the job has been waiting that waits longest; 0 if none waits.",
        lambda host: max(map(_waited_s, host.queue), default=0),
    ),
    _of_waiters("autogpu_waiter_seconds", "How long these jobs have been waiting, at most.", _waited_s, max),
    _of_waiters("autogpu_waiter_gpus", "GPUs that these jobs wait for.", lambda waiter: waiter.count, sum),
)
