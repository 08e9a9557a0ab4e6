"""The tables of results as text. Pure functions."""

from __future__ import annotations

from typing import Any, Mapping, Sequence

from benchmarks.lab.contenders import DEFAULT, FORGETFUL, LEGEND, ORACLE
from benchmarks.lab.day import GIB

# Upper bounds for autogpu's figures. The first is the number of victims in a day. Two are for its mean time: divided by
# the mean if every job waits and states its true need, and divided by the mean without a history. The last is for the
# failed starts on cards of SMALL_GIB, divided by those without a history.
GOAL_VICTIMS, GOAL_TRUE_NEEDS, GOAL_HISTORY = 0.1, 1.3, 1.03
SMALL_GIB, GOAL_FAILED = 11, 0.45
COLUMNS = (
    ("mean", "mean_h", ".2f"),
    ("p95", "p95_h", ".1f"),
    ("longest", "longest_h", ".1f"),
    ("failed", "failed", ".1f"),
    ("victims", "victims", ".1f"),
    ("lost", "lost_gpu_h", ".2f"),
    ("over", "over_gib_h", ".2f"),
)
HEADS = """\
mean, p95, longest: hours from a job's first submission to the end of the run that succeeded; ± between days
failed: starts of a day that ran out of memory or found no GPU; victims: failed runs whose memory a later job took
lost: GPU hours of runs that did not succeed; over: GiB x h by which the peaks of a card's jobs exceed its memory"""


def report(results: Sequence[Mapping[str, Any]]) -> str:
    lines = []
    for result in results:
        lines += [*_heading(result), *_rows(result["contenders"])]
        lines += [f"  {verdict}" for verdict in verdicts(result)]
        lines.append("")
    legend = [f"{name}: {what}" for name, what in LEGEND.items()]
    return "\n".join([*lines, HEADS, *legend])


def _heading(result: Mapping[str, Any]) -> list[str]:
    setting, bounds = result["setting"], result["bounds_h"]
    share = setting.stating
    stated = f"{share:.0%} of the scripts state their need" if share else "no script states its need"
    return [
        f"{setting.gpus} GPUs of {setting.card_bytes // GIB} GiB, load {setting.load:g}, {stated}; "
        f"{result['seeds']} days of {setting.jobs} jobs",
        f"  lower bounds of the mean: {bounds['exclusive']:.2f} h (exclusive), {bounds['shared']:.2f} h (shared)",
    ]


def _rows(contenders: Mapping[str, Any]) -> list[str]:
    width = max(map(len, contenders)) + 2
    spread = " " * 6
    lines = [f"  {'':{width}}" + "".join(f"{head:>9}{spread if head == 'mean' else ''}" for head, _, _ in COLUMNS)]
    for name, row in contenders.items():
        cells = [f"{row[field]:9{form}}" for _, field, form in COLUMNS]
        cells[0] += f" ±{row['spread_h']:.2f}"
        lines.append(f"  {name:{width}}" + "".join(cells))
    return lines


def verdicts(result: Mapping[str, Any]) -> list[str]:
    ours, oracle, forgetful = (result["contenders"][name] for name in (DEFAULT, ORACLE, FORGETFUL))
    goals = [
        ("victims", ours["victims"], GOAL_VICTIMS),
        ("mean / mean with true needs", ours["mean_h"] / oracle["mean_h"], GOAL_TRUE_NEEDS),
        ("mean / mean without a history", ours["mean_h"] / forgetful["mean_h"], GOAL_HISTORY),
    ]
    if forgetful["failed"] and result["setting"].card_bytes == SMALL_GIB * GIB:
        goals.append(("failed / failed without a history", ours["failed"] / forgetful["failed"], GOAL_FAILED))
    lines = []
    for what, value, goal in goals:
        verdict = "met" if round(value, 2) <= goal else "MISSED"
        lines.append(f"{what}: {value:.2f}, goal: at most {goal:g}, {verdict}")
    return lines
