"""Simulates a day of jobs on a GPU server, from the first submission to the end of the last job.

If a process runs out of memory or gets no GPU, its user notices it and starts the process again. Users notice after
five minutes plus a random time, exponentially distributed with mean 10 min. A job's time counts from its first
submission to the end of the run that succeeds.
"""

from __future__ import annotations

import heapq
import itertools
import random
from dataclasses import dataclass, field
from functools import partial
from typing import Callable, Protocol, Sequence, Union

from benchmarks.lab.day import DAY_S, Job, Setting, jobs_of_day
from benchmarks.lab.server import GROWTH_STEPS, Run, Server

NOTICED_S, NOTICED_MEAN_S = 300.0, 600.0
# Time from the start of a script to its CUDA context: it imports the framework and reads its data.
IMPORT_S = 10.0
# autogpu's default for ``select.wait``. A job that has waited this long for enough free memory starts with less.
WAIT_S = 1800.0
# A waiting job looks for a free GPU at this interval. So it notices this late that a time limit has passed.
LOOK_S = 2.0
# No simulated day takes this long unless a contender has a bug and starts no more jobs. ``Replay.run`` then raises an
# error.
GIVE_UP_S = 60 * DAY_S


@dataclass(frozen=True)
class Start:
    """Answer of a contender to a process that asks for a GPU: start on ``card``."""

    card: int
    claim_bytes: int = 0
    cap_bytes: int | None = None


@dataclass(frozen=True)
class Wait:
    """Answer of a contender to a process: wait in the queue, and ask again each time the server changes."""


@dataclass(frozen=True)
class Later:
    """Answer of a contender to a process: ask again after ``after_s`` seconds, without a place in the queue."""

    after_s: float


@dataclass(frozen=True)
class NoGpu:
    """Answer of a contender to a process: start no run.

    The program ends because it got no GPU, or its user stops it because it runs without one.
    """


Answer = Union[Start, Wait, Later, NoGpu]


@dataclass
class Attempt:
    """One start of a job by its user.

    Attributes:
        asked_s: Time when the user started the job.
        earlier: Number of failed starts of the same job before this one.
    """

    job: Job
    asked_s: float
    earlier: int = 0


class Contender(Protocol):
    """A rule by which processes get their GPUs.

    Attributes:
        lag_s: Time from a process's choice of a card to its CUDA context. If a script chooses at its start, no other
            process sees the choice until the script has imported the framework. If the process reserves the card, or
            chooses it together with the context, others see the choice at once, and the lag is 0.
    """

    lag_s: float

    def place(self, attempt: Attempt, now_s: float, server: Server, ahead: Sequence[Attempt]) -> Answer:
        """Return the answer to the process of ``attempt``, which asks for a GPU now.

        Args:
            ahead: Attempts ahead of ``attempt`` in the queue, in queue order.
        """

    def learn(self, run: Run, took_bytes: int, *, has_failed: bool) -> None:
        """Remember how much memory a run has used; if the run failed, the memory that it requested then."""

    def is_behind(self, attempt: Attempt, refused: Attempt) -> bool:
        """True if ``attempt`` has to wait until ``refused`` has started.

        ``refused`` is ahead of ``attempt`` in the queue, needs no more memory, and has just got no GPU.
        """


@dataclass
class Outcome:
    """Result of a simulated day.

    Attributes:
        took_s: Time from a job's first submission to its success, keyed by the job's number.
        starts: All starts in order: time, number of the job, card, and cap in bytes (``None`` without a cap).
        failed: Number of starts that ran out of memory, without the ``victims``, or in which the process got no GPU.
        victims: Number of runs that ran out of memory because runs that started later on the same card had taken it.
        lost_s: GPU time of all runs that did not succeed.
        over_byte_s: Memory by which the peaks of a card's runs exceed the card's memory, in bytes times seconds.
        deaths: All runs that ran out of memory, in order: time and number of the job.
    """

    took_s: dict[int, float] = field(default_factory=dict)
    starts: list[tuple[float, int, int, int | None]] = field(default_factory=list)
    failed: int = 0
    victims: int = 0
    lost_s: float = 0.0
    over_byte_s: float = 0.0
    deaths: list[tuple[float, int]] = field(default_factory=list)


class Replay:
    """Simulation of one day on a server whose processes get their GPUs from one contender."""

    def __init__(self, setting: Setting, seed: int, contender: Contender, jobs: Sequence[Job] | None = None) -> None:
        self._server = Server(setting.gpus, setting.card_bytes)
        self._contender = contender
        self._chance = random.Random(f"{seed} users")
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._order = itertools.count()
        self._queue: list[Attempt] = []
        self._earlier: dict[int, int] = {}
        self._outcome = Outcome()
        self._jobs = jobs_of_day(setting, seed) if jobs is None else jobs

    def run(self) -> Outcome:
        """Simulate the day, and return its result.

        Raises:
            RuntimeError: At least one job never succeeded.
        """
        for job in self._jobs:
            self._asks_at(job.submitted_s, Attempt(job, job.submitted_s))
        while self._events:
            now_s, _, act = heapq.heappop(self._events)
            if now_s > GIVE_UP_S:
                break
            act(now_s)
        if len(self._outcome.took_s) < len(self._jobs):
            raise RuntimeError(f"{len(self._jobs) - len(self._outcome.took_s)} jobs never succeeded")
        self._outcome.over_byte_s = sum(card.over_byte_s for card in self._server.cards)
        return self._outcome

    def _at(self, time_s: float, act: Callable[[float], None]) -> None:
        heapq.heappush(self._events, (time_s, next(self._order), act))

    def _asks_at(self, begun_s: float, attempt: Attempt) -> None:
        self._at(begun_s + IMPORT_S - self._contender.lag_s, partial(self._ask, attempt))

    def _ask(self, attempt: Attempt, now_s: float) -> None:
        answer = self._contender.place(attempt, now_s, self._server, tuple(self._queue))
        if isinstance(answer, Start) and self._contender.lag_s:
            self._at(now_s + self._contender.lag_s, partial(self._start, attempt, answer))
        elif isinstance(answer, Start):
            self._start(attempt, answer, now_s)
            self._serve(now_s)
        elif isinstance(answer, Wait):
            self._queue.append(attempt)
            for waits in (1, 2):
                self._at(now_s + waits * WAIT_S + LOOK_S, self._serve)
            self._serve(now_s)
        elif isinstance(answer, Later):
            self._at(now_s + answer.after_s, partial(self._ask, attempt))
        else:
            self._outcome.failed += 1
            self._again(attempt.job, now_s)

    def _serve(self, now_s: float) -> None:
        """Let the waiting jobs ask for a GPU again, in queue order, until none of them can start."""
        is_changed = True
        while is_changed and self._queue:
            is_changed = False
            refused: list[Attempt] = []
            for place, attempt in enumerate(self._queue):
                if any(self._contender.is_behind(attempt, other) for other in refused):
                    continue
                answer = self._contender.place(attempt, now_s, self._server, tuple(self._queue[:place]))
                if isinstance(answer, Start):
                    self._queue.remove(attempt)
                    self._start(attempt, answer, now_s)
                    is_changed = True
                    break
                refused.append(attempt)

    def _start(self, attempt: Attempt, answer: Start, now_s: float) -> None:
        run = self._server.start(
            attempt.job, answer.card, now_s, claim_bytes=answer.claim_bytes, cap_bytes=answer.cap_bytes
        )
        self._outcome.starts.append((now_s, attempt.job.number, answer.card, answer.cap_bytes))
        self._foresee(run.card)
        self._grow(run, now_s)
        # A contender's answer may depend on how long a run has lasted. So waiting jobs ask again after 1 and 2 min.
        for minutes in (1, 2):
            self._at(now_s + minutes * 60.0 + LOOK_S, self._serve)

    def _grow(self, run: Run, now_s: float) -> None:
        card = self._server.cards[run.card]
        if run not in card.runs:
            return
        more = run.at_step(run.step + 1) - run.used_bytes
        is_capped = run.cap_bytes is not None and run.at_step(run.step + 1) > run.at_step(0) + run.cap_bytes
        if is_capped or more > card.free_bytes:
            later = [other for other in card.runs if other.pid > run.pid]
            without_later = card.free_bytes + sum(other.used_bytes for other in later)
            is_victim = not is_capped and bool(later) and more <= without_later
            self._fail(run, now_s, is_victim=is_victim)
            return
        run.step += 1
        if run.step < GROWTH_STEPS:
            self._at(run.time_of_step(run.step + 1), partial(self._grow, run))

    def _fail(self, run: Run, now_s: float, *, is_victim: bool) -> None:
        outcome = self._outcome
        outcome.victims += is_victim
        outcome.failed += not is_victim
        outcome.lost_s += now_s - run.started_s
        outcome.deaths.append((now_s, run.job.number))
        self._contender.learn(run, run.at_step(run.step + 1), has_failed=True)
        self._server.cards[run.card].remove(run, now_s)
        self._again(run.job, now_s)
        self._foresee(run.card)
        self._serve(now_s)

    def _again(self, job: Job, now_s: float) -> None:
        earlier = self._earlier[job.number] = self._earlier.get(job.number, 0) + 1
        asked_s = now_s + NOTICED_S + self._chance.expovariate(1 / NOTICED_MEAN_S)
        self._asks_at(asked_s, Attempt(job, asked_s, earlier))

    def _end(self, run: Run, epoch: int, now_s: float) -> None:
        if epoch != self._server.cards[run.card].epoch:
            return
        self._server.cards[run.card].remove(run, now_s)
        self._outcome.took_s[run.job.number] = now_s - run.job.submitted_s
        self._contender.learn(run, run.used_bytes, has_failed=False)
        self._foresee(run.card)
        self._serve(now_s)

    def _foresee(self, card: int) -> None:
        found = self._server.cards[card].next_end()
        if found is not None:
            self._at(found[0], partial(self._end, found[1], self._server.cards[card].epoch))
