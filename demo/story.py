"""The effect of two jobs on a server, read from the driver's log, and the output of both demos."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Callable, Iterable, Sequence, TypeVar

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from autogpu.cli.screen import show_line
from tests.gpusim import Call

GIB = 1 << 30
Jobs = TypeVar("Jobs")


@dataclass(frozen=True)
class Phase:
    """Result of one run of both jobs, without or with autogpu.

    Attributes:
        exit_statuses: Exit statuses of the jobs, in the order in which they were started.
        most_bytes: Peak memory that both jobs together held on each GPU.
        working_gpus: GPUs on which each job allocated memory for its work.
        context_gpus: GPUs on which each job opened a context.
        lines: Lines that autogpu printed.
    """

    exit_statuses: tuple[int, ...]
    most_bytes: tuple[int, ...]
    working_gpus: tuple[frozenset[int], ...]
    context_gpus: tuple[frozenset[int], ...]
    lines: tuple[str, ...]


def phase(
    calls: Sequence[Call], pids: Sequence[int], statuses: Sequence[int], gpu_count: int, errors: Iterable[str]
) -> Phase:
    """Return the result of one run from the driver's log. ``errors`` holds the stderr of each job."""
    held: dict[int, int] = defaultdict(int)
    most = [0] * gpu_count
    working: dict[int, set[int]] = {pid: set() for pid in pids}
    contexts: dict[int, set[int]] = {pid: set() for pid in pids}
    for call in calls:
        if call.pid not in contexts or call.gpu is None:
            continue
        if call.call in ("context", "allocate"):
            held[call.gpu] += call.bytes or 0
            most[call.gpu] = max(most[call.gpu], held[call.gpu])
            (contexts if call.call == "context" else working)[call.pid].add(call.gpu)
        elif call.call in ("context_end", "free"):
            held[call.gpu] -= call.bytes or 0
    return Phase(
        exit_statuses=tuple(statuses),
        most_bytes=tuple(most),
        working_gpus=tuple(frozenset(working[pid]) for pid in pids),
        context_gpus=tuple(frozenset(contexts[pid]) for pid in pids),
        lines=tuple(line for error in errors for line in error.splitlines() if line.startswith("autogpu: ")),
    )


def sentence(before: Phase, after: Phase, busy: Iterable[int]) -> str:
    busy = set(busy)
    return f"Without autogpu {_deeds(before, busy)}. With it {_deeds(after, busy)}."


def _deeds(run: Phase, busy: set[int]) -> str:
    worked = set().union(*run.working_gpus)
    opened = set().union(*run.context_gpus)
    count = sum(len(gpus) for gpus in run.working_gpus)
    if len(worked) == 1 and len(run.working_gpus) > 1:
        where = f"both jobs worked on GPU {next(iter(worked))}"
    elif len(worked) == count:
        where = f"each job had a GPU to itself ({_names(sorted(worked))})"
    else:
        where = f"the jobs worked on {_names(sorted(worked))}"
    parts = [where + (", where a colleague's job was running" if worked & busy else "")]
    unused = sorted(opened - worked)
    parts.append(f"held memory on {_names(unused)} without using it" if unused else "touched no other GPU")
    parts.append(f"took {sum(run.most_bytes) / GIB:.1f} GiB in all")
    failed = sum(status != 0 for status in run.exit_statuses)
    if failed:
        parts.append("one of them failed" if failed == 1 else f"{failed} of them failed")
    return ", ".join(parts[:-1]) + " and " + parts[-1]


def _names(gpus: Sequence[int]) -> str:
    *others, last = map(str, gpus)
    return f"GPUs {', '.join(others)} and {last}" if others else f"GPU {last}"


def compare(
    run: Callable[[Jobs], Phase], plain: Jobs, with_autogpu: Jobs, before: Sequence[int], busy: Sequence[int]
) -> int:
    """Run the jobs in both environments and print what happened; return 1 if a job failed with autogpu.

    Args:
        before: Bytes in use on each GPU before any job started.
        busy: Indices of the GPUs that other users' jobs use.
    """
    console, progress = Console(), Console(stderr=True)
    with progress.status("two jobs at once, without autogpu ..."):
        without = run(plain)
    with progress.status("the same two jobs at once, with autogpu ..."):
        with_ = run(with_autogpu)
    console.print(memory_table(before, busy, without, with_))
    console.print("\nWhat autogpu printed:")
    for line in with_.lines:
        show_line(console, Text(f"  {line}"))
    console.print()
    show_line(console, Text(sentence(without, with_, busy), style="bold"), indent=0)
    console.print()
    return 1 if any(with_.exit_statuses) else 0


def memory_table(before: Sequence[int], busy: Sequence[int], without: Phase, with_: Phase) -> Table:
    table = Table(box=box.SIMPLE_HEAD, title="Peak memory per GPU", title_justify="left")
    for heading in ("GPU", "before", "without autogpu", "with autogpu"):
        table.add_column(heading, justify="left" if heading == "GPU" else "right", no_wrap=True)
    for gpu, used in enumerate(before):
        whose = "a colleague's job" if gpu in busy else "idle"
        cells = [_cell(used, run, gpu) for run in (without, with_)]
        table.add_row(f"{gpu}  {whose}", f"{used / GIB:.1f} GiB", *cells)
    return table


def _cell(before: int, run: Phase, gpu: int) -> str:
    jobs = [str(number) for number, gpus in enumerate(run.working_gpus, start=1) if gpu in gpus]
    who = f"job {' + '.join(jobs)}  " if jobs else ""
    return f"{who}{(before + run.most_bytes[gpu]) / GIB:.1f} GiB"
