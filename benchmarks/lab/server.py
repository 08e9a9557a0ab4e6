"""Simulation of a server's GPUs and of the processes on them: how their memory grows, and how fast they run together.

It replaces the driver and the cards.

* **Memory** grows in twelve steps over a minute, from that of the CUDA context to the job's peak. If a step exceeds the
  process's cap or the card's free memory, the process ends, as with TensorFlow and PyTorch.
* **Speed** depends on U, the sum of the utilizations of the jobs on a card. Up to U = 0.75 each job runs at speed 1.
  From there the speed falls by 0.26 for each 1 of U. From U = 1.75 on, the jobs of a card together do 1.295 times the
  work of one job that has a card alone and uses it fully. The curve was fitted to the 1,388 measured pairs of
  S-Lab-System-Group/Lucid, ``simulation/data/colocate_info.csv``, whose mean speeds are 0.97 to 1.01 for U below 1,
  0.93 up to 1.25, 0.84 up to 1.5, and 0.74 above.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

from benchmarks.lab.day import GIB, Job

GROWTH_STEPS, GROWTH_S = 12, 60.0
CONTEXT_BYTES = GIB // 2

# Maximum work of a card that several jobs share; 1 is the work of a card with one job.
MOST_WORK = 1.295


def speed(utilization: float) -> float:
    """Return the speed of each job on a card whose jobs have this summed utilization; 1 is the speed alone."""
    if utilization <= 0.75:
        return 1.0
    return 1 - 0.26 * (utilization - 0.75) if utilization < 1.75 else MOST_WORK / utilization


@dataclass(eq=False)
class Run:
    """One process that runs a job.

    Attributes:
        claim_bytes: Memory reserved for it on its card; 0 for a best-effort job, or if the contender reserves none.
        cap_bytes: Memory that its framework may allocate besides the CUDA context; ``None`` for no cap.
        step: Last growth step that it has made; 0 makes the CUDA context, -1 is before that.
        work_left_s: Remaining run time at speed 1.
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
        """Return the memory in use after this growth step."""
        return 0 if step < 0 else CONTEXT_BYTES + (self.job.peak_bytes - CONTEXT_BYTES) * step // GROWTH_STEPS

    def time_of_step(self, step: int) -> float:
        return self.started_s + step * GROWTH_S / GROWTH_STEPS

    @property
    def wants_bytes(self) -> int:
        """Peak memory of the job, or the most that its cap allows if that is less."""
        most = self.job.peak_bytes if self.cap_bytes is None else CONTEXT_BYTES + self.cap_bytes
        return min(self.job.peak_bytes, most)


@dataclass
class Card:
    """One GPU.

    Attributes:
        epoch: Number that changes when a run starts or ends here. An end that was predicted before is then outdated.
        seen_s: Time up to which the work of its runs is counted.
        over_byte_s: Memory by which the peaks of its runs exceed the card, in bytes times seconds.
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
        """Sum of the utilizations of its jobs, which may exceed 1."""
        return sum(run.job.utilization for run in self.runs)

    def advance(self, now_s: float) -> None:
        """Update the work left and ``over_byte_s`` for the time since the last call."""
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
        """Return the time of the next end of a run if nothing changes, and the run; ``None`` without runs."""
        if not self.runs:
            return None
        first = min(self.runs, key=lambda run: run.work_left_s)
        return self.seen_s + max(0.0, first.work_left_s) / speed(self.utilization), first


class Server:
    """The GPUs of one server."""

    def __init__(self, gpus: int, card_bytes: int) -> None:
        self.cards = [Card(number, card_bytes) for number in range(gpus)]
        self._pids = itertools.count(10_001)

    def start(self, job: Job, card: int, now_s: float, *, claim_bytes: int = 0, cap_bytes: int | None = None) -> Run:
        """Start a process. Only its first growth step checks whether there is room for its CUDA context."""
        run = Run(job, next(self._pids), card, now_s, claim_bytes, cap_bytes, work_left_s=job.duration_s)
        self.cards[card].put(run)
        return run

    @property
    def runs(self) -> list[Run]:
        return [run for card in self.cards for run in card.runs]
