"""The screen of ``autogpu status``: a host at one moment as lines of text. Pure."""

from __future__ import annotations

import re
import shlex
import sys
import time
from dataclasses import replace
from typing import Iterator, Sequence

from rich.text import Text

from autogpu.cli.screen import BAD, folded
from autogpu.cli.status_table import View, gpu_lines, lasting
from autogpu.lease.folder import HOST_FOLDER
from autogpu.reporting.text import counted, host_setup_command, printable, size, sudo
from autogpu.selection import explain
from autogpu.status.model import Answer, GpuStatus, HostStatus, Preview, WaiterStatus

# What a pipe's reader gets; nothing is cut there, so this is the width of the rows of GPUs alone.
PIPE_WIDTH = 120

HELP = Text("""\
q, Ctrl-C    leave
s            order of the GPUs: by number, by memory, by utilization; those with most come first
h            this help, or back

memory       used (full) and claimed beyond that (half full), of what the GPU has
claimed      promised to jobs of autogpu, in GiB
utilization  share of the last seconds in which the GPU computed
awaited      free, and a job in the queue goes first
idle lease   held for half an hour or more, and nothing computes
no claim     a process that autogpu does not manage
best effort  a job that shares what others leave, and has no claim""")


def lines(host: HostStatus, view: View) -> Iterator[Text]:
    """The whole screen; every name in it is safe for a terminal."""
    yield from _head_lines(host, view)
    yield from gpu_lines(host.gpus, view)
    for lost in host.unreadable if view.user is None else ():
        yield Text(f"GPU {lost.index}  not readable: {printable(lost.reason)}", style=BAD)
    yield from _queue_lines(host, view.user)
    if view.user is not None:
        theirs = host.of_user(view.user)
        if not theirs.gpus and not theirs.queue:
            yield Text(f"{printable(view.user, 32)} has no GPU and no place in the queue.")
        return
    if host.gpus or not host.failure:
        yield Text()
        yield from _preview_lines(host, view)
    if not view.is_brief:
        yield from _folder_lines(host, is_explained=view.is_explained)


def page(answers: Sequence[Answer], view: View) -> Iterator[Text]:
    """The screens of several hosts, one below the other."""
    for number, answer in enumerate(answers):
        if number:
            yield Text()
        if answer.status is None:
            yield Text.assemble((printable(answer.host, 64), "bold"), "  ", (answer.problem, BAD))
        else:
            yield from lines(answer.status, replace(view, remote=answer.host))


def fitted(answers: Sequence[Answer], view: View, height: int) -> list[Text]:
    """The page for a terminal that does not scroll: brief where it is too long, and cut where that is."""
    screen: list[Text] = []
    for is_brief in (False, True):
        part = replace(view, is_brief=is_brief)
        screen = [piece for line in page(answers, part) for piece in folded(line, part.width)]
        if len(screen) < height:
            return screen
    return [*screen[: height - 2], Text(f"... {len(screen) - height + 2} more lines: autogpu status")]


def _head_lines(host: HostStatus, view: View) -> Iterator[Text]:
    name = view.remote or host.host
    about = [printable(name, 64)] if name else []
    about += [time.strftime("%a %d %b %H:%M", time.localtime(host.time_s))] if host.time_s is not None else []
    about += [f"driver {printable(host.driver_version, 32)}"] if host.driver_version else []
    about += _free_words(host) if host.gpus else []
    about += [f"{counted(len(host.queue), 'job')} waiting"] if host.queue else []
    if about:
        yield Text(", ".join(about), style="bold")
    if host.failure:
        yield Text(printable(host.failure) if host.has_driver else "No NVIDIA driver on this machine.")


def _free_words(host: HostStatus) -> list[str]:
    """How many GPUs are free; inside of what an engine granted, of those."""
    here = [gpu for gpu in host.takeable if gpu.uuid in host.granted or not host.engine]
    states = [gpu.state for gpu in here]
    free, awaited = states.count("free"), states.count("awaited")
    if not here and not host.engine:
        return ["no usable GPU"]
    granted = f" granted by {printable(host.engine, 32)}" if host.engine else ""
    return [f"{free} of {counted(len(here), 'GPU')}{granted} free", *([f"{awaited} awaited"] if awaited else [])]


def _queue_lines(host: HostStatus, user: str | None) -> Iterator[Text]:
    queue = [(place, waiter) for place, waiter in enumerate(host.queue, start=1) if user in (None, waiter.user)]
    if queue:
        yield Text()
        yield Text("Waiting for a GPU, in this order:", style="bold")
    for place, waiter in queue:
        wanted = f"{counted(waiter.count, 'GPU')}, whole or shared"
        if not waiter.joins:
            wanted = counted(waiter.count, "whole GPU")
        if waiter.bytes_per_gpu is not None:
            wanted = f"{counted(waiter.count, 'GPU')} with {size(waiter.bytes_per_gpu)}"
        wanted += _only_words(waiter, host.gpus)
        stopped = ", unresponsive: passed over" if waiter.is_unresponsive else ""
        who = f"{printable(waiter.user, 32)} {printable(waiter.script, 40) or '?'} (pid {waiter.pid or '?'})"
        yield Text(f"  {place}. {who}: {wanted}{lasting(waiter.waited_s)}{stopped}")


def _only_words(waiter: WaiterStatus, gpus: Sequence[GpuStatus]) -> str:
    """The GPUs that a job waits for, unless any of them will do."""
    served = [gpu.label for gpu in gpus if gpu.uuid in waiter.uuids]
    if not waiter.uuids or len(served) == len(gpus):
        return ""
    return f", only {explain.gpu_names(served)}" if served else ", only GPUs that are not shown here"


def _preview_lines(host: HostStatus, view: View) -> Iterator[Text]:
    preview = host.preview
    start = f"A script started {'there' if view.remote else 'here'} would get "
    if not host.has_hook and preview.why != explain.SWITCHED_OFF:
        if not view.is_brief:
            yield Text(no_hook(view), style=BAD)
        start = f"Under `autogpu run` {'a script' if view.is_brief else 'it'} would get "
    line = Text(start)
    line.append(_preview_words(preview, host.gpus), style="bold")
    if view.is_brief:
        # The first clause, of which no screen has too little.
        yield line.append(f": {printable(re.split('[;(]', preview.why)[0].strip())}")
        return
    line.append(f": {printable(preview.why, 2000)}; policy: {printable(preview.policy)}")
    yield line
    for reason in preview.reasons if view.is_explained else ():
        yield Text(printable(reason, 2000))
    for problem in host.policy_problems:
        yield Text(printable(problem, 2000), style=BAD)


def no_hook(view: View) -> str:
    """Say that the preview holds only under ``autogpu run``."""
    place = "there" if view.remote else "here"
    install = "autogpu install" if view.remote else f"{shlex.quote(sys.executable)} -m autogpu install"
    return (
        f"A script started {place} takes its GPUs as without autogpu, whose start-up hook the Python {place} does not "
        f"load: {install}"
    )


def _preview_words(preview: Preview, gpus: Sequence[GpuStatus]) -> str:
    label = {gpu.uuid: gpu.label for gpu in gpus}
    return {
        "take": explain.gpu_names([label[uuid] for uuid in preview.uuids if uuid in label]),
        "cpu": "the CPU",
        "wait": "a place in the queue",
        "refuse": "an error",
    }.get(preview.verdict, "what the framework chooses")


def _folder_lines(host: HostStatus, *, is_explained: bool) -> Iterator[Text]:
    folder = host.lease_folder
    if host.lease_folder_problem:
        yield Text(f"Jobs of this user can't coordinate: {printable(host.lease_folder_problem, 2000)}", style=BAD)
    elif folder and folder.origin == "fallback" and host.gpus:
        # One person alone has no others to trust, and on a desktop no container.
        users = {folder.owner_uid, *(job.uid for gpu in host.gpus for job in gpu.jobs), *(w.uid for w in host.queue)}
        if is_explained or len(users) > 1:
            yield Text(
                f"Claims are in {printable(folder.path)}, which belongs to {printable(folder.owner)} and does not "
                f"reach into containers; `{host_setup_command(sudo())}` makes {HOST_FOLDER} for all users."
            )
