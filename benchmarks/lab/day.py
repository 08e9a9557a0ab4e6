"""The jobs of one day, sampled from what clusters have published.

All figures were counted in the files named; between two of them a quantile is interpolated: of times and sizes
geometrically, as they span several orders of magnitude, of a utilization linearly.

* **Durations**: alibaba/clusterdata, ``cluster-trace-gpu-v2020/analysis/philly_runtime.csv``, 83,154 jobs; cut to 60 s
  to 24 h, then scaled so that the day has the load asked for, and none below 60 s.
* **Arrivals**: S-Lab-System-Group/Lucid, ``simulation/data/Venus/cluster_throughput.csv``, 125,214 jobs in 181 days,
  by the hour; three submissions in ten are a burst of 2 + Exp(5) jobs of one script, started a second apart. (The
  number of jobs in ten minutes has a variance of 15 times its mean there: a Poisson process would have 1.)
* **Memory and utilization**: the same repository, ``simulation/analyzer/single_data.csv``, 66 configurations; drawn
  once for each script, independently, and the memory of each run again times U(0.95, 1.1). The memory is the process's,
  with its CUDA context; of a card that is too small for a script it is 95 %, since people size their models to their
  card.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from dataclasses import dataclass
from typing import Callable, Sequence

GIB = 1 << 30
HOUR_S = 3600.0
DAY_S = 24 * HOUR_S

# Which part of the jobs has at most that duration.
DURATIONS_S = (
    *((0.0, 30.0), (0.1, 61.0), (0.39, 600.0), (0.5, 1186.0)),
    *((0.76, HOUR_S), (0.9, 12860.0), (0.965, DAY_S)),
)
SHORTEST_S, LONGEST_S = 60.0, DAY_S
# In percent, of the hours from midnight.
ARRIVALS = (
    *(3.7, 2.7, 2.5, 1.6, 1.1, 0.9, 0.8, 0.9, 1.6, 3.3, 5.4, 6.1),
    *(4.9, 5.4, 6.5, 6.9, 7.2, 7.2, 5.3, 5.5, 5.6, 5.7, 4.8, 4.3),
)
BURSTS, BURST_MEAN = 0.3, 5.0
MEMORY_GIB = (
    *((0.0, 2.0), (0.1, 2.0), (0.25, 2.28), (0.5, 2.94), (0.75, 3.98)),
    *((0.9, 8.37), (0.95, 11.67), (0.99, 19.69), (1.0, 19.69)),
)
UTILIZATION = ((0.0, 0.056), (0.1, 0.098), (0.25, 0.206), (0.5, 0.48), (0.75, 0.78), (0.9, 0.996), (1.0, 1.0))
MOST_OF_CARD = 0.95

USERS, SCRIPTS, JOBS = 10, 60, 200


@dataclass(frozen=True)
class Job:
    """What somebody wants done.

    Attributes:
        submission: Those of one burst share it.
        submitted_s: Since midnight.
        duration_s: Alone on a GPU.
        peak_bytes: What its process takes in the end, its CUDA context included.
        utilization: Of a GPU that it has alone, 0 to 1.
        need_bytes: What its user says that it needs; ``None`` where nothing is said.
    """

    number: int
    user: int
    script: int
    submission: int
    submitted_s: float
    duration_s: float
    peak_bytes: int
    utilization: float
    need_bytes: int | None = None


@dataclass(frozen=True)
class Setting:
    """What is asked of a day.

    Attributes:
        load: The hours of GPU that its jobs would take alone, as a part of what the server has in 24 h.
        stating: The part of the scripts whose user states ``need``, 0 to 1: the most that the script takes, rounded up
            to half a GiB.
        memory_spread: The memory of a run is its script's times a number between these.
    """

    load: float = 0.9
    gpus: int = 4
    card_bytes: int = 24 * GIB
    stating: float = 0.0
    jobs: int = JOBS
    memory_spread: tuple[float, float] = (0.95, 1.1)


def jobs_of_day(setting: Setting, seed: int, days_before: int = 0) -> tuple[Job, ...]:
    """Return the jobs of one day, in the order of their submission.

    Days with the same seed and ``days_before`` differ only as their settings differ.

    Args:
        days_before: The number of days before the day of ``seed``: the same scripts, started at other times.
    """
    # One source of chance for each thing, so that another load has the same people at the same hours.
    names = ("arrivals", "people", "durations", "memory")
    day = f" {-days_before}" if days_before else ""
    chance = {name: random.Random(f"{seed} {name}{day}") for name in names}
    scripts = _scripts(setting, random.Random(f"{seed} scripts"))
    submitted = _submissions(setting.jobs, chance["arrivals"])
    durations = _durations(setting, [quantile(DURATIONS_S, chance["durations"].random()) for _ in submitted])
    found, person = [], chance["people"]
    script_of: dict[int, int] = {}
    for number, (submission, submitted_s) in enumerate(submitted):
        if submission not in script_of:
            # Zipf: the second person starts half as many as the first.
            user = person.choices(range(USERS), [1 / (rank + 1) for rank in range(USERS)])[0]
            script_of[submission] = person.randrange(SCRIPTS // USERS) * USERS + user
        script = script_of[submission]
        size, utilization, is_stated = scripts[script]
        low, high = setting.memory_spread
        most = int(setting.card_bytes * MOST_OF_CARD)
        found.append(
            Job(
                number=number,
                user=script % USERS,
                script=script,
                submission=submission,
                submitted_s=submitted_s,
                duration_s=durations[number],
                peak_bytes=min(int(size * chance["memory"].uniform(low, high)), most),
                utilization=utilization,
                need_bytes=min(_rounded_up(size * high), setting.card_bytes) if is_stated else None,
            )
        )
    return tuple(found)


def quantile(points: Sequence[tuple[float, float]], part: float, *, is_linear: bool = False) -> float:
    """The value that a part of all do not exceed, interpolated between ``points``."""
    right = min(max(bisect_right([each[0] for each in points], part), 1), len(points) - 1)
    (below, low), (above, high) = points[right - 1], points[right]
    way = min(1.0, (part - below) / (above - below))
    return low + (high - low) * way if is_linear else low * (high / low) ** way


def _scripts(setting: Setting, chance: random.Random) -> list[tuple[float, float, bool]]:
    """By number, its memory in bytes, its utilization, and whether its user states the memory."""
    return [
        (
            quantile(MEMORY_GIB, chance.random()) * GIB,
            quantile(UTILIZATION, chance.random(), is_linear=True),
            chance.random() < setting.stating,
        )
        for _ in range(SCRIPTS)
    ]


def _submissions(count: int, chance: random.Random) -> list[tuple[int, float]]:
    """The number of its submission and the time of each job."""
    found: list[tuple[int, float]] = []
    submission = 0
    while len(found) < count:
        hour = chance.choices(range(24), ARRIVALS)[0]
        begun_s = (hour + chance.random()) * HOUR_S
        size = 2 + int(chance.expovariate(1 / BURST_MEAN)) if chance.random() < BURSTS else 1
        found += [(submission, begun_s + second) for second in range(min(size, count - len(found)))]
        submission += 1
    return sorted(found, key=lambda each: each[1])


def _durations(setting: Setting, drawn: Sequence[float]) -> list[float]:
    """Those drawn times the one factor that makes the day's load."""
    cut = [min(max(each, SHORTEST_S), LONGEST_S) for each in drawn]
    wanted_s = setting.load * setting.gpus * DAY_S

    def scaled(factor: float) -> list[float]:
        return [max(SHORTEST_S, each * factor) for each in cut]

    return scaled(_root(lambda factor: sum(scaled(factor)) - wanted_s, 0.0, 1000.0))


def _root(rising: Callable[[float], float], low: float, high: float) -> float:
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if rising(middle) < 0 else (low, middle)
    return high


def _rounded_up(size: float) -> int:
    half = GIB // 2
    return -(-int(size) // half) * half
