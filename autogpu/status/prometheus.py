"""A :class:`autogpu.status.model.HostStatus` as metrics for Prometheus, in the text format 0.0.4. Pure.

https://prometheus.io/docs/instrumenting/exposition_formats/ and https://prometheus.io/docs/practices/naming/
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable, Iterable, Iterator, Optional, Tuple, Union

from autogpu import __version__
from autogpu.reporting.text import printable
from autogpu.status.model import GpuStatus, HostStatus, JobStatus

Sample = Tuple[Tuple[str, ...], Optional[Union[int, float]]]

_GPU = ("gpu", "uuid", "name")
_CLAIM = (*_GPU, "user", "script")
_STATES = ("free", "idle_lease", "busy")

# Scripts name themselves: their label must not become the largest part of a database.
_LONGEST_LABEL = 64


@dataclass(frozen=True)
class Metric:
    """One gauge.

    Attributes:
        about: What it tells, in a sentence.
        labels: The names of its labels.
        samples: Its values by the values of the labels, each of which comes once; ``None`` is left out.
    """

    name: str
    about: str
    labels: tuple[str, ...]
    samples: Callable[[HostStatus], Iterable[Sample]]


def exposition(host: HostStatus) -> str:
    """All metrics of the host, for node_exporter's textfile collector."""
    return "".join(line + "\n" for metric in METRICS for line in _lines(metric, host))


def _lines(metric: Metric, host: HostStatus) -> Iterator[str]:
    yield f"# HELP {metric.name} {metric.about}"
    yield f"# TYPE {metric.name} gauge"
    for values, number in metric.samples(host):
        if number is not None:
            pairs = ",".join(f'{name}="{_escaped(value)}"' for name, value in zip(metric.labels, values))
            yield f"{metric.name}{{{pairs}}} {number}" if pairs else f"{metric.name} {number}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _gpu_labels(gpu: GpuStatus) -> tuple[str, ...]:
    return gpu.label, _label(gpu.uuid), _label(gpu.name)


def _label(text: str | None) -> str:
    return printable(text or "", _LONGEST_LABEL)


def _per_gpu(value: Callable[[GpuStatus], int | float | None]) -> Callable[[HostStatus], Iterable[Sample]]:
    return lambda host: [(_gpu_labels(gpu), value(gpu)) for gpu in host.gpus]


def _per_claim(value: Callable[[JobStatus], int | None]) -> Callable[[HostStatus], Iterable[Sample]]:
    # Jobs of one user that run the same script on one GPU have the same labels, which may come only once.
    return lambda host: _added(
        ((*_gpu_labels(gpu), _label(job.user), _label(job.script)), value(job)) for gpu in host.gpus for job in gpu.jobs
    )


def _added(samples: Iterable[Sample]) -> Iterable[Sample]:
    totals: dict[tuple[str, ...], int | float | None] = {}
    for labels, value in samples:
        before = totals.get(labels)
        totals[labels] = before if value is None else value + (before or 0)
    return totals.items()


def _unmanaged(host: HostStatus, *, in_bytes: bool) -> Iterable[Sample]:
    return _added(
        ((*_gpu_labels(gpu), _label(process.user)), process.used_bytes if in_bytes else 1)
        for gpu in host.gpus
        for process in gpu.unmanaged_processes
        if not process.is_graphics
    )


def _gpu_reads(host: HostStatus) -> Iterator[Sample]:
    yield from ((_gpu_labels(gpu), 1) for gpu in host.gpus)
    yield from (((str(lost.index), "", ""), 0) for lost in host.unreadable)


def _states(host: HostStatus) -> Iterable[Sample]:
    # A card that is split is no job's to take, whatever is on its instances.
    return [((*_gpu_labels(gpu), state), int(gpu.state == state)) for gpu in host.takeable for state in _STATES]


def _longest_waits(host: HostStatus) -> Iterable[Sample]:
    longest: dict[tuple[str, ...], float] = {}
    for waiter in host.queue:
        labels = (_label(waiter.user), _label(waiter.script))
        longest[labels] = max(round(waiter.waited_s or 0.0, 1), longest.get(labels, 0.0))
    return longest.items()


def _ratio(percent: int | None) -> float | None:
    return None if percent is None else percent / 100


METRICS = (
    Metric(
        "autogpu_info",
        "Versions of autogpu and of the NVIDIA driver; always 1.",
        ("version", "driver_version"),
        lambda host: [((__version__, _label(host.driver_version)), 1)],
    ),
    Metric(
        "autogpu_driver_read_success",
        "1 if the driver could be read, else 0; also 0 on a machine without one.",
        (),
        lambda host: [((), int(not host.failure))],
    ),
    Metric(
        "autogpu_leases_read_success",
        "1 if the claims and the queue could be read, or there are none yet, else 0.",
        (),
        lambda host: [((), int(not host.lease_folder_problem))],
    ),
    Metric("autogpu_gpu_read_success", "1 if the driver describes the GPU, 0 if it is lost.", _GPU, _gpu_reads),
    Metric("autogpu_gpu_memory_bytes", "Memory that the GPU has.", _GPU, _per_gpu(lambda gpu: gpu.memory_total_bytes)),
    Metric(
        "autogpu_gpu_memory_used_bytes",
        "Memory that is used, by all processes.",
        _GPU,
        _per_gpu(lambda gpu: gpu.memory_used_bytes),
    ),
    Metric(
        "autogpu_gpu_utilization_ratio",
        "Share of the driver's last seconds in which the GPU computed, 0 to 1.",
        _GPU,
        _per_gpu(lambda gpu: _ratio(gpu.utilization_percent)),
    ),
    Metric("autogpu_gpu_state", "1 for the state that the GPU is in, 0 for the others.", (*_GPU, "state"), _states),
    Metric(
        "autogpu_gpu_health_problems",
        "Kinds of problems of the GPU itself, memory errors and heat, that the driver tells; 0 if it is healthy.",
        _GPU,
        _per_gpu(lambda gpu: len(gpu.health_problems)),
    ),
    Metric("autogpu_claims", "Jobs that claim the GPU.", _CLAIM, _per_claim(lambda job: 1)),
    Metric(
        "autogpu_idle_claims",
        "Of these, jobs that have held the GPU for half an hour or more while nothing computes on it.",
        _CLAIM,
        _per_claim(lambda job: int(job.is_idle)),
    ),
    Metric(
        "autogpu_claim_bytes",
        "Memory promised to these jobs; 0 for best-effort jobs.",
        _CLAIM,
        _per_claim(lambda job: job.claim_bytes),
    ),
    Metric(
        "autogpu_claim_used_bytes",
        "Memory that these jobs use; missing where the driver does not tell.",
        _CLAIM,
        _per_claim(lambda job: job.used_bytes),
    ),
    Metric(
        "autogpu_unmanaged_processes",
        "Processes that compute on the GPU and belong to no job.",
        (*_GPU, "user"),
        lambda host: _unmanaged(host, in_bytes=False),
    ),
    Metric(
        "autogpu_unmanaged_used_bytes",
        "Memory that these processes use; missing where the driver does not tell.",
        (*_GPU, "user"),
        lambda host: _unmanaged(host, in_bytes=True),
    ),
    Metric("autogpu_waiters", "Jobs in the queue.", (), lambda host: [((), len(host.queue))]),
    Metric(
        "autogpu_longest_wait_seconds",
        "How long the job has been waiting that waits longest; 0 if none waits.",
        (),
        lambda host: [((), max((seconds for _, seconds in _longest_waits(host) if seconds is not None), default=0))],
    ),
    Metric(
        "autogpu_waiter_seconds",
        "How long these jobs have been waiting, at most.",
        ("user", "script"),
        _longest_waits,
    ),
    Metric(
        "autogpu_waiter_gpus",
        "GPUs that these jobs wait for.",
        ("user", "script"),
        lambda host: _added(((_label(w.user), _label(w.script)), w.count) for w in host.queue),
    ),
)
