"""The figures of a day, and their means over several days as a row of the table. Pure functions."""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass
from typing import Any, Sequence

from benchmarks.lab.day import GIB, HOUR_S
from benchmarks.lab.replay import Outcome


@dataclass(frozen=True)
class Day:
    """Figures of one contender on one day.

    Attributes:
        mean_h: Mean time of a job, from its first submission to the end of the run that succeeded.
        longest_h: Longest time of any job. A rule that starves a job shows here.
        failed: Starts that ran out of memory or found no GPU.
        victims: Runs that ran out of memory because a run that started later on the same card had taken it.
        lost_gpu_h: GPU time of all runs that did not succeed.
        over_gib_h: Memory by which the peaks of a card's runs exceed the card, in GiB times hours.
    """

    mean_h: float
    p95_h: float
    longest_h: float
    failed: int
    victims: int
    lost_gpu_h: float
    over_gib_h: float


def day_of(outcome: Outcome) -> Day:
    took = sorted(each / HOUR_S for each in outcome.took_s.values())
    return Day(
        mean_h=statistics.mean(took),
        p95_h=took[max(0, -(-len(took) * 95 // 100) - 1)],
        longest_h=took[-1],
        failed=outcome.failed,
        victims=outcome.victims,
        lost_gpu_h=outcome.lost_s / HOUR_S,
        over_gib_h=outcome.over_byte_s / GIB / HOUR_S,
    )


def row_of(days: Sequence[Day]) -> dict[str, Any]:
    """Return the means over the days, and the standard deviation of ``mean_h`` between days."""
    rows = [asdict(day) for day in days]
    means = {name: statistics.mean(row[name] for row in rows) for name in rows[0]}
    spread = statistics.stdev(day.mean_h for day in days) if len(days) > 1 else 0.0
    return {**means, "spread_h": spread}
