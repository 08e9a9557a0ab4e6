"""``autogpu status``: every GPU, who is on it, who waits, and what you would get."""

from __future__ import annotations

import json
import os
import sys
import time

import click
from rich.console import Console, Group
from rich.text import Text

from autogpu import report
from autogpu.cli import reading
from autogpu.cli.screen import BAD, GOOD, STANDS_OUT, folded, show
from autogpu.cli.values import as_values
from autogpu.decision import Verdict
from autogpu.frozen import frozen
from autogpu.lease.folder import HOST_FOLDER
from autogpu.selection import GIB, Tier, names
from autogpu.stderr import shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Iterator, Sequence

    from autogpu.cli.reading import Seen
    from autogpu.devices.model import Device
    from autogpu.overview import Gpu, Job, Overview

_STYLES = {Tier.FREE: GOOD, Tier.FORGOTTEN: STANDS_OUT, Tier.BUSY: BAD}
_STATES = {Tier.FREE: "free", Tier.FORGOTTEN: "forgotten", Tier.BUSY: "busy"}

# What a pipe's reader gets; nothing is cut there, so this is the width of the bars alone.
_PIPE_WIDTH = 120


@frozen
class Most:
    """How much is said before the rest becomes a number; on each GPU, of those who could be taken."""

    jobs: int
    strangers: int
    reasons: int


FULL = Most(jobs=8, strangers=4, reasons=8)
# Two hundred processes on sixteen GPUs stay a screen or two.
CROWDED = Most(jobs=8, strangers=1, reasons=8)
MANY_GPUS = 9
# For a screen that does not scroll, the first that fits.
WATCHED = (FULL, CROWDED, Most(8, 1, 0), Most(1, 0, 0), Most(0, 0, 0))


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
    """Show every GPU: its memory, who holds it by a claim, who else is on it, who waits.

    The last lines say what a script started here and now would get, and why not the other GPUs. Nothing is
    claimed by asking.
    """
    if watch:
        _watch(interval, as_json)
        return 0
    seen = reading.look(os.environ)
    if as_json:
        click.echo(json.dumps(as_values(seen), indent=2))
    else:
        console = Console(highlight=False)
        for line in lines(seen, _width(console), _has_blocks(console)):
            show(console, line)
    return 1 if seen.overview.inventory.failure and not seen.overview.inventory.is_driverless else 0


def lines(seen: Seen, width: int, has_blocks: bool, most: Most | None = None) -> Iterator[Text]:
    """The screen, line by line; every name in it is safe for a terminal. A line may be wider than ``width``."""
    view = seen.overview
    most = most or (CROWDED if len(view.gpus) >= MANY_GPUS else FULL)
    if view.inventory.failure:
        is_absent = view.inventory.is_driverless
        yield Text("No NVIDIA driver on this machine." if is_absent else shown(view.inventory.failure))
    yield from _table_lines(view.gpus, width, has_blocks, most)
    for lost in view.inventory.unreadable:
        yield Text(f"GPU {lost.index}  not readable: {shown(lost.reason)}", style=BAD)
    yield from _queue_lines(view)
    if view.gpus:
        yield Text()
        yield from _outlook_lines(seen, most)
    yield from _folder_lines(seen)


def _table_lines(gpus: Sequence[Gpu], width: int, has_blocks: bool, most: Most) -> Iterator[Text]:
    if not gpus:
        return
    cells = 24 if width >= 140 else 16 if width >= 100 else 10
    room = width - len("GPU 0  ") - cells - len("  24.0 of  24.0 GiB  ") - cells // 2 - len("  97 %  forgotten")
    models = [shown(gpu.device.name, 40) for gpu in gpus]
    if max(map(len, models)) > room:
        models = [model.replace("NVIDIA ", "") for model in models]
    models = [shown(model, max(room, 10)) for model in models]
    longest = max(map(len, models))
    memory, busy = cells + len(" 24.0 of  24.0 GiB"), cells // 2 + len("  97 %")
    heading = f"{'':7}{'name':{longest}} {'memory':{memory}}  {'utilization':{busy}}  state"
    if len(heading) <= width:
        yield Text(heading)
    for gpu, model in zip(gpus, models):
        yield _gpu_line(gpu, f"{model:{longest}}", cells, has_blocks)
        yield from _people_lines(gpu, most)


def _gpu_line(gpu: Gpu, name: str, cells: int, has_blocks: bool) -> Text:
    device = gpu.device
    used, total = device.memory_used_bytes, device.memory_total_bytes
    share = used / total if used is not None and total else None
    busy = device.utilization_percent
    line = Text.assemble(
        (f"GPU {device.index:<3}", "bold"),
        f"{name} ",
        (_bar(share, cells, has_blocks), "cyan"),
        f" {_gib(used):>5} of {_gib(total):>5} GiB  ",
        (_bar(None if busy is None else busy / 100, cells // 2, has_blocks), "magenta"),
        f" {'?' if busy is None else busy:>3} %  ",
        (_STATES[gpu.tier], _STYLES[gpu.tier]),
    )
    if device.mig_enabled:
        line.append("  MIG")
    return line


def _people_lines(gpu: Gpu, most: Most) -> Iterator[Text]:
    for job in gpu.jobs[: most.jobs]:
        yield _job_line(job, gpu.device)
    if len(gpu.jobs) > most.jobs > 0:
        yield Text(f"        and {len(gpu.jobs) - most.jobs} more jobs with claims")
    strangers = sorted(gpu.strangers, key=lambda each: -(each.used_bytes or 0))
    for stranger in strangers[: most.strangers]:
        owner, program = reading.process_name(stranger.pid)
        kind = "desktop" if stranger.is_graphics else "no claim"
        uses = "" if stranger.used_bytes is None else f", uses {_size(stranger.used_bytes)}"
        who = f"{owner:10} {program} (pid {stranger.pid})" if owner else f"{'unknown':10} pid {stranger.pid}"
        yield Text(f"        {who}{uses}, {kind}")
    if len(strangers) > most.strangers > 0:
        rest = strangers[most.strangers :]
        size = sum(each.used_bytes or 0 for each in rest)
        yield Text(f"        and {len(rest)} more processes without a claim, {_size(size)}")
    if gpu.unseen_bytes and most.strangers:
        yield Text(f"        {_size(gpu.unseen_bytes)} of processes that the driver does not show here")


def _job_line(job: Job, device: Device) -> Text:
    claims = f"claims {_size(job.claim_bytes)}" if job.claim_bytes else "guest, claims nothing"
    uses = "" if job.used_bytes is None else f", uses {_size(job.used_bytes)}"
    age = "" if job.age_s is None else f", for {_span(job.age_s)}"
    members = "" if job.processes == 1 else f", {job.processes} processes"
    who = f"{reading.user_name(job.uid):10} {shown(job.script, 40) or '?'} (pid {job.pid or '?'}{members})"
    line = Text(f"        {who} {claims}{uses}{age}")
    # No sample of the driver's shows more than that it was idle as far as they reach back.
    idle = "idle" + (f" {_span(device.idle_s)} or more" if device.idle_s else "")
    if job.is_forgotten:
        line.append(", ").append(f"{idle}: forgotten?", style=STANDS_OUT)
    elif device.utilization_percent is not None:
        line.append(", active" if device.utilization_percent else f", {idle}")
    return line


def _queue_lines(view: Overview) -> Iterator[Text]:
    if view.queue:
        yield Text()
        yield Text("Waiting for a GPU, in this order:", style="bold")
    for place, waiting in enumerate(view.queue, start=1):
        gpus = "GPU" if waiting.count == 1 else "GPUs"
        size = waiting.bytes_per_gpu
        wanted = f"{waiting.count} " + (f"whole {gpus}" if size is None else f"{gpus} with {_size(size)}")
        since = "" if waiting.waited_s is None else f", for {_span(waiting.waited_s)}"
        stopped = ", does not answer: passed over" if waiting.is_passed_over else ""
        who = f"{reading.user_name(waiting.uid)} {shown(waiting.script, 40) or '?'} (pid {waiting.pid or '?'})"
        yield Text(f"  {place}. {who}: {wanted}{since}{stopped}")


def _outlook_lines(seen: Seen, most: Most) -> Iterator[Text]:
    view, outlook = seen.overview, seen.overview.decision
    taken = outlook.devices if outlook.verdict is Verdict.TAKE else ()
    what = {
        Verdict.TAKE: names(taken),
        Verdict.CPU: "the CPU",
        Verdict.WAIT: "a place in the queue",
        Verdict.REFUSE: "an error",
        Verdict.LEAVE: "what TensorFlow chooses",
    }[outlook.verdict]
    line = Text("A script started here would get ")
    line.append(what, style="bold")
    line.append(f": {shown(outlook.why)}; policy: {report.origins(seen.resolved)}")
    yield line
    reasons = report.explain(outlook.ranking, taken, view.inventory.unreadable, "first choice")
    for reason in reasons[: most.reasons]:
        yield Text(shown(reason))
    if len(reasons) > most.reasons > 0:
        yield Text(f"  and {len(reasons) - most.reasons} more")
    for problem in seen.resolved.problems:
        yield Text(str(problem), style=BAD)


def _folder_lines(seen: Seen) -> Iterator[Text]:
    if seen.folder_problem:
        yield Text(f"Jobs of this user can't coordinate: {seen.folder_problem}", style=BAD)
    elif seen.folder and seen.folder.origin == "fallback" and seen.overview.gpus:
        owner = reading.user_name(seen.folder.owner_uid)
        yield Text(
            f"Claims are in {shown(str(seen.folder.path))}, which belongs to {owner} and does not reach into "
            f"containers; `sudo $(command -v autogpu) host-setup` makes {HOST_FOLDER} for everybody."
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
                seen = reading.look(os.environ)
                screen = fitted(seen, console.width, console.height, _has_blocks(console))
                live.update(Group(*screen), refresh=True)
                time.sleep(interval_s)
    except KeyboardInterrupt:  # its ordinary end
        pass


def fitted(seen: Seen, width: int, height: int, has_blocks: bool) -> list[Text]:
    """The screen for a terminal that does not scroll: it says less, and is cut only where that is not enough."""
    screen: list[Text] = []
    for most in WATCHED:
        screen = [piece for line in lines(seen, width, has_blocks, most) for piece in folded(line, width)]
        if len(screen) < height:
            return screen
    return [*screen[: height - 2], Text(f"... {len(screen) - height + 2} more lines: autogpu status")]


def _print_once(console: Console, as_json: bool) -> None:
    seen = reading.look(os.environ)
    if as_json:
        click.echo(json.dumps(as_values(seen)))
        return
    for line in lines(seen, _width(console), _has_blocks(console)):
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


def _size(size_bytes: int) -> str:
    return f"{size_bytes / GIB:.1f} GiB" if size_bytes >= GIB // 10 else f"{size_bytes / (1 << 20):.0f} MiB"


def _span(seconds: float) -> str:
    for unit_s, unit in ((86400.0, "d"), (3600.0, "h"), (60.0, "min")):
        if seconds >= 2 * unit_s:
            return f"{seconds / unit_s:.0f} {unit}"
    return f"{seconds:.0f} s"
