"""The effect of two jobs on a server, and the output of both demos."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable, Mapping, Sequence, TypeVar

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from autogpu.cli.screen import show_line

GIB = 1 << 30
Jobs = TypeVar("Jobs")


@dataclass(frozen=True)
class Phase:
    """Result of one run of both jobs, without or with autogpu.

    Attributes:
        exit_statuses: Exit statuses of the jobs, in the order in which they were started.
        most_bytes: Peak memory that both jobs together held on each GPU.
        taken_bytes: Memory that each job took, keyed by GPU.
        errors: stderr of each job.
    """

    exit_statuses: Sequence[int]
    most_bytes: Sequence[int]
    taken_bytes: Sequence[Mapping[int, int]]
    errors: Sequence[str]

    @property
    def working_gpus(self) -> list[int | None]:
        """GPU on which each job took the most memory. A job may have a context on others, of some hundred MiB."""
        return [max(taken, key=taken.__getitem__, default=None) for taken in self.taken_bytes]


def _deeds(run: Phase, busy: Sequence[int]) -> str:
    worked = {gpu for gpu in run.working_gpus if gpu is not None}
    opened = set().union(*run.taken_bytes)
    if len(worked) == 1:
        where = f"both jobs worked on GPU {next(iter(worked))}"
    elif len(worked) == len(run.working_gpus):
        where = f"each job had a GPU to itself ({_names(sorted(worked))})"
    else:
        where = f"the jobs worked on {_names(sorted(worked))}"
    parts = [where + (", where a colleague's job was running" if worked & set(busy) else "")]
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


def compare(run: Callable[[Jobs], Phase], both: Sequence[Jobs], before: Sequence[int], busy: Sequence[int]) -> int:
    """Run the jobs in both environments and print what happened; return 1 if a job failed with autogpu.

    Args:
        both: The jobs without autogpu, and the same with autogpu.
        before: Bytes in use on each GPU before any job started.
        busy: Indices of the GPUs that other users' jobs use.
    """
    console, progress = Console(), Console(stderr=True)
    with progress.status("two jobs at once, without autogpu ..."):
        without = run(both[0])
    with progress.status("the same two jobs at once, with autogpu ..."):
        with_ = run(both[1])
    console.print(memory_table(before, busy, without, with_))
    console.print("\nWhat autogpu printed:")
    for line in "\n".join(with_.errors).splitlines():
        if line.startswith("autogpu: "):
            show_line(console, Text(f"  {line}"))
    console.print()
    sentence = f"Without autogpu {_deeds(without, busy)}. With it {_deeds(with_, busy)}."
    show_line(console, Text(sentence, style="bold"), indent=0)
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
    jobs = [str(number) for number, its_gpu in enumerate(run.working_gpus, start=1) if its_gpu == gpu]
    who = f"job {' + '.join(jobs)}  " if jobs else ""
    return f"{who}{(before + run.most_bytes[gpu]) / GIB:.1f} GiB"
