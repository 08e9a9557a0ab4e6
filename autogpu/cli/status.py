"""``autogpu status``: every GPU, who is on it, who waits, and what you would get."""

from __future__ import annotations

import json
import os
import shlex
import sys
import time
from dataclasses import dataclass

import click
from rich.console import Console, Group
from rich.text import Text

from autogpu.cli.policy_options import resolve_here
from autogpu.cli.screen import BAD, GOOD, STANDS_OUT, folded, show
from autogpu.lease.folder import HOST_FOLDER
from autogpu.reporting.text import GIB, counted, listed, printable, size, span
from autogpu.selection import explain
from autogpu.status.json import to_json
from autogpu.status.snapshot import read_status

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Iterator, Sequence

    from autogpu.status.model import GpuStatus, HostStatus, JobStatus, Preview, UnmanagedProcess

_STYLES = {"free": GOOD, "idle_lease": STANDS_OUT, "busy": BAD}
_STATES = {"free": "free", "idle_lease": "idle lease", "busy": "busy"}

NO_HOOK = (
    "A script started here takes its GPUs as without autogpu, whose start-up hook this Python does not load: "
    f"{shlex.quote(sys.executable)} -m autogpu install"
)

# What a pipe's reader gets; nothing is cut there, so this is the width of the bars alone.
_PIPE_WIDTH = 120


@dataclass(frozen=True)
class Truncation:
    """How much is shown before the rest becomes a number; on each GPU, and of those that could be taken."""

    jobs: int
    processes: int
    reasons: int


FULL = Truncation(jobs=8, processes=4, reasons=8)
# Two hundred processes on sixteen GPUs stay a screen or two.
CROWDED = Truncation(jobs=8, processes=1, reasons=8)
MANY_GPUS = 9
# For a screen that does not scroll, the first that fits.
WATCHED = (FULL, CROWDED, Truncation(8, 1, 0), Truncation(1, 0, 0), Truncation(0, 0, 0))


@click.command(
    epilog="""\b
Examples:
  autogpu status
  autogpu status --json"""
)
@click.option("--watch", is_flag=True, help="Look again every two seconds, until Ctrl-C.")
@click.option("--interval", type=click.FloatRange(min=0.5), default=2.0, show_default=True, help="Seconds for --watch.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON; with --watch one object a line.")
def status(watch: bool, interval: float, as_json: bool) -> int:
    """Show every GPU: its memory, who holds it by a claim, what else is on it, who waits.

    The last lines say what a script started here and now would get, and why not the other GPUs. Nothing is
    claimed by asking.
    """
    if watch:
        _watch(interval, as_json)
        return 0
    found = _read()
    if as_json:
        click.echo(json.dumps(to_json(found), indent=2))
    else:
        console = Console(highlight=False)
        for line in lines(found, _width(console), _has_blocks(console)):
            show(console, line)
    return 1 if found.failure and found.has_driver else 0


def _read() -> HostStatus:
    return read_status(os.environ, resolve_here(os.environ))


def lines(host: HostStatus, width: int, has_blocks: bool, limits: Truncation | None = None) -> Iterator[Text]:
    """The screen, line by line; every name in it is safe for a terminal. A line may be wider than ``width``."""
    limits = limits or (CROWDED if len(host.gpus) >= MANY_GPUS else FULL)
    if host.failure:
        yield Text(printable(host.failure) if host.has_driver else "No NVIDIA driver on this machine.")
    yield from _table_lines(host.gpus, width, has_blocks, limits)
    for lost in host.unreadable:
        yield Text(f"GPU {lost.index}  not readable: {printable(lost.reason)}", style=BAD)
    yield from _queue_lines(host)
    if host.gpus or not host.failure:
        yield Text()
        yield from _preview_lines(host, limits)
    yield from _folder_lines(host)


def _table_lines(gpus: Sequence[GpuStatus], width: int, has_blocks: bool, limits: Truncation) -> Iterator[Text]:
    if not gpus:
        return
    cells = 24 if width >= 140 else 16 if width >= 100 else 10
    space = width - len("GPU 0  ") - cells - len("  24.0 of  24.0 GiB  ") - cells // 2 - len("  97 %  idle lease")
    models = [printable(gpu.name, 40) for gpu in gpus]
    if max(map(len, models)) > space:
        models = [model.replace("NVIDIA ", "") for model in models]
    models = [printable(model, max(space, 10)) for model in models]
    longest = max(map(len, models))
    memory, busy = cells + len(" 24.0 of  24.0 GiB"), cells // 2 + len("  97 %")
    heading = f"{'':7}{'name':{longest}} {'memory':{memory}}  {'utilization':{busy}}  state"
    if len(heading) <= width:
        yield Text(heading)
    for gpu, model in zip(gpus, models):
        yield _gpu_line(gpu, f"{model:{longest}}", cells, has_blocks)
        yield from _health_lines(gpu)
        yield from _job_lines(gpu, limits)
        yield from _process_lines(gpu, limits)


def _gpu_line(gpu: GpuStatus, name: str, cells: int, has_blocks: bool) -> Text:
    used, total = gpu.memory_used_bytes, gpu.memory_total_bytes
    share = used / total if used is not None and total else None
    busy = gpu.utilization_percent
    line = Text.assemble(
        (f"GPU {gpu.index:<3}", "bold"),
        f"{name} ",
        (_bar(share, cells, has_blocks), "cyan"),
        f" {_gib(used):>5} of {_gib(total):>5} GiB  ",
        (_bar(None if busy is None else busy / 100, cells // 2, has_blocks), "magenta"),
        f" {'?' if busy is None else busy:>3} %  ",
        (_STATES[gpu.state], _STYLES[gpu.state]),
    )
    if gpu.mig_enabled:
        line.append("  MIG")
    return line


def _health_lines(gpu: GpuStatus) -> Iterator[Text]:
    if gpu.health_problems:
        yield Text(f"        not healthy: {listed(gpu.health_problems)}", style=BAD)


def _job_lines(gpu: GpuStatus, limits: Truncation) -> Iterator[Text]:
    for job in gpu.jobs[: limits.jobs]:
        yield _job_line(job, gpu)
    if len(gpu.jobs) > limits.jobs > 0:
        yield Text(f"        and {len(gpu.jobs) - limits.jobs} more jobs with claims")


def _process_lines(gpu: GpuStatus, limits: Truncation) -> Iterator[Text]:
    processes = sorted(gpu.unmanaged_processes, key=lambda process: -(process.used_bytes or 0))
    for process in processes[: limits.processes]:
        yield _process_line(process)
    if len(processes) > limits.processes > 0:
        rest = processes[limits.processes :]
        total = sum(process.used_bytes or 0 for process in rest)
        yield Text(f"        and {len(rest)} more processes without a claim, {size(total)}")
    if gpu.unlisted_bytes and limits.processes:
        yield Text(f"        {size(gpu.unlisted_bytes)} of processes that the driver does not show here")


def _process_line(process: UnmanagedProcess) -> Text:
    kind = "desktop" if process.is_graphics else "no claim"
    uses = "" if process.used_bytes is None else f", uses {size(process.used_bytes)}"
    who = f"{printable(process.user or 'unknown', 32):10} "
    what = f"{printable(process.program, 32)} (pid {process.pid})" if process.program else f"pid {process.pid}"
    return Text(f"        {who}{what}{uses}, {kind}")


def _job_line(job: JobStatus, gpu: GpuStatus) -> Text:
    claims = f"claims {size(job.claim_bytes)}" if job.claim_bytes else "best effort, claims nothing"
    uses = "" if job.used_bytes is None else f", uses {size(job.used_bytes)}"
    age = "" if job.age_s is None else f", for {span(job.age_s)}"
    members = "" if job.processes == 1 else f", {job.processes} processes"
    who = f"{printable(job.user, 32):10} {printable(job.script, 40) or '?'} (pid {job.pid or '?'}{members})"
    line = Text(f"        {who} {claims}{uses}{age}")
    # No sample of the driver's shows more than that it was idle as far as they reach back.
    idle_s = min(gpu.idle_s or 0, job.age_s or 0)
    idle = "idle" + (f" {span(idle_s)} or more" if idle_s >= 1 else "")
    if job.is_idle:
        line.append(", ").append(idle, style=STANDS_OUT)
    elif gpu.utilization_percent is not None:
        line.append(", active" if gpu.utilization_percent else f", {idle}")
    return line


def _queue_lines(host: HostStatus) -> Iterator[Text]:
    if host.queue:
        yield Text()
        yield Text("Waiting for a GPU, in this order:", style="bold")
    for place, waiter in enumerate(host.queue, start=1):
        wanted = counted(waiter.count, "whole GPU")
        if waiter.bytes_per_gpu is not None:
            wanted = f"{counted(waiter.count, 'GPU')} with {size(waiter.bytes_per_gpu)}"
        since = "" if waiter.waited_s is None else f", for {span(waiter.waited_s)}"
        stopped = ", unresponsive: passed over" if waiter.is_unresponsive else ""
        who = f"{printable(waiter.user, 32)} {printable(waiter.script, 40) or '?'} (pid {waiter.pid or '?'})"
        yield Text(f"  {place}. {who}: {wanted}{since}{stopped}")


def _preview_lines(host: HostStatus, limits: Truncation) -> Iterator[Text]:
    preview = host.preview
    start = "A script started here would get "
    if not host.has_hook and preview.why != explain.SWITCHED_OFF:
        yield Text(NO_HOOK, style=BAD)
        start = "Under `autogpu run` it would get "
    line = Text(start)
    line.append(_preview_words(preview, host.gpus), style="bold")
    line.append(f": {printable(preview.why, 2000)}; policy: {printable(preview.policy)}")
    yield line
    for reason in preview.reasons[: limits.reasons]:
        yield Text(printable(reason, 2000))
    if len(preview.reasons) > limits.reasons > 0:
        yield Text(f"  and {len(preview.reasons) - limits.reasons} more")
    for problem in host.policy_problems:
        yield Text(printable(problem, 2000), style=BAD)


def _preview_words(preview: Preview, gpus: Sequence[GpuStatus]) -> str:
    index = {gpu.uuid: gpu.index for gpu in gpus}
    return {
        "take": explain.gpu_names([index[uuid] for uuid in preview.uuids]),
        "cpu": "the CPU",
        "wait": "a place in the queue",
        "refuse": "an error",
    }.get(preview.verdict, "what the framework chooses")


def _folder_lines(host: HostStatus) -> Iterator[Text]:
    folder = host.lease_folder
    if host.lease_folder_problem:
        yield Text(f"Jobs of this user can't coordinate: {printable(host.lease_folder_problem, 2000)}", style=BAD)
    elif folder and folder.origin == "fallback" and host.gpus:
        yield Text(
            f"Claims are in {printable(folder.path)}, which belongs to {printable(folder.owner)} and does not reach "
            f"into containers; `sudo $(command -v autogpu) host-setup` makes {HOST_FOLDER} for all users."
        )


def _watch(interval_s: float, as_json: bool) -> None:
    console = Console(highlight=False)
    try:
        if as_json or not console.is_terminal:
            while True:
                _print_once(console, as_json)
                time.sleep(interval_s)
        from rich.live import Live

        with Live(console=console, screen=True, auto_refresh=False) as live:
            while True:
                screen = fitted(_read(), console.width, console.height, _has_blocks(console))
                live.update(Group(*screen), refresh=True)
                time.sleep(interval_s)
    except KeyboardInterrupt:  # its ordinary end
        pass


def fitted(host: HostStatus, width: int, height: int, has_blocks: bool) -> list[Text]:
    """The screen for a terminal that does not scroll: it says less, and is cut only where that is not enough."""
    screen: list[Text] = []
    for limits in WATCHED:
        screen = [piece for line in lines(host, width, has_blocks, limits) for piece in folded(line, width)]
        if len(screen) < height:
            return screen
    return [*screen[: height - 2], Text(f"... {len(screen) - height + 2} more lines: autogpu status")]


def _print_once(console: Console, as_json: bool) -> None:
    found = _read()
    if as_json:
        click.echo(json.dumps(to_json(found)))
        return
    for line in lines(found, _width(console), _has_blocks(console)):
        show(console, line)
    click.echo()


def _width(console: Console) -> int:
    return console.width if console.is_terminal else _PIPE_WIDTH


def _has_blocks(console: Console) -> bool:
    encoding = console.encoding if console.is_terminal else getattr(sys.stdout, "encoding", None) or "ascii"
    return encoding.lower().startswith("utf")


def _bar(share: float | None, cells: int, has_blocks: bool) -> str:
    full, empty = ("█", "░") if has_blocks else ("#", ".")
    if share is None:
        return "?" * cells
    # Anything at all shows: an almost empty bar must not look like an empty one.
    filled = min(cells, max(round(share * cells), 1 if share > 0.001 else 0))
    return full * filled + empty * (cells - filled)


def _gib(size_bytes: int | None) -> str:
    return "?" if size_bytes is None else f"{size_bytes / GIB:.1f}"
