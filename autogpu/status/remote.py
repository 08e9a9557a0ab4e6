"""Ask other hosts for their status, all at once: ``autogpu status --json`` there, over plain ``ssh``."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import time
from contextlib import ExitStack, contextmanager
from typing import IO, Iterator, NamedTuple, Sequence

from autogpu.errors import AutoGpuError
from autogpu.process import monotonic_s
from autogpu.reporting.text import printable, span
from autogpu.status.json import from_json
from autogpu.status.model import Answer, HostStatus

# 64 GPUs with 2,000 processes on them are 0.5 MB. A host that prints without end must not fill this one's disk.
_MOST_BYTES = 4 << 20
_LOOK_EVERY_S, _KILL_AFTER_S = 0.02, 5.0

# What ssh itself and a shell end with. ssh(1), EXIT STATUS; POSIX, 2.8.2.
_EXIT_SSH, _EXIT_NOT_FOUND = 255, 127


class _Ssh(NamedTuple):
    """One that was started. It prints into files: a pipe may be kept open by what it leaves in the background."""

    process: subprocess.Popen[bytes]
    printed: IO[bytes]
    errors: IO[bytes]

    def prints_too_much(self) -> bool:
        return any(os.fstat(file.fileno()).st_size > _MOST_BYTES for file in (self.printed, self.errors))


def ask(hosts: Sequence[str], command: str, timeout_s: float) -> tuple[Answer, ...]:
    """The status of each host, in that order; each may take so long.

    Args:
        command: What starts autogpu there, as the remote shell reads it.

    Raises:
        AutoGpuError: There is no ``ssh`` here.
        KeyboardInterrupt: SIGINT came. Each ``ssh`` has ended by then, however often it comes.
    """
    started: list[_Ssh] = []
    until_s = monotonic_s() + timeout_s
    with _noted_interrupts() as interrupts, ExitStack() as files:
        try:
            for host in hosts:
                if not interrupts:
                    printed = files.enter_context(tempfile.TemporaryFile())
                    errors = files.enter_context(tempfile.TemporaryFile())
                    started.append(_Ssh(_start(host, f"{command} status --json", printed, errors), printed, errors))
            while not interrupts and monotonic_s() < until_s:
                if all(ssh.process.poll() is not None or ssh.prints_too_much() for ssh in started):
                    break
                time.sleep(_LOOK_EVERY_S)
            return tuple(_answer(host, ssh, timeout_s) for host, ssh in zip(hosts, started))
        finally:
            _end([ssh.process for ssh in started])


@contextmanager
def _noted_interrupts() -> Iterator[list[int]]:
    """The SIGINTs that have come; ``KeyboardInterrupt`` is raised at the end of the context alone.

    Python would raise it anywhere: inside ``Popen``, whose process nothing would know of then, and a second time in the
    code that ends them. A process that ignores SIGINT, as after ``nohup``, goes on ignoring it.
    """
    came: list[int] = []
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, lambda number, frame: came.append(number))
    try:
        yield came
    finally:
        # One who is impatient ends the process where it would only print that it was interrupted, without a traceback.
        signal.signal(signal.SIGINT, signal.SIG_DFL if came else before)
        if came:
            raise KeyboardInterrupt


def _start(host: str, command: str, printed: IO[bytes], errors: IO[bytes]) -> subprocess.Popen[bytes]:
    # It must never ask for a password, nor read what the terminal's user types; the rest is said in ssh_config(5).
    arguments = ["ssh", "-T", "-o", "BatchMode=yes", "--", host, command]
    try:
        return subprocess.Popen(arguments, stdin=subprocess.DEVNULL, stdout=printed, stderr=errors)
    except FileNotFoundError:
        raise AutoGpuError("there is no ssh on this machine", remedy="install OpenSSH's client") from None


def _end(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """End those that have not ended, all at once, and wait for each."""
    for process in processes:
        process.terminate()
    until_s = monotonic_s() + _KILL_AFTER_S
    while monotonic_s() < until_s and any(process.poll() is None for process in processes):
        time.sleep(_LOOK_EVERY_S)
    for process in processes:
        process.kill()
        process.wait()


def _answer(host: str, ssh: _Ssh, timeout_s: float) -> Answer:
    try:
        return Answer(host, _status_in(_printed(ssh, timeout_s)))
    except ValueError as error:
        return Answer(host, None, printable(str(error), 400))


def _printed(ssh: _Ssh, timeout_s: float) -> str:
    ended_with = ssh.process.poll()
    if ssh.prints_too_much():
        raise ValueError(f"its answer is longer than {_MOST_BYTES >> 20} MiB")
    if ended_with is None:
        raise ValueError(f"no answer within {span(timeout_s)}")
    text, last = _read(ssh.printed), _read(ssh.errors).strip().split("\n")[-1].strip()
    if ended_with == _EXIT_SSH:
        raise ValueError(last or "ssh failed and does not say why")
    if ended_with == _EXIT_NOT_FOUND:
        raise ValueError(f"{last or 'autogpu was not found'}; --remote-command says how it is started there")
    # With a driver that can't be read its status is 1, and says so.
    if ended_with not in (0, 1) or not text.strip():
        raise ValueError(f"what was started there ended with status {ended_with}{last and f': {last}'}")
    return text


def _read(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode("utf-8", "replace")


def _status_in(text: str) -> HostStatus:
    if "{" not in text:
        raise ValueError(
            "what was printed there is no status of autogpu; --remote-command says how it is started there"
        )
    # Behind what a start-up file of the remote shell may have printed.
    begin = 0 if text.startswith("{") else text.find("\n{") + 1
    try:
        values, _ = json.JSONDecoder().raw_decode(text, begin)
    except (ValueError, RecursionError) as error:  # no JSON, numbers without end, too deep
        raise ValueError(f"this is not what `autogpu status --json` prints: {error}") from None
    return from_json(values)
