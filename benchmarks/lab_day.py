"""A day in the lab: do jobs end sooner with autogpu, and do they die less often?

    python benchmarks/lab_day.py                          every table: loads, cards, stated needs; about eight minutes
    python benchmarks/lab_day.py --load 0.9 --memory 24   two tables: without and with stated needs
    python benchmarks/lab_day.py --warm                   every table, with scripts that have run before

Replays days of a simulated four-GPU server (``lab/server.py``) with ten users and 200 jobs. Their start times,
durations, memory and utilization are sampled from published traces (``lab/day.py``). With autogpu its own rules decide
each start (``lab/rules.py``). Other tools decide on the same days by their rules (``lab/others.py``). nvitop and GPUtil
decide with their own functions: the benchmark installs them into an environment of its own. A job that fails is started
again, unchanged, some minutes later (``lab/replay.py``). At a script's first run of the day autogpu has no history of
it; with ``--warm`` it has the runs of three earlier days.

Each table also shows two means that nothing can beat (``lab/bounds.py``): one for cards with one job at a time, and one
for shared cards with unlimited memory.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import sys
import time
from itertools import product
from pathlib import Path
from typing import Any, Mapping, Sequence

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.lab import bounds, contenders  # noqa: E402  (needs the sys.path entry above)
from benchmarks.lab.day import GIB, HOUR_S, Setting, jobs_of_day  # noqa: E402
from benchmarks.lab.figures import Day, day_of, row_of  # noqa: E402
from benchmarks.lab.replay import Replay  # noqa: E402
from benchmarks.lab.tables import report  # noqa: E402
from tests.support import environments  # noqa: E402

SEEDS, LOADS, MEMORIES_GIB, STATING = 20, (0.6, 0.9, 1.2), (11, 24), (0.0, 0.25)
EARLIER_DAYS = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=SEEDS, help=f"number of days (default: {SEEDS})")
    parser.add_argument("--load", type=float, nargs="+", default=LOADS, help="the day's work divided by its GPU hours")
    parser.add_argument("--memory", type=int, nargs="+", default=MEMORIES_GIB, metavar="GIB", help="memory of a card")
    parser.add_argument("--stating", type=float, nargs="+", default=STATING, help="share of scripts that state a need")
    parser.add_argument("--warm", action="store_true", help="give autogpu the history of three earlier days")
    options = parser.parse_args()
    settings = [
        Setting(load=load, card_bytes=memory * GIB, stating=part)
        for memory, part, load in product(options.memory, options.stating, options.load)
    ]
    print(report(measure(settings, options.seeds, is_warm=options.warm)))


def measure(settings: Sequence[Setting], seeds: int, *, is_warm: bool = False) -> list[dict[str, Any]]:
    """Return a table for each setting. The days are replayed in parallel, one on each processor."""
    use_packages_of_others()
    names = list(contenders.LEGEND)
    work = [(setting, name, seed, is_warm) for setting in settings for seed in range(seeds) for name in names]
    days: dict[tuple[Setting, str], list[Day]] = {}
    begun_s = time.monotonic()
    with multiprocessing.Pool(len(os.sched_getaffinity(0))) as pool:
        for done, (setting, name, day) in enumerate(pool.imap_unordered(one_day, work, chunksize=4), 1):
            if done % 100 == 0:
                say(f"{done} of {len(work)} days, {time.monotonic() - begun_s:.0f} s")
            days.setdefault((setting, name), []).append(day)
    return [table(setting, names, days, seeds) for setting in settings]


def table(
    setting: Setting, names: Sequence[str], days: Mapping[tuple[Setting, str], Sequence[Day]], seeds: int
) -> dict[str, Any]:
    jobs = [jobs_of_day(setting, seed) for seed in range(seeds)]
    return {
        "setting": setting,
        "seeds": seeds,
        "bounds_h": {
            "exclusive": statistics.mean(bounds.exclusive(each, setting.gpus) for each in jobs) / HOUR_S,
            "shared": statistics.mean(bounds.shared(each, setting.gpus) for each in jobs) / HOUR_S,
        },
        "contenders": {name: row_of(days[setting, name]) for name in names},
    }


def one_day(work: tuple[Setting, str, int, bool]) -> tuple[Setting, str, Day]:
    setting, name, seed, is_warm = work
    days_before = range(EARLIER_DAYS, 0, -1) if is_warm else ()
    earlier = [job for number in days_before for job in jobs_of_day(setting, seed, number)]
    return setting, name, day_of(Replay(setting, seed, contenders.MADE[name](earlier)).run())


def use_packages_of_others() -> None:
    """Install nvitop and GPUtil if they are missing, and let this process and its children import them."""
    say("installing nvitop and GPUtil if they are missing")
    python = environments.environment(environments.interpreter(), contenders.PACKAGES, with_autogpu=False)
    sys.path.append(str(environments.site_packages(python)))


def say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
