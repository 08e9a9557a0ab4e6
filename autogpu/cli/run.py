"""``autogpu run``: run a command with autogpu, without `autogpu install`, or any program on claimed GPUs."""

from __future__ import annotations

import errno
import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Callable, Mapping, NoReturn, Sequence

import click

from autogpu.acquire import Holding, acquire, script_name
from autogpu.cli.reach import why_not_reached
from autogpu.cli.request import NoDriver, in_words, policy_options, request_gpus, resolve_flags
from autogpu.devices import probe
from autogpu.errors import AutoGpuError, NoEligibleDevice, WaitTimeout
from autogpu.history import JobLines
from autogpu.install import run_folder
from autogpu.lease import GaveUp
from autogpu.policy import Resolved
from autogpu.policy.model import BY_NAME, with_options
from autogpu.reporting import choice, leases, waiting
from autogpu.reporting.held import held
from autogpu.selection.decision import Decision, Verdict
from autogpu.selection.model import SelectionRequest
from autogpu.selection.visible_devices import numbered_list, original_environ
from autogpu.stderr import say
from autogpu.text import printable, with_notes
from autogpu.variables import CUDA_VISIBLE_DEVICES, PYNVML_FOLDER, TYPED


@click.command(
    context_settings={"allow_interspersed_args": False},
    epilog="""Exit status: that of the command; 126 or 127 if the command can't be started; with --hold, 75 if no GPU
came free in time.

\b
Examples:
  autogpu run --count 2 -- python train.py
  autogpu run --hold -- ./my-cuda-program""",
)
@policy_options("select", "memory", "report")
@click.option(
    "--hold", "is_held", is_flag=True, help="Claim GPUs before the command starts, and hide all others from it."
)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, shell_complete=click.Path().shell_complete)
def run(flags: Mapping[str, str], is_held: bool, command: tuple[str, ...]) -> int:
    """Run COMMAND with autogpu in every Python that it starts.

    Options override every policy file and variable.

    With --hold, COMMAND can be any program. autogpu claims GPUs before the command starts and holds them until it
    ends. CUDA_VISIBLE_DEVICES lists only these GPUs. If no GPU is free, select.busy decides as for a script: by
    default the command shares a GPU without a claim, and with --busy wait it waits. If no GPU of this machine can
    ever serve the command, it does not start; with --busy cpu it runs on the CPU. On a machine without an NVIDIA
    driver the command runs without a GPU; with --busy error it does not start.
    """
    if not command[0]:
        _end_unstarted("an empty COMMAND", FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT)))
    resolved = resolve_flags(flags)
    environ = _environ_with_autogpu(flags)
    if not resolved.policy.enabled:
        if is_held:
            say(f"no GPU is claimed, because {resolved.settings['enabled'].origin} turns autogpu off")
        _become(command, environ)
    if not is_held:
        unreached = "" if resolved.policy.level == "quiet" else why_not_reached(command, environ)
        if unreached:
            say(f"{printable(command_name(command))} runs without autogpu: {unreached}")
        _become(command, environ)
    return _run_holding(resolved, command, environ)


def _environ_with_autogpu(flags: Mapping[str, str]) -> dict[str, str]:
    """Return the environment in which every Python that starts loads autogpu, and in which the options apply."""
    environ = {**os.environ, **{BY_NAME[name].variable: text for name, text in flags.items()}}
    environ.update({TYPED + name.upper(): text for name, text in flags.items()})
    # Put our folder first. Omit an empty PYTHONPATH, because an empty element stands for the working directory.
    environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(run_folder()), environ.get("PYTHONPATH", "")]))
    pynvml = find_spec("autogpu._vendor.pynvml")
    if pynvml is not None and pynvml.origin is not None:
        path = Path(pynvml.origin)
        environ[PYNVML_FOLDER] = str(path.parents[1] if pynvml.submodule_search_locations else path.parent)
    return environ


def _become(command: tuple[str, ...], environ: Mapping[str, str]) -> NoReturn:
    """Replace this process by the command, so that its signals, streams and exit status pass no other process."""
    # Python ignores SIGPIPE, and a new program inherits ignored signals.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    sys.stdout.flush()
    try:
        os.execvpe(command[0], command, environ)
    except OSError as error:
        _end_unstarted(command[0], error)


def _end_unstarted(name: str, error: OSError) -> NoReturn:
    remedy = f"; to run a script: autogpu run -- python {printable(name)}" if name.endswith(".py") else ""
    say(f"can't start {printable(name)}: {error.strerror}{remedy}")
    raise click.exceptions.Exit(127 if isinstance(error, FileNotFoundError) else 126)  # the exit statuses of shells


def _run_holding(resolved: Resolved, command: tuple[str, ...], environ: dict[str, str]) -> int:
    script = command_name(command)
    is_quiet = resolved.policy.level == "quiet"
    remedy = "to start the command without a GPU: --busy cpu"
    try:
        request = request_gpus(resolved, environ, without_driver=remedy, own_pid=os.getpid())
    except NoDriver as error:
        if resolved.policy.busy == "error":
            raise
        if not is_quiet:
            say(f"{printable(script)} runs without a GPU: {error.what}")
        _become(command, environ)
    is_told = request.grant.is_first and not is_quiet

    def tell(line: str) -> None:
        if is_told:
            say(with_options(line))

    acquired = _acquire(request, environ, script, tell)
    if acquired.problem:
        tell(leases.claim_problem(acquired.problem, is_unclaimed=acquired.is_unclaimed))
    # Remove the list of GPUs that autogpu wrote in a parent process: the command gets a list of its own.
    environ = original_environ(environ)
    lines, variables = _held(acquired.decision, request, printable(script))
    environ.update(variables)
    for line in lines:
        tell(line)
    if acquired.lease is not None:
        if is_told and resolved.policy.history:
            with suppress(OSError):  # the home may be read-only
                JobLines(environ).keep(acquired.lease.name, list(map(with_options, lines)))
        acquired.lease.mark_children(environ, environ[CUDA_VISIBLE_DEVICES])
        acquired.lease.leave_to_programs()
    return _wait_for(command, environ)


def _acquire(
    request: SelectionRequest, environ: Mapping[str, str], script: str, tell: Callable[[str], None]
) -> Holding:
    # Inside a parent's job, acquire() shares the parent's GPUs; the parent keeps its claim.
    report = waiting.WaitingReport(tell, is_explained=request.policy.level == "explain")
    try:
        return acquire(request, environ, script, lambda: probe.finish(probe.start(os.environ)), report)
    except GaveUp as error:
        what, remedy = waiting.gave_up(error, request.policy.locked)
        raise WaitTimeout(what, remedy=remedy) from None


def _held(decision: Decision, request: SelectionRequest, script: str) -> tuple[Sequence[str], Mapping[str, str]]:
    """Return the lines about the GPUs that the command gets, and the variables that hide all others from it.

    Raises:
        AutoGpuError: The command gets no GPU, and its policy does not allow the CPU.
    """
    why = in_words(decision)
    if decision.verdict is Verdict.REFUSE or decision.misses_gpu:
        raise NoEligibleDevice(why, remedy=choice.busy_remedy(decision))
    if decision.verdict is Verdict.CPU:
        lines = with_notes([f"{script} runs without a GPU: {choice.reason(decision)}"], choice.notes(decision))
        return lines, {CUDA_VISIBLE_DEVICES: "-1"}
    if decision.verdict is not Verdict.TAKE:
        raise AutoGpuError(f"can't claim a GPU: {why}", remedy="to find the cause: `autogpu doctor`")
    shared = [device for device in decision.devices if not decision.claims.get(device.uuid)]
    lines = held(decision, script, shared, is_explained=request.policy.level == "explain")
    # Prefer numbers to UUIDs: some programs read only numbers.
    uuids = [device.uuid for device in decision.devices]
    return lines, numbered_list(uuids, request.inventory) or {CUDA_VISIBLE_DEVICES: ",".join(uuids)}


def command_name(command: Sequence[str]) -> str:
    """Return the name of a command, which other users see.

    For a Python it is the name of the script (the first ``.py``) or of the module (after ``-m``).
    """
    own = script_name(command)
    words = command[1:] if re.fullmatch(r"python[0-9.]*", own) else ()
    for word, following in zip(words, [*words[1:], ""]):
        if word.endswith(".py"):
            return script_name([word])
        if word in ("-m", "-c"):
            return following if word == "-m" and following else own
    return own


def _wait_for(command: tuple[str, ...], environ: Mapping[str, str]) -> int:
    """Run the command while this process keeps the lease; return its exit status, or a negative signal number."""
    # A supervisor sends these signals to this process, but they are meant for the command. A terminal sends its signals
    # (Ctrl-C, Ctrl-\) to the command as well, so forwarding would deliver them twice.
    forwarded = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT)
    of_the_terminal = (signal.SIGINT, signal.SIGQUIT)
    # Block these signals while the command starts: a signal must not get lost, or end this process only.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, forwarded)
    # If this process was started with a signal ignored, as by nohup, the command has to ignore it as well.
    defaults = [number for number in of_the_terminal if signal.getsignal(number) is not signal.SIG_IGN]
    for number in of_the_terminal:
        signal.signal(number, signal.SIG_IGN)
    # If SIGCHLD is ignored, the kernel keeps no exit status of a child.
    of_children = signal.signal(signal.SIGCHLD, signal.SIG_DFL)

    def restore_signals() -> None:
        signal.signal(signal.SIGCHLD, of_children)
        for number in defaults:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

    try:
        # close_fds=False: files that the caller opened for the command stay open, as without autogpu.
        process = subprocess.Popen(command, env=environ, preexec_fn=restore_signals, close_fds=False)
    except OSError as error:
        _end_unstarted(command[0], error)
    for number in forwarded:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda number, _: process.send_signal(number))
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return process.wait()
