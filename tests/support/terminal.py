"""A real terminal with a shell in it, into which a test types."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import termios
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Mapping

ROWS, COLUMNS = 60, 200

# CSI and OSC sequences, and what chooses a character set.
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[()][A-Z0-9]|[=>])")

# The shell prints it as its prompt. What is typed holds no such line, so the echo can't be taken for it.
_PROMPT = re.compile(r"<<ended with (\d+)>>")


@dataclass(frozen=True)
class Shown:
    """What the terminal showed for one command line: ``text`` without its colours, and the exit status."""

    status: int
    text: str

    @property
    def lines(self) -> list[str]:
        """Each line that was shown, without trailing spaces."""
        return [line.rstrip() for line in self.text.splitlines()]


class Terminal:
    """``bash`` as a person has it in a terminal window, for as long as the ``with`` lasts.

    Args:
        folder: Where it starts.
        environ: All of its environment but what belongs to the terminal.
    """

    def __init__(self, folder: Path, environ: Mapping[str, str]) -> None:
        self._folder, self._environ = folder, dict(environ)

    def __enter__(self) -> Terminal:
        kept = {name: value for name, value in self._environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
        environ = {**kept, "TERM": "xterm-256color", "PS1": "<<ended with $?>>\n", "HISTFILE": ""}
        self._pid, self._terminal = pty.fork()
        if self._pid == 0:
            try:
                fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
                os.chdir(self._folder)
                os.execvpe("bash", ["bash", "--noprofile", "--norc", "-i"], environ)
            finally:
                os._exit(127)
        self._until_prompt(60)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._terminal)  # the shell and what runs in it get SIGHUP
        deadline_s = time.monotonic() + 20
        while os.waitpid(self._pid, os.WNOHANG) == (0, 0):
            if time.monotonic() > deadline_s:
                os.kill(self._pid, signal.SIGKILL)
                os.waitpid(self._pid, 0)
                return
            time.sleep(0.02)

    def type(self, line: str, timeout_s: float) -> Shown:
        """Type a command line, and return when the shell's prompt is there again.

        Raises:
            TimeoutError: It was not, in time.
        """
        os.write(self._terminal, line.encode() + b"\n")
        shown = self._until_prompt(timeout_s)
        echo, _, text = shown.text.partition("\n")
        assert echo.strip() == line, f"the terminal shows {echo!r} for {line!r}"
        return Shown(shown.status, text)

    def _until_prompt(self, timeout_s: float) -> Shown:
        seen, deadline_s = "", time.monotonic() + timeout_s
        while True:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0 or not select.select([self._terminal], [], [], left_s)[0]:
                raise TimeoutError(f"no prompt after {timeout_s} s; the terminal shows:\n{seen}")
            try:
                part = os.read(self._terminal, 1 << 16)
            except OSError:  # the shell has ended
                part = b""
            assert part, f"the shell has ended; the terminal shows:\n{seen}"
            seen += part.decode("utf-8", "replace")
            text = _ESCAPES.sub("", seen).replace("\r\n", "\n")
            prompt = _PROMPT.search(text)
            if prompt:
                return Shown(int(prompt.group(1)), text[: prompt.start()])
