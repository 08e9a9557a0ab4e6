"""Prometheus metrics of a :class:`autogpu.status.model.HostStatus`, in the text format 0.0.4. This module does no I/O.

https://prometheus.io/docs/instrumenting/exposition_formats/ and https://prometheus.io/docs/practices/naming/
"""

from __future__ import annotations

from collections import defaultdict
from typing import Iterator, Mapping, Optional, Tuple

from autogpu import __version__
from autogpu.status.model import TAKEABLE, GpuStatus, HostStatus
from autogpu.text import printable

# Users choose the names of scripts: long labels must not fill the database of the metrics.
_LONGEST_LABEL = 64

# Metric, labels and value. An unknown label is None, which is printed as an empty one. A sample whose value is None is
# left out.
Sample = Tuple[str, Mapping[str, Optional[str]], Optional[float]]

# Help texts, keyed by metric. All metrics are gauges.
METRICS = {
    "info": "Versions of autogpu and of the NVIDIA driver; always 1.",
    "driver_read_success": "1 if the driver could be read, else 0; also 0 on a machine without a driver.",
    "leases_read_success": "1 if the claims and the queue could be read, or there are none yet, else 0.",
    "gpu_read_success": "1 if the driver describes the GPU, 0 if it is lost.",
    "gpu_memory_bytes": "Total memory of the GPU.",
    "gpu_memory_used_bytes": "Memory in use by all processes.",
    "gpu_utilization_ratio": "Share of the last seconds in which the GPU computed, 0 to 1.",
    "gpu_state": "1 for the state that the GPU is in, 0 for the others.",
    "gpu_health_problems": "Number of kinds of memory faults that the driver reports for the GPU; 0 if it is healthy.",
    "claims": "Jobs that claim the GPU.",
    "idle_claims": "Jobs that have held the GPU for half an hour or more while nothing computes on it.",
    "claim_bytes": "Memory that jobs claim on the GPU; 0 for best-effort jobs.",
    "claim_used_bytes": "Memory in use by jobs that claim the GPU; missing if the driver does not report it.",
    "unmanaged_processes": "Processes that compute on the GPU and belong to no job.",
    "unmanaged_used_bytes": "Memory in use by processes of no job; missing if the driver does not report it.",
    "waiters": "Jobs in the queue.",
    "longest_wait_seconds": "Longest time that a job in the queue has waited; 0 if the queue is empty.",
}


def exposition(host: HostStatus) -> str:
    # Add samples with the same labels up: the format allows each set of labels only once.
    known: dict[str, dict[str, float]] = {name: defaultdict(int) for name in METRICS}
    for name, labels, number in _samples(host):
        if number is not None:
            pairs = ",".join(f'{label}="{_escaped(value)}"' for label, value in labels.items())
            known[name][f"{{{pairs}}}" if pairs else ""] += number
    lines = []
    for name, about in METRICS.items():
        lines += [f"# HELP autogpu_{name} {about}", f"# TYPE autogpu_{name} gauge"]
        lines += [f"autogpu_{name}{labels} {number}" for labels, number in known[name].items()]
    return "\n".join([*lines, ""])


def _escaped(value: str | None) -> str:
    return printable(value or "", _LONGEST_LABEL).replace("\\", r"\\").replace('"', r"\"")


def _samples(host: HostStatus) -> Iterator[Sample]:
    yield "info", {"version": __version__, "driver_version": host.driver_version}, 1
    yield "driver_read_success", {}, not host.failure
    yield "leases_read_success", {}, bool(host.lease_folder or not host.lease_folder_problem)
    for gpu in host.gpus:
        yield from _of_gpu(gpu)
    for lost in host.unreadable:
        yield "gpu_read_success", {"gpu": str(lost.index), "uuid": "", "name": ""}, 0
    yield "waiters", {}, len(host.queue)
    yield "longest_wait_seconds", {}, round(max((waiter.waited_s or 0.0 for waiter in host.queue), default=0.0), 1)


def _of_gpu(gpu: GpuStatus) -> Iterator[Sample]:
    labels = {"gpu": gpu.label, "uuid": gpu.uuid, "name": gpu.name}
    busy = gpu.utilization_percent
    yield "gpu_read_success", labels, 1
    yield "gpu_memory_bytes", labels, gpu.memory_total_bytes
    yield "gpu_memory_used_bytes", labels, gpu.memory_used_bytes
    yield "gpu_utilization_ratio", labels, None if busy is None else busy / 100
    for state in TAKEABLE if gpu.state in TAKEABLE else ():
        yield "gpu_state", {**labels, "state": state}, gpu.state == state
    yield "gpu_health_problems", labels, len(gpu.health_problems)
    for job in gpu.jobs:
        of_job = {**labels, "user": job.user, "script": job.script}
        yield "claims", of_job, 1
        yield "idle_claims", of_job, job.is_idle
        yield "claim_bytes", of_job, job.claim_bytes
        yield "claim_used_bytes", of_job, job.used_bytes
    for process in gpu.unmanaged_processes:
        if not process.is_graphics:
            yield "unmanaged_processes", {**labels, "user": process.user}, 1
            yield "unmanaged_used_bytes", {**labels, "user": process.user}, process.used_bytes
