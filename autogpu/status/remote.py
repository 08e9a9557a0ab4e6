"""Ask other hosts for their status, all at once: ``autogpu status --json`` there, over plain ``ssh``."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
from dataclasses import dataclass
from typing import IO, Sequence

from autogpu.clock import monotonic_s
from autogpu.errors import AutoGpuError
from autogpu.reporting.text import printable, span
from autogpu.status.interrupt import DeferredInterrupt
from autogpu.status.json import from_json
from autogpu.status.model import HostStatus

# 64 GPUs with 2,000 processes on them are 0.5 MB. A host that prints without end must not fill this one's memory.
_MOST_BYTES = 4 << 20
_MOST_ERROR_BYTES = 4096

# What ssh itself and a shell end with. ssh(1), EXIT STATUS; POSIX, 2.8.2.
_EXIT_SSH = 255
_EXIT_NOT_FOUND = 127

# For one that has said all to end.
_END_DEADLINE_S = 1.0

# For those that are told to end, together.
_KILL_AFTER_S = 5.0


@dataclass(frozen=True)
class Answer:
    """What one host said.

    Attributes:
        host: As it was asked for.
        status: ``None`` if there is none, for ``problem``.
        problem: In words, safe for a terminal; else empty.
    """

    host: str
    status: HostStatus | None
    problem: str = ""


def ask(hosts: Sequence[str], command: str, timeout_s: float) -> tuple[Answer, ...]:
    """The status of each host, in that order.

    Args:
        hosts: As ``ssh`` takes them.
        command: What starts autogpu there, as the remote shell reads it.
        timeout_s: How long each may take.

    Raises:
        AutoGpuError: There is no ``ssh`` here.
        KeyboardInterrupt: SIGINT came. Each ``ssh`` has ended by then, however often it comes.
    """
    questions: list[_Question] = []
    until_s = monotonic_s() + timeout_s
    with DeferredInterrupt() as interrupt:
        try:
            for host in hosts:
                questions.append(_Question(host, f"{command} status --json"))
            with interrupt.taken():
                _listen(questions, until_s)
                return tuple(question.answer(until_s, timeout_s) for question in questions)
        finally:
            _close(questions)


def _close(questions: Sequence[_Question]) -> None:
    """End those that have not ended, all at once, and wait for each."""
    for question in questions:
        question.tell_to_end()
    until_s = monotonic_s() + _KILL_AFTER_S
    for question in questions:
        question.close(until_s)


def _listen(questions: Sequence[_Question], until_s: float) -> None:
    """Read until all have said everything, or the time is over."""
    with selectors.DefaultSelector() as selector:
        for question in questions:
            selector.register(question.stdout, selectors.EVENT_READ, question)
            selector.register(question.stderr, selectors.EVENT_READ, question)
        # Not until the end of stderr: what ssh leaves in the background, as by ControlPersist, may keep it open.
        while not all(question.is_done for question in questions):
            events = selector.select(max(0.0, until_s - monotonic_s()))
            if not events:
                return
            for key, _ in events:
                if not key.data.hear(key.fileobj):
                    selector.unregister(key.fileobj)


class _Question:
    """One host that is asked."""

    def __init__(self, host: str, command: str) -> None:
        self.is_done = False
        self._host = host
        self._printed = b""
        self._errors = b""
        # It must never ask for a password, nor read what the terminal's user types; the rest is said in ssh_config(5).
        arguments = ["ssh", "-T", "-o", "BatchMode=yes", "--", host, command]
        pipe, nothing = subprocess.PIPE, subprocess.DEVNULL
        try:
            self._process = subprocess.Popen(arguments, stdin=nothing, stdout=pipe, stderr=pipe)
        except FileNotFoundError:
            raise AutoGpuError("there is no ssh on this machine", remedy="install OpenSSH's client") from None
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self.stdout: IO[bytes] = self._process.stdout
        self.stderr: IO[bytes] = self._process.stderr
        os.set_blocking(self.stderr.fileno(), False)

    def hear(self, stream: object) -> bool:
        """Take what there is; whether more can come."""
        if stream is self.stderr:
            part = self._part_of_stderr()
            self._errors = (self._errors + part)[-_MOST_ERROR_BYTES:]
            return bool(part)
        part = os.read(self.stdout.fileno(), 1 << 16)
        self._printed += part
        self.is_done = not part or len(self._printed) > _MOST_BYTES
        return not self.is_done

    def answer(self, until_s: float, timeout_s: float) -> Answer:
        """What the host said, or why it did not."""
        if not self.is_done:
            return self._none(f"no answer within {span(timeout_s)}")
        if len(self._printed) > _MOST_BYTES:
            return self._none(f"its answer is longer than {_MOST_BYTES >> 20} MiB")
        try:
            status = self._process.wait(max(_END_DEADLINE_S, until_s - monotonic_s()))
        except subprocess.TimeoutExpired:
            return self._none(f"no end within {span(timeout_s)}")
        while self.hear(self.stderr):
            pass
        # With a driver that can't be read its status is 1, and says so.
        text = self._printed.decode("utf-8", "replace")
        if status in (0, 1) and "{" in text:
            try:
                return Answer(self._host, _status_in(text))
            except ValueError as error:
                return self._none(str(error))
        return self._none(self._why(status))

    def tell_to_end(self) -> None:
        """Ask it to end, if it has not ended."""
        self._process.terminate()

    def close(self, until_s: float) -> None:
        """Wait for its end, and from then on make it end."""
        try:
            self._process.wait(max(0.0, until_s - monotonic_s()))
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self.stdout.close()
        self.stderr.close()

    def _part_of_stderr(self) -> bytes:
        try:
            return os.read(self.stderr.fileno(), 1 << 16)
        except BlockingIOError:
            return b""

    def _none(self, problem: str) -> Answer:
        return Answer(self._host, None, printable(problem, 400))

    def _why(self, status: int) -> str:
        said = self._errors.decode("utf-8", "replace").split("\n")
        last = next((line.strip() for line in reversed(said) if line.strip()), "")
        if status == _EXIT_SSH:
            return last or "ssh failed and does not say why"
        if status == _EXIT_NOT_FOUND:
            return f"{last or 'autogpu was not found'}; --remote-command says how autogpu is started there"
        if status in (0, 1) and self._printed.strip():
            return "what was printed there is no status of autogpu; --remote-command says how autogpu is started there"
        return f"what was started there ended with status {status}" + (f": {last}" if last else "")


def _status_in(text: str) -> HostStatus:
    """The status that was printed, behind what a start-up file of the remote shell may have printed.

    Raises:
        ValueError: It is none.
    """
    begin = 0 if text.startswith("{") else text.find("\n{") + 1
    try:
        values, _ = json.JSONDecoder().raw_decode(text, begin)
    except (ValueError, RecursionError) as error:  # no JSON, numbers without end, too deep
        raise ValueError(f"this is not what `autogpu status --json` prints: {error}") from None
    return from_json(values)
