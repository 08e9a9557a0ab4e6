"""Mean completion times that no way of placing jobs can beat."""

from __future__ import annotations

import heapq
from typing import Callable, Sequence

from benchmarks.lab.day import Job
from benchmarks.lab.server import MOST_WORK


def exclusive(jobs: Sequence[Job], gpus: int) -> float:
    """Return the bound in seconds for cards that run one job at a time."""
    return _bound(jobs, lambda job: job.duration_s, gpus)


def shared(jobs: Sequence[Job], gpus: int) -> float:
    """Return the bound in seconds for cards that share at the measured speeds and have unlimited memory."""
    return _bound(jobs, lambda job: job.duration_s * job.utilization, gpus * MOST_WORK)


def _bound(jobs: Sequence[Job], work_of: Callable[[Job], float], rate: float) -> float:
    # The model is one machine as fast as all cards together, but no job runs faster than alone on a card.
    return max(_srpt_mean_s(jobs, work_of, rate), sum(job.duration_s for job in jobs) / len(jobs))


def _srpt_mean_s(jobs: Sequence[Job], work_of: Callable[[Job], float], rate: float) -> float:
    """Return the mean completion time on one machine that always runs the job with the least work left (optimal)."""
    waiting: list[tuple[float, int, Job]] = []
    total_s = now_s = 0.0
    arrivals = sorted(jobs, key=lambda job: job.submitted_s)
    for place, job in enumerate(arrivals):
        now_s = job.submitted_s
        heapq.heappush(waiting, (work_of(job), job.number, job))
        until_s = arrivals[place + 1].submitted_s if place + 1 < len(arrivals) else float("inf")
        while waiting and now_s < until_s:
            work, number, first = heapq.heappop(waiting)
            done_s = now_s + work / rate
            if done_s > until_s:
                heapq.heappush(waiting, (work - (until_s - now_s) * rate, number, first))
                break
            now_s = done_s
            total_s += now_s - first.submitted_s
    return total_s / len(jobs)
