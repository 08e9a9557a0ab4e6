"""The jobs of one day, sampled from published traces of clusters.

All figures were counted in the files below. Quantiles between two figures are interpolated: geometrically for times and
sizes, which span several orders of magnitude, and linearly for utilizations.

* **Durations**: alibaba/clusterdata, ``cluster-trace-gpu-v2020/analysis/philly_runtime.csv``, 83,154 jobs. They are cut
  to between 60 s and 24 h, then scaled to the load of the day; none falls below 60 s.
* **Arrivals**: S-Lab-System-Group/Lucid, ``simulation/data/Venus/cluster_throughput.csv``, 125,214 jobs in 181 days,
  by the hour. Three submissions in ten are bursts: 2 + Exp(5) jobs of one script, started a second apart. (In the
  trace, the number of jobs in ten minutes has a variance of 15 times its mean; in a Poisson process it would be 1.)
* **Memory and utilization**: the same repository, ``simulation/analyzer/single_data.csv``, 66 configurations. Each
  script gets a memory and a utilization, drawn independently. Each of its runs takes that memory times U(0.95, 1.1).
  The memory is that of the process, CUDA context included. A run takes at most 95 % of its card, since people size
  their models to their card.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from dataclasses import dataclass
from typing import Callable, Sequence

GIB = 1 << 30
HOUR_S = 3600.0
DAY_S = 24 * HOUR_S

# Pairs: a fraction of the jobs, and the longest duration among them in seconds.
DURATIONS_S = (
    *((0.0, 30.0), (0.1, 61.0), (0.39, 600.0), (0.5, 1186.0)),
    *((0.76, HOUR_S), (0.9, 12860.0), (0.965, DAY_S)),
)
SHORTEST_S, LONGEST_S = 60.0, DAY_S
# Percent of the jobs that arrive in each hour, from midnight on.
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
# Bounds of the random factor by which a run's memory differs from its script's.
MEMORY_SPREAD = (0.95, 1.1)

USERS, SCRIPTS, JOBS = 10, 60, 200


@dataclass(frozen=True)
class Job:
    """One job of the day.

    Attributes:
        submission: Number of the submission, which the jobs of a burst share.
        submitted_s: Time of its submission, since midnight.
        duration_s: Run time alone on a GPU.
        peak_bytes: Peak memory of its process, CUDA context included.
        utilization: Utilization of a GPU that it has alone, 0 to 1.
        need_bytes: Need stated by its user; ``None`` if the user states none.
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
    """Parameters of a simulated day.

    Attributes:
        load: GPU hours that the jobs would take alone, as a fraction of the server's GPU hours in 24 h.
        stating: Fraction of the scripts, 0 to 1, whose users state ``need``. They state the script's maximum, rounded
            up to half a GiB.
    """

    load: float = 0.9
    gpus: int = 4
    card_bytes: int = 24 * GIB
    stating: float = 0.0
    jobs: int = JOBS


def jobs_of_day(setting: Setting, seed: int, days_before: int = 0) -> tuple[Job, ...]:
    """Return the jobs of one day, in the order of their submission.

    Days with the same seed and ``days_before`` differ only as their settings differ.

    Args:
        days_before: 0 for the day of ``seed``. A larger number selects the day that many days earlier, which has the
            same scripts, started at other times.
    """
    # Each topic has its own random generator, so that days of different load have the same people at the same hours.
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
            # Zipf's law: the second person submits half as often as the first.
            user = person.choices(range(USERS), [1 / (rank + 1) for rank in range(USERS)])[0]
            script_of[submission] = person.randrange(SCRIPTS // USERS) * USERS + user
        script = script_of[submission]
        size, utilization, is_stated = scripts[script]
        most = int(setting.card_bytes * MOST_OF_CARD)
        found.append(
            Job(
                number=number,
                user=script % USERS,
                script=script,
                submission=submission,
                submitted_s=submitted_s,
                duration_s=durations[number],
                peak_bytes=min(int(size * chance["memory"].uniform(*MEMORY_SPREAD)), most),
                utilization=utilization,
                need_bytes=min(_rounded_up(size * MEMORY_SPREAD[1]), setting.card_bytes) if is_stated else None,
            )
        )
    return tuple(found)


def quantile(points: Sequence[tuple[float, float]], part: float, *, is_linear: bool = False) -> float:
    """Return the value that the fraction ``part`` of all values does not exceed, interpolated between ``points``."""
    right = min(max(bisect_right([each[0] for each in points], part), 1), len(points) - 1)
    (below, low), (above, high) = points[right - 1], points[right]
    way = min(1.0, (part - below) / (above - below))
    return low + (high - low) * way if is_linear else low * (high / low) ** way


def _scripts(setting: Setting, chance: random.Random) -> list[tuple[float, float, bool]]:
    """Return the memory in bytes, the utilization, and whether the user states the memory, for each script number."""
    return [
        (
            quantile(MEMORY_GIB, chance.random()) * GIB,
            quantile(UTILIZATION, chance.random(), is_linear=True),
            chance.random() < setting.stating,
        )
        for _ in range(SCRIPTS)
    ]


def _submissions(count: int, chance: random.Random) -> list[tuple[int, float]]:
    """Return the submission number and the time of each job, sorted by time."""
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
    """Return the drawn durations, all multiplied by the one factor that gives the day its load."""
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
