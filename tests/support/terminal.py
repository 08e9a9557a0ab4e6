"""A real terminal with a shell, in which a test types commands."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Mapping, Sequence

ROWS, COLUMNS = 60, 200
PATIENCE_S = 120.0

# CSI and OSC sequences, and sequences that select a character set or a keypad mode.
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[()][A-Z0-9]|[=>])")

# The prompt of the shell. A typed command never contains such a line, so its echo can't match.
_PROMPT = r"<<ended with (\d+)>>\n"
BASH = ("bash", "--noprofile", "--norc", "-i")


@dataclass(frozen=True)
class Shown:
    """Output of a command line: ``text`` without colours, and the exit status if the prompt contains it."""

    status: int | None
    text: str

    @property
    def lines(self) -> list[str]:
        return [line.rstrip() for line in self.text.splitlines()]


class Terminal:
    """A shell in a terminal window, which is open as long as the ``with`` lasts.

    Args:
        folder: Working directory at the start.
        environ: All environment variables except those of the terminal.
        command: Command to run, by default ``bash``.
        prompt: Regular expression for the command's prompt. A group in it is the exit status of the last command line.

    Attributes:
        process: The running command.
        greeting: Output before the first prompt.
    """

    def __init__(
        self, folder: Path, environ: Mapping[str, str], command: Sequence[str] = BASH, prompt: str = _PROMPT
    ) -> None:
        self._folder, self._environ, self._command = folder, dict(environ), command
        self._prompt = re.compile(prompt)
        self._seen = ""

    def __enter__(self) -> Terminal:
        kept = {name: value for name, value in self._environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
        self._own, terminal = pty.openpty()
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        self.process = subprocess.Popen(
            self._command,
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
            cwd=self._folder,
            env={**kept, "TERM": "xterm-256color", "PS1": "<<ended with $?>>\n", "HISTFILE": ""},
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(terminal)
        self.greeting = self.until(self._prompt)[0]
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def close(self) -> None:
        """Close the terminal as its window does: the shell and its jobs get SIGHUP."""
        if self._own >= 0:
            os.close(self._own)
            self._own = -1

    def write(self, text: str) -> None:
        os.write(self._own, text.encode())

    def type(self, line: str, timeout_s: float = PATIENCE_S) -> Shown:
        """Type a command line, wait for the next prompt, and return the output between.

        Raises:
            TimeoutError: There was no prompt within ``timeout_s``.
        """
        self.write(f"{line}\n")
        text, prompt = self.until(self._prompt, timeout_s)
        echo, _, text = text.partition("\n")
        assert echo.strip() == line, f"the terminal shows {echo!r} for {line!r}"
        return Shown(int(prompt[1]) if prompt.re.groups else None, text)

    def until(self, pattern: str | re.Pattern[str], timeout_s: float = PATIENCE_S) -> tuple[str, re.Match[str]]:
        """Return the output since the last match up to the next match of ``pattern``, and that match."""
        deadline_s = time.monotonic() + timeout_s
        while True:
            text = _ESCAPES.sub("", self._seen).replace("\r\n", "\n")
            found = re.search(pattern, text)
            if found:
                self._seen = text[found.end() :]
                return text[: found.start()], found
            left_s = deadline_s - time.monotonic()
            if left_s <= 0 or not select.select([self._own], [], [], left_s)[0]:
                raise TimeoutError(f"nothing like {pattern} after {timeout_s} s; the terminal shows:\n{text}")
            try:
                part = os.read(self._own, 1 << 16)
            except OSError:  # Linux reports an error if no process has the terminal open any more
                part = b""
            assert part, f"the shell has ended; the terminal shows:\n{text}"
            self._seen += part.decode("utf-8", "replace")
