"""How both demos show their runs."""

from __future__ import annotations

from typing import Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from autogpu.cli.screen import show_line
from demo.story import GIB, Phase, sentence


def show(console: Console, before: Sequence[int], busy: Sequence[int], without: Phase, with_: Phase) -> None:
    """Print each GPU's memory before, without and with autogpu, what autogpu printed, and what happened.

    Args:
        console: Where to.
        before: By GPU, the bytes in use before any job started.
        busy: The GPUs of other users.
        without: The jobs without autogpu.
        with_: The same jobs with it.
    """
    table = Table(box=box.SIMPLE_HEAD, title="Peak memory per GPU", title_justify="left")
    for heading in ("GPU", "before", "without autogpu", "with autogpu"):
        table.add_column(heading, justify="left" if heading == "GPU" else "right", no_wrap=True)
    for gpu, used in enumerate(before):
        whose = "a colleague's job" if gpu in busy else "idle"
        cells = [_cell(used, run, gpu) for run in (without, with_)]
        table.add_row(f"{gpu}  {whose}", f"{used / GIB:.1f} GiB", *cells)
    console.print(table)
    console.print("\nWhat autogpu printed:")
    for line in with_.lines:
        show_line(console, Text(f"  {line}"))
    console.print()
    show_line(console, Text(sentence(without, with_, busy), style="bold"), indent=0)
    console.print()


def _cell(before: int, run: Phase, gpu: int) -> str:
    jobs = [str(number) for number, gpus in enumerate(run.working_gpus, start=1) if gpu in gpus]
    who = f"job {' + '.join(jobs)}  " if jobs else ""
    return f"{who}{(before + run.most_bytes[gpu]) / GIB:.1f} GiB"
