"""Page of ``autogpu status``: a host at one moment as lines of text. This module does no I/O.

For each GPU the page shows use, claims, users, ages of jobs, and faults.
"""

from __future__ import annotations

import io
import re
import shlex
import sys
import time
from typing import Iterator, Sequence

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from autogpu.cli.screen import BAD, GOOD, STANDS_OUT, folded
from autogpu.frozen import Value, replace
from autogpu.lease.folder import HOST_FOLDER
from autogpu.reporting.gpus import gpu_names
from autogpu.reporting.hosts import (
    QUEUE_HEADING,
    TERMS,
    about_host,
    bar_shares,
    claim_problems,
    driver_failure,
    gib,
    health_words,
    lost_gpu,
    occupants,
    short_name,
    state_words,
    waiter_words,
)
from autogpu.reporting.remote import remote_problem
from autogpu.status.model import Answer, GpuStatus, HostStatus, Preview
from autogpu.text import printable
from autogpu.users import host_setup_command, sudo

# Width of the rows of GPUs in a pipe. Other lines are never folded or cut there.
PIPE_WIDTH = 120

_HELP = """\
q, Ctrl-C    quit
s            sort the GPUs by number, memory or utilization
h            show or hide this help

memory       full blocks are in use, half-full blocks are claimed beyond that
""" + "\n".join(f"{word:12} {meaning}" for word, meaning in TERMS.items())

_STYLES = {"free": GOOD, "awaited": STANDS_OUT, "idle_lease": STANDS_OUT, "busy": BAD}

# Rows of GPUs have at least this width. A narrower terminal folds them.
_LEAST_WIDTH = 52
_LEAST_WIDTH_WITH_SENSORS = 80
_WIDTH_OF_SENSORS = 14
_INDENT = " " * 6

# Orders of the GPUs. By memory or utilization, the GPU with the most comes first.
ORDERS = ("number", "memory", "utilization")

# Maximum number of jobs and of processes listed for a GPU; another line counts the rest. On hosts with _MANY_GPUS or
# more, a GPU shows only one process, so that 200 processes on 16 GPUs fit into one or two screens.
_MOST_JOBS = 8
_MOST_PROCESSES = 4
_MANY_GPUS = 9


class View(Value):
    """The part of a host to show, and the layout.

    Attributes:
        width: Columns of the screen. The rows of GPUs fit into it; the caller folds longer lines.
        user: Name of the only user to show; ``None`` shows all users. A page for one user has no preview, because the
            preview depends on the other users.
        is_explained: True to show the ranking of all GPUs, and the folder of the claims.
        remote: Name by which the reader asked for another host; ``""`` for this host.
        order: One of :data:`ORDERS`.
        shows_printed: True to show what autogpu printed when the reader's own jobs started.
        is_brief: True to show only one row per GPU, with the users in that row.
    """

    width: int
    user: str | None = None
    is_explained: bool = False
    remote: str = ""
    order: str = ORDERS[0]
    shows_printed: bool = True
    is_brief: bool = False

    @property
    def shows_sensors(self) -> bool:
        """True if rows also have temperature and power: brief rows and those of another host, if the width allows."""
        return (self.is_brief or bool(self.remote)) and self.width >= _LEAST_WIDTH_WITH_SENSORS

    @property
    def place(self) -> str:
        """The word for the host's place: ``here``, or ``there`` if it is another host than the reader's."""
        return "there" if self.remote else "here"

    @property
    def bars(self) -> tuple[int, int]:
        """Widths of the bars of memory and of utilization, in cells; 0 if only the number fits."""
        left = self.width - _WIDTH_OF_SENSORS * self.shows_sensors
        for width, bars in ((140, (24, 12)), (100, (16, 8)), (80, (10, 0))):
            if left >= width:
                return bars
        return 0, 0


def lines(host: HostStatus, view: View) -> Iterator[Text]:
    """Yield the page of one host. Every name in it is safe for a terminal."""
    theirs = host.of_user(view.user)
    yield from _head_lines(host, view)
    yield from _gpu_lines(host, theirs, view)
    for lost in theirs.unreadable:
        yield Text(f"GPU {lost.index}  {lost_gpu(lost)}", style=BAD)
    yield from _queue_lines(host, view.user)
    if view.user is not None:
        if not theirs.gpus and not theirs.queue:
            yield Text(f"{printable(view.user, 32)} has no GPU and no place in the queue.")
        return
    if host.gpus or not host.failure:
        yield Text()
        yield from _preview_lines(host, view)
    yield from _folder_lines(host, view)


def page(answers: Sequence[Answer], view: View) -> Iterator[Text]:
    for number, answer in enumerate(answers):
        if number:
            yield Text()
        if answer.problem:
            yield Text.assemble((printable(answer.host, 64), "bold"), "  ", (remote_problem(answer.problem), BAD))
        if answer.status:
            # A page for one user is short enough with all lines.
            is_brief = view.is_brief or bool(answer.host and not view.is_explained and view.user is None)
            yield from lines(answer.status, replace(view, remote=answer.host, is_brief=is_brief))


def help_lines(width: int, height: int) -> list[Text]:
    return [piece for line in _HELP.split("\n") for piece in folded(Text(line), width, indent=13)][:height]


def fitted(answers: Sequence[Answer], view: View, height: int) -> list[Text]:
    """Return the page for a screen that can't scroll: with fewer details if it is too long, then cut."""
    screen: list[Text] = []
    for part in (view, replace(view, shows_printed=False), replace(view, is_brief=True)):
        screen = [piece for line in page(answers, part) for piece in folded(line, part.width)]
        if len(screen) < height:
            return screen
    return [*screen[: height - 2], Text(f"... {len(screen) - height + 2} more lines; `autogpu status` prints all")]


def _head_lines(host: HostStatus, view: View) -> Iterator[Text]:
    about = (
        printable(view.remote or host.host, 64),
        time.strftime("%a %d %b %H:%M", time.localtime(host.time_s)) if host.time_s else "",
        *about_host(host),
    )
    if any(about):
        yield Text(", ".join(filter(None, about)), style="bold")
    if host.failure:
        yield Text(driver_failure(host))


def _queue_lines(host: HostStatus, user: str | None) -> Iterator[Text]:
    queue = [(place, waiter) for place, waiter in enumerate(host.queue, start=1) if user in (None, waiter.user)]
    if queue:
        yield Text()
        yield Text(QUEUE_HEADING, style="bold")
    for place, waiter in queue:
        yield Text(f"  {place}. {waiter_words(waiter, host.gpus)}")


def _preview_lines(host: HostStatus, view: View) -> Iterator[Text]:
    preview = host.preview
    start = f"A script started {view.place} would get "
    if not host.has_hook and host.is_enabled:
        if not view.is_brief:
            yield Text(no_hook(view), style=BAD)
        start = "With `autogpu run`, a script would get "
    elif host.has_hosts_hook:
        start = f"With the host's autogpu, a script started {view.place} would get "
    line = Text.assemble(start, (_preview_words(preview, host.gpus), "bold"), ": ")
    # A brief page has room for the first clause only.
    brief = re.split("[;(]", preview.why)[0].strip()
    whole = f"{printable(preview.why, 2000)}; policy: {preview.policy}"
    yield line.append(printable(brief if view.is_brief else whole, 2400))
    for reason in preview.reasons if view.is_explained else ():
        yield Text(printable(reason, 2000))
    for problem in host.policy_problems:
        yield Text(printable(problem, 2000), style=BAD)


def no_hook(view: View) -> str:
    install = "autogpu install" if view.remote else f"{shlex.quote(sys.executable)} -m autogpu install"
    return (
        f"Scripts started {view.place} don't use autogpu, because the Python {view.place} does not load its hook. "
        f"To install the hook: {install}"
    )


def _preview_words(preview: Preview, gpus: Sequence[GpuStatus]) -> str:
    label = {gpu.uuid: gpu.label for gpu in gpus}
    return {
        "take": gpu_names([label[uuid] for uuid in preview.uuids if uuid in label]),
        "cpu": "the CPU",
        "wait": "a place in the queue",
        "refuse": "an error",
    }.get(preview.verdict, "the GPUs that the framework chooses")


def _folder_lines(host: HostStatus, view: View) -> Iterator[Text]:
    for problem in claim_problems(host):
        yield Text(problem, style=BAD)
    folder = host.lease_folder
    if host.lease_folder_problem or not folder or folder.origin != "fallback" or not host.gpus or view.is_brief:
        return
    # A single user need not trust others, and usually has no containers: omit the hint.
    if view.is_explained or len(_users_of(host) | {folder.owner_uid}) > 1:
        yield Text(
            f"Claims are in {printable(folder.path)}. {printable(folder.owner)} owns this folder, and containers "
            f"can't see it. To make {HOST_FOLDER} for all users: {host_setup_command(sudo())}"
        )


def _users_of(host: HostStatus) -> set[int]:
    """Return the uids of the users whose jobs hold GPUs or wait for them."""
    return {job.uid for gpu in host.gpus for job in gpu.jobs} | {waiter.uid for waiter in host.queue}


def _gpu_lines(host: HostStatus, theirs: HostStatus, view: View) -> Iterator[Text]:
    """Yield the heading, and for each GPU its row and its jobs and processes.

    The row is about all users; the jobs and processes are only those in ``theirs``.
    """
    part_of = {gpu.uuid: gpu for gpu in theirs.gpus}
    shown = [gpu for gpu in ordered(host.gpus, view.order) if gpu.uuid in part_of]
    if not shown:
        return
    heading, *rows = _rows(shown, view)
    yield heading
    seen: set[tuple[int | None, str]] = set()
    for gpu, row in zip(shown, rows):
        yield row
        if gpu.health_problems:
            yield Text(f"{_INDENT}{health_words(gpu)}", style=BAD)
        if not view.is_brief:
            most_processes = 1 if len(host.gpus) >= _MANY_GPUS else _MOST_PROCESSES
            yield from _details(part_of[gpu.uuid], most_processes, seen, view)


def ordered(gpus: Sequence[GpuStatus], order: str) -> list[GpuStatus]:
    """Return the GPUs in one of :data:`ORDERS`, with MIG instances after their card."""
    most: dict[str, int] = {}
    for gpu in gpus:
        values = {"memory": gpu.memory_used_bytes, "utilization": gpu.utilization_percent}
        card = gpu.parent or gpu.uuid
        most[card] = max(values.get(order) or 0, most.get(card, 0))
    return sorted(gpus, key=lambda gpu: -most[gpu.parent or gpu.uuid])


def _rows(gpus: Sequence[GpuStatus], view: View) -> Iterator[Text]:
    is_wide = view.bars[1] > 0
    sensors = (Column("°C", no_wrap=True, justify="right"), Column("W", no_wrap=True, justify="right"))
    grid = Table(
        Column("", no_wrap=True),
        "name",
        Column("memory, GiB", no_wrap=True),
        Column("claimed", no_wrap=True, justify="right"),
        Column("utilization" if is_wide else "use", no_wrap=True, min_width=len("100 %")),
        *(sensors if view.shows_sensors else ()),
        # On a brief page this cell also lists the users. Limit its width, so that the GPU's name stays visible.
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


def _cells(gpu: GpuStatus, view: View, *, is_below: bool) -> Iterator[Text]:
    # An instance's row is below its card's row. It omits the word "GPU", and the name if the card's row has it.
    yield Text(f"{'GPU' if gpu.instance is None else '   '} {gpu.label}", style="bold")
    name = short_name(gpu)
    yield Text("".join(name.rpartition("MIG ")[1:]) if is_below else name, no_wrap=True, overflow="ellipsis")
    yield _memory_cell(gpu, view.bars[0])
    yield Text(gib(gpu.claimed_bytes) if gpu.claimed_bytes else "-")
    busy = gpu.utilization_percent
    bar = _bar(view.bars[1], None if busy is None else (busy / 100,))
    yield Text.assemble((bar, "magenta"), f"{'?' if busy is None else busy:>3} %")
    for reading in (gpu.temperature_celsius, gpu.power_watts) if view.shows_sensors else ():
        yield Text("-" if reading is None else str(reading))
    owners = " " + ", ".join(_owners(gpu)) if view.is_brief else ""
    yield Text.assemble((state_words(gpu), _STYLES.get(gpu.state, "")), owners)


def _memory_cell(gpu: GpuStatus, bar_cells: int) -> Text:
    bar = _bar(bar_cells, bar_shares(gpu))
    return Text.assemble((bar, "cyan"), f"{gib(gpu.memory_used_bytes):>4} of {gib(gpu.memory_total_bytes):>4}")


def _bar(cells: int, shares: Sequence[float] | None) -> str:
    """Return full, half full and empty cells for ``shares`` of the whole; question marks if ``shares`` is ``None``.

    A share above 0.1 % gets at least one cell, so that it differs from 0.
    """
    if not cells:
        return ""
    drawn = "?" * cells if shares is None else ""
    for mark, share in zip("█▒", shares or ()):
        wanted = max(round(share * cells), int(share > 0.001))
        drawn += mark * min(wanted, cells - len(drawn))
    return drawn.ljust(cells, "░") + " "


def _owners(gpu: GpuStatus) -> list[str]:
    users = [job.user for job in gpu.jobs]
    for process in gpu.unmanaged_processes:
        if not process.is_graphics:
            users.append(process.user or "unknown")
    return [printable(user, 16) for user in dict.fromkeys(users)]


def _details(gpu: GpuStatus, most_processes: int, seen: set[tuple[int | None, str]], view: View) -> Iterator[Text]:
    """Yield the jobs and processes on a GPU. ``seen`` has the lines that other GPUs of these jobs have shown."""
    for each in occupants(gpu, _MOST_JOBS, most_processes):
        line = Text(f"{_INDENT}{each.user:10} {each.words}" if each.user else f"{_INDENT}{each.words}")
        if each.activity:
            line.append(", ").append(each.activity, style=STANDS_OUT if each.is_idle_lease else "")
        yield line
        for words in each.printed:
            if view.shows_printed and (each.pid, words) not in seen:
                seen.add((each.pid, words))
                yield Text(f"{_INDENT}{'':10} autogpu: {printable(words)}")
