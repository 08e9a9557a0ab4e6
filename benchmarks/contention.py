"""Jobs that start in the same instant: who shares a GPU that was promised to one, and how long a choice takes.

    python benchmarks/contention.py                      every scenario, about three minutes
    python benchmarks/contention.py --scenario 4-on-4    one of them

On simulated GPUs, and every contender in the same run. A job is a small real process: all start at once, import their
contender's library, wait until the others have, and are then released by one event, so that all choose in the same
instant. It chooses; makes a real CUDA context on the GPU that it chose; and grows into its memory, little at first, as
TensorFlow does with memory growth. It keeps the GPU until all have chosen; with ``wait``, for half a second to one
second, and every second one is ended by SIGKILL.

The time to a decision is what a tool takes of a job, from its import to its answer; waiting for the others to import
is left out. The part after the release is shown apart: there those who don't look at each other have little to do.

* **autogpu** goes its whole way except for TensorFlow: policy, probe, readings, mutex, lease.
* **nvitop** is the real package: ``select_devices(max_count=1, min_free_memory=need)``.
* **GPUtil**, **setGPU**, **safe_gpu** are their published algorithms on NVML readings: the packages start nvidia-smi or
  gpustat, which the simulated server has none of, and their processes' time is not counted here.

A process of its own observes the driver's log and the lease folder all the while, with none of autogpu's code
(``observer.py``). *Shared* counts jobs that were on a GPU together with another one although it was promised to one:
by a job without ``need``, or by a tool that knows no ``need`` and picks one GPU per job. *Over* is by how much what
jobs on a GPU were promised exceeded it, at most, at any instant: by the driver's log for all, by the leases as well.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Mapping, Sequence

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.contention_start import (  # noqa: E402  (a script finds its own project by the line above)
    GIB,
    GPU_BYTES,
    UNEXPECTED,
    Gate,
    Job,
    Place,
    a_place,
    an_order,
    end_now,
    finish,
    jobs_reaped,
    lease_folder,
    listen,
    ms,
    observed,
    percentile,
    policy,
    say,
    start,
)
from tests.gpusim import Gpu, Server  # noqa: E402
from tests.support import environments  # noqa: E402

CONTENDERS = ("autogpu", "nvitop", "GPUtil", "setGPU", "safe_gpu")
KNOW_NEED = ("autogpu", "nvitop")


@dataclass(frozen=True)
class Scenario:
    """K jobs on G GPUs.

    Attributes:
        need_bytes: ``None`` for whole GPUs.
        rounds: How often, by default.
    """

    name: str
    jobs: int
    gpus: int
    need_bytes: int | None = None
    busy: str = "share"
    rounds: int = 2


SCENARIOS = (
    Scenario("4-on-4", 4, 4, rounds=8),
    Scenario("16-on-8-half", 16, 8, need_bytes=GPU_BYTES // 2, rounds=4),
    Scenario("64-on-8-eighth", 64, 8, need_bytes=GPU_BYTES // 8, rounds=2),
    Scenario("16-on-8-wait", 16, 8, busy="wait", rounds=3),
)


@dataclass
class Turn:
    """One contender's jobs in one round."""

    jobs: list[Job]
    seen: dict[str, Any]
    complaints: int


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [scenario.name for scenario in SCENARIOS]
    parser.add_argument("--scenario", nargs="+", choices=names, metavar="NAME", help=f"only these: {', '.join(names)}")
    parser.add_argument("--contender", nargs="+", choices=CONTENDERS, metavar="NAME", default=list(CONTENDERS))
    parser.add_argument("--runs", type=int, help="rounds of each scenario (default: as many as three minutes allow)")
    parser.add_argument("--seed", type=int, default=1, help="of everything random (default: 1)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="autogpu-contention-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        say("installing nvitop where it is missing")
        python = environments.interpreter(f"{sys.version_info[0]}.{sys.version_info[1]}")
        needed = ["nvitop", "tomli; python_version < '3.11'"]
        place = a_place(folder, str(environments.environment(python, needed, with_autogpu=False)))
        results = {}
        for scenario in SCENARIOS:
            if scenario.name in (options.scenario or names):
                rounds = options.runs or scenario.rounds
                results[scenario.name] = measure(place, scenario, options.contender, rounds, options.seed)
    print(report(results))
    return 0


def measure(place: Place, scenario: Scenario, contenders: Sequence[str], rounds: int, seed: int) -> dict[str, Any]:
    """All rounds of a scenario; the contenders take turns, so that a machine that drifts slows all of them."""
    turns: dict[str, list[Turn]] = {name: [] for name in contenders}
    for turn in range(rounds):
        for name in sorted(contenders, reverse=bool(turn % 2)):
            say(f"{scenario.name}, run {turn + 1} of {rounds}: {name}")
            turns[name].append(one_turn(place, scenario, name, seed + turn))
    return {
        "jobs": scenario.jobs,
        "gpus": scenario.gpus,
        "rounds": rounds,
        "contenders": {name: row(scenario, name, turns[name]) for name in contenders},
    }


def one_turn(place: Place, scenario: Scenario, contender: str, seed: int) -> Turn:
    with tempfile.TemporaryDirectory(prefix="turn-", dir=place.folder) as name:
        folder = Path(name)
        gpus = [Gpu(memory=GPU_BYTES)] * scenario.gpus
        with Server(gpus, folder=folder) as server, jobs_reaped() as jobs:
            leases = lease_folder(folder)
            promise = GPU_BYTES if scenario.need_bytes is None else scenario.need_bytes
            with observed(server, folder, leases, promise) as seen:
                dice = random.Random(seed)
                go, end = Gate(), Gate()
                with go, end:
                    for _ in range(scenario.jobs):
                        hold_s = 0.5 + dice.random() / 2 if scenario.busy == "wait" else None
                        order = an_order(
                            contender, scenario.need_bytes, hold_s, dice.randrange(1 << 30), folder, (go, end)
                        )
                        environ = {} if contender != "autogpu" else policy(scenario.need_bytes, scenario.busy, "60s")
                        jobs.append(start(place, server, folder, leases, order, environ, (go, end)))
                    listen(jobs, "ready")
                    go.open()
                    if scenario.busy == "wait":
                        listen(jobs, "ending", kill_every_second_holder(dice))
                    else:
                        listen(jobs, "decided")
                        listen([job for job in jobs if job.gpus], "grown")
                    end.open()
                    listen(jobs, "ending")
                finish(jobs)
            return Turn(jobs, seen, complain(contender, jobs))


def kill_every_second_holder(dice: random.Random) -> Any:
    """While jobs wait: SIGKILL half of those who hold, some time after they took their GPU."""
    fates: dict[int, float | None] = {}

    def kill(jobs: Sequence[Job]) -> None:
        for job in jobs:
            pid = job.process.pid
            if job.gpus and pid not in fates:
                is_killed = len(fates) % 2 == 0
                fates[pid] = time.monotonic() + 0.2 + 0.3 * dice.random() if is_killed else None
            fate = fates.get(pid)
            if fate is not None and job.killed_s is None and time.monotonic() > fate and "ending" not in job.said:
                end_now(job)

    return kill


def complain(contender: str, jobs: Sequence[Job]) -> int:
    """Show what jobs printed that is not expected of them: a fault must not look like a figure."""
    complaints = []
    for job in jobs:
        text = job.errors.read_text(errors="replace")
        if any(word in text for word in UNEXPECTED) or (job.killed_s is None and job.process.returncode):
            complaints.append(text.strip()[-1500:] or f"ended with status {job.process.returncode}")
    if complaints:
        say(f"{contender}: {len(complaints)} of {len(jobs)} jobs had trouble, such as: {complaints[0]}", lasting=True)
    return len(complaints)


def row(scenario: Scenario, contender: str, turns: Sequence[Turn]) -> dict[str, Any]:
    """A contender's figures over all rounds."""
    jobs = [job for turn in turns for job in turn.jobs]
    decided = [job for job in jobs if "decided" in job.said]
    waited: list[Job] = []
    handovers: list[float] = []
    after_kills: list[float] = []
    for turn in turns:
        found = hand_overs(turn.jobs) if scenario.busy == "wait" and contender == "autogpu" else []
        waited += [job for job, _, _ in found]
        handovers += [seconds for _, seconds, _ in found]
        after_kills += [seconds for _, seconds, was_killed in found if was_killed]
    # A job that waited decided when another one ended: that time is its hand-over.
    answered = [job for job in decided if job not in waited]
    times = [job.said["ready"]["import_s"] + job.took_s for job in answered]
    choices = [job.took_s for job in answered]
    is_promised_to_one = scenario.need_bytes is None or contender not in KNOW_NEED
    return {
        "started": len(jobs),
        "got": sum(bool(job.gpus) for job in jobs),
        "shared": sum(len(turn.seen["shared_pids"]) for turn in turns) if is_promised_to_one else None,
        "over_bytes": max(max(turn.seen["promise_over_bytes"], turn.seen["over_bytes"], 0) for turn in turns),
        "lease_over_bytes": max(turn.seen["over_bytes"] for turn in turns) if contender == "autogpu" else None,
        "out_of_memory": sum(not job.said.get("grown", {}).get("has_room", True) for job in jobs),
        "decision_median_s": statistics.median(times) if times else None,
        "decision_p99_s": percentile(times, 99) if times else None,
        "decisions": len(times),
        "choice_median_s": statistics.median(choices) if choices else None,
        "choice_p99_s": percentile(choices, 99) if choices else None,
        "complaints": sum(turn.complaints for turn in turns),
        "handover_median_s": statistics.median(handovers) if handovers else None,
        "handover_p99_s": percentile(handovers, 99) if handovers else None,
        "handover_after_sigkill_median_s": statistics.median(after_kills) if after_kills else None,
        "handovers": len(handovers),
        "observer_longest_gap_s": max(turn.seen["longest_gap_s"] for turn in turns),
    }


def hand_overs(jobs: Sequence[Job]) -> list[tuple[Job, float, bool]]:
    """For each job that got its GPU after another, the time from that one's end to its decision; if by SIGKILL."""
    found = []
    for job in jobs:
        if not job.gpus:
            continue
        decided_s = job.said["decided"]["decided_s"]
        earlier = [o for o in jobs if o is not job and o.gpus[:1] == job.gpus[:1] and o.end_s and o.end_s < decided_s]
        if earlier:
            last = max(earlier, key=lambda other: other.end_s)
            found.append((job, decided_s - last.end_s, last.killed_s is not None))
    return found


def report(results: Mapping[str, Any]) -> str:
    lines = []
    for name, result in results.items():
        lines.append(f"{name}: {result['jobs']} jobs on {result['gpus']} GPUs, {result['rounds']} times")
        titles = ("got a GPU", "shared", "over", "no memory", "median", "p99", "choice", "its p99", "hand-over")
        lines.append(f"  {'':10}" + "".join(f"{title:>12}" for title in titles))
        for contender, figures in result["contenders"].items():
            cells = (
                f"{figures['got']}/{figures['started']}",
                "-" if figures["shared"] is None else str(figures["shared"]),
                f"{figures['over_bytes'] / GIB:.1f} GiB",
                str(figures["out_of_memory"]),
                ms(figures["decision_median_s"]),
                ms(figures["decision_p99_s"]),
                ms(figures["choice_median_s"]),
                ms(figures["choice_p99_s"]),
                ms(figures["handover_median_s"]),
            )
            lines.append(f"  {contender:10}" + "".join(f"{cell:>12}" for cell in cells))
        lines += [*(f"  {line}" for line in verdicts(result["contenders"])), ""]
    return "\n".join([*lines, LEGEND])


LEGEND = """\
shared: jobs on a GPU that was promised to one; "-" where each job said how little it needs, so that sharing is meant
over: by how much what the jobs on a GPU counted on exceeded it, at the worst instant
no memory: jobs that were refused memory below what they had counted on
median, p99: of the time to a decision, the import of the tool's library included
choice: the part of it after the start signal"""


def verdicts(contenders: Mapping[str, Any]) -> list[str]:
    ours, theirs = contenders.get("autogpu"), contenders.get("nvitop")
    if not ours:
        return []
    is_exact = not ours["shared"] and not ours["over_bytes"]
    lines = [f"goal, nothing shared and nothing over-promised: {'met' if is_exact else 'MISSED'}"]
    if ours["complaints"]:
        lines.append(f"{ours['complaints']} jobs of autogpu had trouble; stderr has an example")
    if theirs and theirs["decision_p99_s"] and ours["decision_p99_s"]:
        is_faster = ours["decision_p99_s"] < theirs["decision_p99_s"]
        lines.append(f"goal, a p99 below nvitop's: {'met' if is_faster else 'MISSED'}")
        of_choice = f"p99 {ms(ours['choice_p99_s'])} against {ms(theirs['choice_p99_s'])}"
        lines.append(f"the choice alone, which nvitop makes without looking at the other jobs: {of_choice}")
    if ours["handover_after_sigkill_median_s"] is not None:
        lines.append(f"hand-over after SIGKILL alone: median {ms(ours['handover_after_sigkill_median_s'])}")
    return lines


if __name__ == "__main__":
    for name in [name for name in os.environ if name.startswith(("AUTOGPU", "CUDA_", "GPUSIM"))]:
        del os.environ[name]
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        raise SystemExit("contention.py: stopped") from None
