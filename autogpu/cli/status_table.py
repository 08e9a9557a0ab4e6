"""The GPUs of a host as a table: a row for each, or for several that are free and alike, and lines for what is on it.

One glance tells of each GPU what is used, what is claimed, whose it is, since when, and whether it works. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass

from rich.text import Text

from autogpu.cli.screen import BAD, GOOD, STANDS_OUT
from autogpu.reporting.text import GIB, counted, listed, printable, size, span
from autogpu.status.of_user import gpu_of_user, is_on

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Iterator, Sequence

    from autogpu.status.model import GpuStatus, JobStatus, UnmanagedProcess

_STYLES = {"free": GOOD, "awaited": STANDS_OUT, "idle_lease": STANDS_OUT, "busy": BAD}
_STATES = {"free": "free", "awaited": "awaited", "idle_lease": "idle lease", "busy": "busy"}

# The driver's samples reach back some seconds; to be idle for less than this says nothing of a job.
_TELLING_IDLE_S = 60.0

# Fewer GPUs that are alike have a row each.
_FEWEST_IN_A_ROW = 3


@dataclass(frozen=True)
class Truncation:
    """How many lines a GPU has before the rest becomes a number."""

    jobs: int
    processes: int


@dataclass(frozen=True)
class Frame:
    """What a terminal can show.

    Attributes:
        width: For bars and names; a line may be longer, and is folded then.
        has_blocks: Whether bars are drawn with block characters.
    """

    width: int
    has_blocks: bool

    @property
    def is_narrow(self) -> bool:
        """Of a terminal as wide as terminals begin."""
        return self.width < 100

    @property
    def memory_cells(self) -> int:
        """Of the bar of the memory."""
        return 24 if self.width >= 140 else 10 if self.is_narrow else 16

    @property
    def memory_width(self) -> int:
        """Of the column of the memory."""
        return self.memory_cells + len(f" 24.0 of  24.0{self.unit}")

    @property
    def use_width(self) -> int:
        """Of the column of the utilization."""
        return len("  97 %") + self.busy_cells - self.is_narrow

    @property
    def unit(self) -> str:
        """Of the memory, where the heading does not say it."""
        return "" if self.is_narrow else " GiB"

    @property
    def busy_cells(self) -> int:
        """Of the bar of the utilization; 0 where only the number has room."""
        return 0 if self.is_narrow else self.memory_cells // 2

    def bar(self, cells: int, *shares: float | None) -> str:
        """Full, half full and empty cells; anything at all shows: an almost empty bar must not look like an empty one.

        Args:
            shares: Of the whole, one after another; ``None`` for what is not known.
        """
        if None in shares:
            return "?" * cells
        drawn = ""
        for mark, share in zip("█▒" if self.has_blocks else "#=", shares):
            wanted = max(round((share or 0) * cells), 1 if (share or 0) > 0.001 else 0)
            drawn += mark * min(wanted, cells - len(drawn))
        return drawn + ("░" if self.has_blocks else ".") * (cells - len(drawn))


@dataclass(frozen=True)
class Row:
    """One GPU, or several in a row that are free and alike.

    Attributes:
        user: Whose jobs and processes alone are listed below it; ``None`` for all.
        is_split: A card in MIG mode, whose instances have rows of their own.
    """

    gpus: Sequence[GpuStatus]
    label: str
    name: str
    frame: Frame
    user: str | None = None
    is_split: bool = False

    def line(self, *, names_owners: bool = False) -> Text:
        """The row itself.

        Args:
            names_owners: Says who is on it, where nothing below does.
        """
        gpu, frame = self.gpus[0], self.frame
        used, total, busy = gpu.memory_used_bytes, gpu.memory_total_bytes, gpu.utilization_percent
        claimed = claimed_bytes(gpu)
        is_known = used is not None and total
        shares = (used / total, _unused_claims(gpu) / total) if is_known and used is not None and total else (None,)
        busy_bar = frame.bar(frame.busy_cells, None if busy is None else busy / 100)
        many = f"{len(self.gpus)} " if len(self.gpus) > 1 else ""
        state = "awaited" if gpu.is_awaited else gpu.state
        line = Text.assemble(
            (self.label, "bold"),
            f"{self.name} ",
            (frame.bar(frame.memory_cells, *shares), "cyan"),
            f" {_gib(used):>5} of {_gib(total):>5}{frame.unit} {_gib(claimed) if claimed else '-':>7}  ",
            (busy_bar + " " if busy_bar else "", "magenta"),
            f"{'?' if busy is None else busy:>3} %  ",
            # Of another host it may be one that this version does not know.
            "MIG" if self.is_split else (many + (_STATES.get(state) or printable(state, 20)), _STYLES.get(state, "")),
        )
        if gpu.mig_enabled and not self.is_split:
            line.append("  MIG")
        if names_owners:
            line.append(_owners(gpu, max(self.frame.width - line.cell_len, len(" ann +9"))))
        return line

    def details(self, limits: Truncation) -> Iterator[Text]:
        """Who is on it, a line each, and how many more there are."""
        for gpu in (gpu_of_user(gpu, self.user) for gpu in self.gpus):
            if gpu.health_problems:
                yield Text(f"        not healthy: {listed(gpu.health_problems)}", style=BAD)
            yield from _job_lines(gpu, limits.jobs, is_narrow=self.frame.is_narrow)
            yield from _process_lines(gpu, limits.processes)


def table(gpus: Sequence[GpuStatus], frame: Frame, user: str | None = None) -> tuple[Text | None, list[Row]]:
    """The heading, where there is room for one, and the rows; of the GPUs that ``user`` is on, if one is named."""
    gpus = [gpu for gpu in gpus if user is None or is_on(gpu, user)]
    runs = _runs(gpus)
    if not runs:
        return None, []
    labels = max(7, 1 + max(len(_label(run)) for run in runs))
    space = (
        frame.width
        - labels
        - len(" ")
        - frame.memory_width
        - len("  claimed  ")
        - frame.use_width
        - len("  idle lease")
    )
    split = {gpu.parent for gpu in gpus}
    models = [printable(_name(gpu, gpus), 40) for gpu in gpus]
    if max(map(len, models)) > space:
        models = [model.replace("NVIDIA ", "") for model in models]
    shown = {gpu.uuid: printable(model, max(space, 10)) for gpu, model in zip(gpus, models)}
    longest = max(map(len, shown.values()))
    rows = [
        Row(run, f"{_label(run):{labels}}", f"{shown[run[0].uuid]:{longest}}", frame, user, run[0].uuid in split)
        for run in runs
    ]
    memory, use = ("memory, GiB", f"{'use':>{frame.use_width}}") if frame.is_narrow else ("memory", "utilization")
    heading = f"{'':{labels}}{'name':{longest}} {memory:{frame.memory_width}}  claimed  {use:{frame.use_width}}  state"
    return (Text(heading) if len(heading) <= frame.width else None), rows


def claimed_bytes(gpu: GpuStatus) -> int:
    """What is promised to jobs on it, used or not; no more than it has."""
    return min(sum(job.claim_bytes for job in gpu.jobs), gpu.memory_total_bytes or 0)


def _unused_claims(gpu: GpuStatus) -> int:
    return sum(max(job.claim_bytes - (job.used_bytes or 0), 0) for job in gpu.jobs)


def _runs(gpus: Sequence[GpuStatus]) -> list[list[GpuStatus]]:
    """GPUs that stand side by side, are free and look the same; all others alone."""
    runs: list[list[GpuStatus]] = []
    for gpu in gpus:
        last = runs[-1][-1] if runs else None
        if last is not None and _looks(gpu) == _looks(last) and _follows(gpu, last):
            runs[-1].append(gpu)
        else:
            runs.append([gpu])
    return [part for run in runs for part in ([run] if len(run) >= _FEWEST_IN_A_ROW else [[gpu] for gpu in run])]


def _follows(gpu: GpuStatus, last: GpuStatus) -> bool:
    """Whether its number is the next one."""
    if gpu.instance is None or last.instance is None:
        return gpu.instance is last.instance and gpu.index == last.index + 1
    return gpu.index == last.index and gpu.instance == last.instance + 1


def _looks(gpu: GpuStatus) -> tuple[object, ...]:
    if gpu.state != "free" or gpu.jobs or gpu.unmanaged_processes or gpu.unlisted_bytes or gpu.health_problems:
        return (gpu.uuid,)
    used, total = _gib(gpu.memory_used_bytes), _gib(gpu.memory_total_bytes)
    return gpu.name, used, total, gpu.utilization_percent, gpu.mig_enabled, gpu.is_awaited


def _label(run: Sequence[GpuStatus]) -> str:
    # An instance stands below its card, without the word.
    first = f"{'GPU' if run[0].instance is None else '   '} {run[0].label}"
    last = run[-1].index if run[-1].instance is None else run[-1].instance
    return first if len(run) == 1 else f"{first}-{last}"


def _name(gpu: GpuStatus, gpus: Sequence[GpuStatus]) -> str:
    """Of an instance below its card what it is made of, for the card's row says the rest."""
    card, found, part = gpu.name.rpartition(" MIG ")
    is_below = found and card and any(each.uuid == gpu.parent for each in gpus)
    return f"MIG {part}" if is_below else gpu.name


def _owners(gpu: GpuStatus, space: int) -> str:
    processes = [process for process in gpu.unmanaged_processes if not process.is_graphics]
    users = [*(job.user for job in gpu.jobs), *(process.user or "unknown" for process in processes)]
    names = [printable(user, 16) for user in dict.fromkeys(users)]
    for most in range(len(names), 0, -1):
        more = f" +{len(names) - most}" if len(names) > most else ""
        text = " " + ", ".join(names[:most]) + more
        if len(text) <= space:
            return text
    return printable(" " + ", ".join(names), space) if names else ""


def _job_lines(gpu: GpuStatus, most: int, *, is_narrow: bool) -> Iterator[Text]:
    # Of a job that is alone the row tells the memory, and one line is all that a narrow screen has for it.
    is_told = is_narrow and len(gpu.jobs) == 1 and not gpu.unmanaged_processes
    for job in gpu.jobs[:most]:
        yield _job_line(job, gpu, _memory_words(job, is_told=is_told, is_narrow=is_narrow))
    if len(gpu.jobs) > most > 0:
        yield Text(f"        and {counted(len(gpu.jobs) - most, 'more job')} with claims")


def _process_lines(gpu: GpuStatus, most: int) -> Iterator[Text]:
    processes = sorted(gpu.unmanaged_processes, key=lambda process: -(process.used_bytes or 0))
    for process in processes[:most]:
        yield _process_line(process)
    rest = processes[most:]
    if rest and (most or gpu.jobs):
        total = sum(process.used_bytes or 0 for process in rest)
        yield Text(f"        and {counted(len(rest), 'more process', 'more processes')} without a claim, {size(total)}")
    if gpu.unlisted_bytes and most:
        yield Text(f"        {size(gpu.unlisted_bytes)} of processes that the driver does not show here")


def _process_line(process: UnmanagedProcess) -> Text:
    kind = "desktop" if process.is_graphics else "no claim"
    uses = "" if process.used_bytes is None else f", uses {size(process.used_bytes)}"
    who = f"{printable(process.user or 'unknown', 32):10} "
    what = f"{printable(process.program, 32)} (pid {process.pid})" if process.program else f"pid {process.pid}"
    return Text(f"        {who}{what}{uses}, {kind}")


def _memory_words(job: JobStatus, *, is_told: bool, is_narrow: bool) -> str:
    """What it claims and uses.

    Args:
        is_told: The row tells it of a job that has a claim.
        is_narrow: The words must fit into a line of 80 columns with all the others.
    """
    if is_told and job.claim_bytes:
        return ""
    if is_narrow and job.claim_bytes and job.used_bytes is not None:
        return f" uses {_gib(job.used_bytes)} of {size(job.claim_bytes)}"
    uses = "" if job.used_bytes is None else f", uses {size(job.used_bytes)}"
    if job.claim_bytes:
        return f" claims {size(job.claim_bytes)}{uses}"
    return f" best effort{uses}" if is_narrow else f" best effort, claims nothing{uses}"


def _job_line(job: JobStatus, gpu: GpuStatus, memory: str) -> Text:
    age = "" if job.age_s is None else f", for {span(job.age_s)}"
    members = "" if job.processes == 1 else f", {job.processes} processes"
    who = f"{printable(job.user, 32):10} {printable(job.script, 40) or '?'} (pid {job.pid or '?'}{members})"
    line = Text(f"        {who}{memory}{age}")
    # No sample of the driver's shows more than that it was idle as far as they reach back.
    idle_s = min(gpu.idle_s or 0, job.age_s or 0)
    idle = "idle" + (f" {span(idle_s)} or more" if idle_s >= _TELLING_IDLE_S else "")
    if job.is_idle:
        line.append(", ").append(idle, style=STANDS_OUT)
    elif job.is_active is not None:
        line.append(", active" if job.is_active else f", {idle}")
    return line


def _gib(size_bytes: int | None) -> str:
    return "?" if size_bytes is None else f"{size_bytes / GIB:.1f}"
