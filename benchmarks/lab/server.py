"""The GPUs of a server, and the processes on them: how their memory grows and how fast they are together.

This stands in for the driver and for the cards themselves.

* **Memory** grows from the CUDA context's to the job's peak in twelve steps, over a minute. A step that the process's
  cap or the card has no room for ends the process, as TensorFlow and PyTorch do it.
* **Speed**: with a summed utilization U on a card each of its jobs runs at 1 up to U = 0.75, then loses 0.26 for each
  1, and from 1.75 on the card does 1.295 times the work of one card, whatever the number of jobs. Fitted to the 1,388
  measured pairs of S-Lab-System-Group/Lucid, ``simulation/data/colocate_info.csv``: mean speeds 0.97 to 1.01 below 1,
  0.93 up to 1.25, 0.84 up to 1.5, 0.74 above.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

from benchmarks.lab.day import GIB, Job

GROWTH_STEPS, GROWTH_S = 12, 60.0
CONTEXT_BYTES = GIB // 2

# Of the work of one card alone, what a card does at most when several jobs share it.
MOST_WORK = 1.295


def speed(utilization: float) -> float:
    """How fast each job of a card runs, by their summed utilization; 1 is as fast as alone."""
    if utilization <= 0.75:
        return 1.0
    return 1 - 0.26 * (utilization - 0.75) if utilization < 1.75 else MOST_WORK / utilization


@dataclass(eq=False)
class Run:
    """One process that runs a job.

    Attributes:
        claim_bytes: What it was promised of its card, by those who promise anything; 0 for a best-effort job.
        cap_bytes: What its framework may allocate beside the CUDA context; ``None`` for no cap.
        step: How many steps of its growth it has made; -1 before it has a CUDA context.
        work_left_s: At speed 1.
    """

    job: Job
    pid: int
    card: int
    started_s: float
    claim_bytes: int = 0
    cap_bytes: int | None = None
    step: int = -1
    work_left_s: float = 0.0

    @property
    def used_bytes(self) -> int:
        return self.at_step(self.step)

    def at_step(self, step: int) -> int:
        """What it uses after so many steps of its growth."""
        return 0 if step < 0 else CONTEXT_BYTES + (self.job.peak_bytes - CONTEXT_BYTES) * step // GROWTH_STEPS

    def time_of_step(self, step: int) -> float:
        """When it makes that step of its growth, the first of which is its CUDA context."""
        return self.started_s + step * GROWTH_S / GROWTH_STEPS

    @property
    def wants_bytes(self) -> int:
        """What it will come to, or end at."""
        most = self.job.peak_bytes if self.cap_bytes is None else CONTEXT_BYTES + self.cap_bytes
        return min(self.job.peak_bytes, most)


@dataclass
class Card:
    """One GPU.

    Attributes:
        epoch: Changes whenever who is on it changes: an end that was foreseen before counts no more.
        seen_s: Up to when the work of its runs is counted.
    """

    number: int
    total_bytes: int
    runs: list[Run] = field(default_factory=list)
    epoch: int = 0
    seen_s: float = 0.0
    over_byte_s: float = 0.0

    @property
    def used_bytes(self) -> int:
        return sum(run.used_bytes for run in self.runs)

    @property
    def free_bytes(self) -> int:
        return self.total_bytes - self.used_bytes

    @property
    def utilization(self) -> float:
        """The sum of its jobs', which may be above 1."""
        return sum(run.job.utilization for run in self.runs)

    def advance(self, now_s: float) -> None:
        """Count what was worked, and what was promised beyond the card, since the last time."""
        passed_s, self.seen_s = now_s - self.seen_s, now_s
        if passed_s <= 0 or not self.runs:
            return
        rate = speed(self.utilization)
        for run in self.runs:
            run.work_left_s -= passed_s * rate
        over = sum(run.wants_bytes for run in self.runs) - self.total_bytes
        self.over_byte_s += max(0, over) * passed_s

    def put(self, run: Run) -> None:
        self.advance(run.started_s)
        self.runs.append(run)
        self.epoch += 1

    def remove(self, run: Run, now_s: float) -> None:
        self.advance(now_s)
        self.runs.remove(run)
        self.epoch += 1

    def next_end(self) -> tuple[float, Run] | None:
        """When the first of its runs will be done, if nothing changes."""
        if not self.runs:
            return None
        first = min(self.runs, key=lambda run: run.work_left_s)
        return self.seen_s + max(0.0, first.work_left_s) / speed(self.utilization), first


class Server:
    """All its GPUs."""

    def __init__(self, gpus: int, card_bytes: int) -> None:
        self.cards = [Card(number, card_bytes) for number in range(gpus)]
        self._pids = itertools.count(10_001)

    def start(self, job: Job, card: int, now_s: float, *, claim_bytes: int = 0, cap_bytes: int | None = None) -> Run:
        """Begin a process; whether there is room even for its context is seen at its first step."""
        run = Run(job, next(self._pids), card, now_s, claim_bytes, cap_bytes, work_left_s=job.duration_s)
        self.cards[card].put(run)
        return run

    @property
    def runs(self) -> list[Run]:
        return [run for card in self.cards for run in card.runs]
