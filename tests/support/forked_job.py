"""A script that runs as a fork of a process which has imported a framework; used as :class:`subprocess.Popen` is."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import threading
from contextlib import suppress
from typing import IO, Any, Callable, Mapping


class ForkedJob:
    """One script, beside which others may run.

    Args:
        fork: Has it forked, given the paths of its ``input``, its two ``outputs`` and of its ``status``.
        timeout_s: How long that may take.

    Attributes:
        pid: Its own, not that of the process it is a fork of.
        returncode: ``None`` until its end was seen; negative for a signal.
    """

    def __init__(self, fork: Callable[[Mapping[str, Any]], None], timeout_s: float) -> None:
        pipes = [os.pipe() for _ in range(4)]
        (its_stdin, stdin), *rest = pipes
        ours, its = [stdin, *(pipe[0] for pipe in rest)], [its_stdin, *(pipe[1] for pipe in rest)]
        self.stdin: IO[str] = os.fdopen(stdin, "w")
        self.stdout, self.stderr, self._status = (os.fdopen(end, errors="replace") for end in ours[1:])
        self.returncode: int | None = None
        # It opens these anew: of a pipe, each opening is an end of its own.
        paths = [f"/proc/{os.getpid()}/fd/{end}" for end in its]
        fork({"input": paths[0], "outputs": paths[1:3], "status": paths[3]})
        ready, _, _ = select.select([self._status], [], [], timeout_s)
        line = self._status.readline() if ready else ""
        for end in its:
            os.close(end)
        if not line:
            raise RuntimeError("the process that imports the framework has ended or hangs")
        self.pid = int(line)

    def poll(self) -> int | None:
        """Its exit status, if it has ended."""
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def wait(self, timeout: float | None = None) -> int:
        """Its exit status, once it has ended.

        Raises:
            subprocess.TimeoutExpired: It has not within ``timeout`` seconds.
        """
        if self.returncode is None:
            if not select.select([self._status], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(["forked job"], timeout or 0)
            # No line: the process it is a fork of was killed, and it with that.
            self.returncode = int(self._status.readline() or -signal.SIGKILL)
            self._status.close()
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Close its input, and return what it writes until its end."""
        self.stdin.close()
        texts: dict[IO[str], str] = {}

        def read(stream: IO[str]) -> None:
            texts[stream] = stream.read()

        readers = [threading.Thread(target=read, args=(stream,), daemon=True) for stream in (self.stdout, self.stderr)]
        for reader in readers:
            reader.start()
        self.wait(timeout)
        for reader in readers:
            reader.join(timeout)
        return texts[self.stdout], texts[self.stderr]

    def send_signal(self, number: int) -> None:
        """Send it a signal, if it has not ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):  # it has ended, and its line is on the way
                os.kill(self.pid, number)

    def kill(self) -> None:
        """End it by SIGKILL."""
        self.send_signal(signal.SIGKILL)
