"""The GPUs of a host as a table: a row for each, and lines for what is on it.

One glance tells of each GPU what is used, what is claimed, whose it is, since when, and whether it works. Pure.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Iterator, Sequence

from rich.console import Console, ConsoleOptions, RenderableType
from rich.measure import Measurement
from rich.table import Column, Table
from rich.text import Text

from autogpu.cli.screen import BAD, GOOD, STANDS_OUT
from autogpu.reporting.text import GIB, counted, listed, printable, size, span
from autogpu.status.model import GpuStatus, JobStatus, UnmanagedProcess

_STYLES = {"free": GOOD, "awaited": STANDS_OUT, "idle_lease": STANDS_OUT, "busy": BAD}
_WORDS = {"split": "MIG", "no_instance": "MIG, no instance"}

# The driver's samples reach back some seconds; to be idle for less than this says nothing of a job.
_TELLING_IDLE_S = 60.0

# In fewer columns a row is folded.
_LEAST_WIDTH = 52
_INDENT = " " * 6

# Of the GPUs; but for the first, those with most come first.
ORDERS = ("number", "memory", "utilization")


# Lines of a GPU before the rest becomes a number; on many GPUs one for processes: two hundred stay a screen or two.
_MOST_JOBS, _MOST_PROCESSES = 8, 4
_MANY_GPUS = 9


@dataclass(frozen=True)
class View:
    """The part of a host that is shown, and the width and height for it.

    Attributes:
        width: In columns. The rows of GPUs fit into them; other lines may be longer, and are folded.
        user: Only the GPUs and the places in the queue of this user, by name; then what a script would get is not
            told, for it depends on the others.
        is_explained: With the ranking of all GPUs, and where the claims are.
        remote: The reader's name for the host, where it is another one than the reader's own.
        is_brief: A GPU has only its row, which names who is on it.
    """

    width: int
    user: str | None = None
    is_explained: bool = False
    remote: str = ""
    order: str = ORDERS[0]
    is_brief: bool = False

    @property
    def bars(self) -> tuple[int, int]:
        """The cells of the bars of memory and utilization; 0 where only the number fits."""
        for width, bars in ((140, (24, 12)), (100, (16, 8)), (80, (10, 0))):
            if self.width >= width:
                return bars
        return 0, 0

    def bar(self, cells: int, *shares: float | None) -> str:
        """Full, half full and empty cells for ``shares`` of the whole, ``None`` for what is not known.

        Anything at all shows: an almost empty bar must not look like an empty one.
        """
        if not cells:
            return ""
        if None in shares:
            return "?" * cells + " "
        drawn = ""
        for mark, share in zip("█▒", shares):
            wanted = max(round((share or 0) * cells), 1 if (share or 0) > 0.001 else 0)
            drawn += mark * min(wanted, cells - len(drawn))
        return drawn.ljust(cells, "░") + " "


class _Name:
    """The name of a GPU in a cell. It is cut in the middle, since models differ at their ends."""

    def __init__(self, name: str) -> None:
        self._name = printable(name, 40)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(1, len(self._name))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        yield Text(printable(self._name, options.max_width), no_wrap=True)


def gpu_lines(gpus: Sequence[GpuStatus], view: View) -> Iterator[Text]:
    """The heading, and for each GPU its row and who is on it, a line each."""
    shown = [gpu for gpu in ordered(gpus, view.order) if view.user is None or view.user in gpu.users]
    if not shown:
        return
    heading, *rows = _rows(shown, view)
    yield heading
    for gpu, row in zip(shown, rows):
        yield row
        if gpu.health_problems:
            yield Text(f"{_INDENT}not healthy: {listed(gpu.health_problems)}", style=BAD)
        if not view.is_brief:
            yield from _details(gpu.of_user(view.user), 1 if len(gpus) >= _MANY_GPUS else _MOST_PROCESSES)


def ordered(gpus: Sequence[GpuStatus], order: str) -> list[GpuStatus]:
    """The GPUs in one of :data:`ORDERS`, instances behind their card."""
    most: dict[str, int] = {}
    for gpu in gpus:
        values = {"memory": gpu.memory_used_bytes, "utilization": gpu.utilization_percent}
        card = gpu.parent or gpu.uuid
        most[card] = max(values.get(order) or 0, most.get(card, 0))
    return sorted(gpus, key=lambda gpu: -most[gpu.parent or gpu.uuid])


def _rows(gpus: Sequence[GpuStatus], view: View) -> Iterator[Text]:
    is_wide = view.bars[1] > 0
    grid = Table(
        Column("", no_wrap=True),
        "name",
        Column("memory, GiB", no_wrap=True),
        Column("claimed", no_wrap=True, justify="right"),
        Column("utilization" if is_wide else "use", no_wrap=True, min_width=len("100 %")),
        # With the owners, where there is no room for lines below; a part of the width, or no name would be seen.
        Column("state", no_wrap=True, max_width=view.width // 4 if view.is_brief else None),
        box=None,
        pad_edge=False,
        padding=(0, 2 if is_wide else 1, 0, 0),
        header_style="",
    )
    cards = {gpu.uuid for gpu in gpus}
    for gpu in gpus:
        grid.add_row(*_cells(gpu, view, is_below=gpu.parent in cards))
    for parts in Console(file=io.StringIO(), width=max(view.width, _LEAST_WIDTH)).render_lines(grid, pad=False):
        line = Text.assemble(*((part.text, part.style or "") for part in parts))
        line.rstrip()
        yield line


def _cells(gpu: GpuStatus, view: View, *, is_below: bool) -> Iterator[RenderableType]:
    # An instance stands below its card, without the word; and the card's row says the rest.
    yield Text(f"{'GPU' if gpu.instance is None else '   '} {gpu.label}", style="bold")
    name = gpu.name if view.bars[1] else gpu.name.replace("NVIDIA ", "")
    yield _Name("".join(name.rpartition("MIG ")[1:]) if is_below else name)
    yield _memory_cell(gpu, view)
    yield Text(_gib(gpu.claimed_bytes) if gpu.claimed_bytes else "-")
    busy = gpu.utilization_percent
    bar = view.bar(view.bars[1], None if busy is None else busy / 100)
    yield Text.assemble((bar, "magenta"), f"{'?' if busy is None else busy:>3} %")
    # Of another host it may be one that this version does not know.
    state = _WORDS.get(gpu.state) or printable(gpu.state, 20).replace("_", " ")
    owners = " " + ", ".join(_owners(gpu)) if view.is_brief else ""
    yield Text.assemble((state, _STYLES.get(gpu.state, "")), owners)


def _memory_cell(gpu: GpuStatus, view: View) -> Text:
    used, total = gpu.memory_used_bytes, gpu.memory_total_bytes
    unused_claims = sum(max(job.claim_bytes - (job.used_bytes or 0), 0) for job in gpu.jobs)
    shares = (None,) if used is None or not total else (used / total, unused_claims / total)
    return Text.assemble((view.bar(view.bars[0], *shares), "cyan"), f"{_gib(used):>4} of {_gib(total):>4}")


def _owners(gpu: GpuStatus) -> list[str]:
    computing = [process for process in gpu.unmanaged_processes if not process.is_graphics]
    users = dict.fromkeys([*(job.user for job in gpu.jobs), *(process.user or "unknown" for process in computing)])
    return [printable(user, 16) for user in users]


def _details(gpu: GpuStatus, most_processes: int) -> Iterator[Text]:
    yield from (_job_line(job, gpu) for job in gpu.jobs[:_MOST_JOBS])
    if len(gpu.jobs) > _MOST_JOBS:
        yield Text(f"{_INDENT}and {counted(len(gpu.jobs) - _MOST_JOBS, 'more job')} with claims")
    processes = sorted(gpu.unmanaged_processes, key=lambda process: -(process.used_bytes or 0))
    yield from map(_process_line, processes[:most_processes])
    rest = processes[most_processes:]
    if rest:
        total = sum(process.used_bytes or 0 for process in rest)
        more = counted(len(rest), "more process", "more processes")
        yield Text(f"{_INDENT}and {more} without a claim, {size(total)}")
    if gpu.unlisted_bytes:
        yield Text(f"{_INDENT}{size(gpu.unlisted_bytes)} of processes that the driver does not show here")


def _process_line(process: UnmanagedProcess) -> Text:
    kind = "desktop" if process.is_graphics else "no claim"
    uses = "" if process.used_bytes is None else f", uses {size(process.used_bytes)}"
    what = f"{printable(process.program, 32)} (pid {process.pid})" if process.program else f"pid {process.pid}"
    return Text(f"{_INDENT}{printable(process.user or 'unknown', 32):10} {what}{uses}, {kind}")


def _job_line(job: JobStatus, gpu: GpuStatus) -> Text:
    members = "" if job.processes == 1 else f", {job.processes} processes"
    who = f"{printable(job.user, 32):10} {printable(job.script, 40) or '?'} (pid {job.pid or '?'}{members})"
    line = Text(f"{_INDENT}{who} {_memory_words(job)}{lasting(job.age_s)}")
    # No sample of the driver's shows more than that it was idle as far as they reach back.
    idle_s = min(gpu.idle_s or 0, job.age_s or 0)
    idle = f"idle {span(idle_s)} or more" if idle_s >= _TELLING_IDLE_S else "idle"
    if job.is_idle:
        line.append(", ").append(idle, style=STANDS_OUT)
    elif job.is_active is not None:
        line.append(", active" if job.is_active else f", {idle}")
    return line


def lasting(seconds: float | None) -> str:
    """``, for 5 min``, where that is known."""
    return "" if seconds is None else f", for {span(seconds)}"


def _memory_words(job: JobStatus) -> str:
    if not job.claim_bytes:
        return "best effort" if job.used_bytes is None else f"best effort, uses {size(job.used_bytes)}"
    if job.used_bytes is None:
        return f"claims {size(job.claim_bytes)}"
    return f"uses {_gib(job.used_bytes)} of {size(job.claim_bytes)}"


def _gib(size_bytes: int | None) -> str:
    return "?" if size_bytes is None else f"{size_bytes / GIB:.1f}"
