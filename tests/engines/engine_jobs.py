"""What tests of real engines share: an environment with an engine, scripts that report, and what stays behind."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import time
from pathlib import Path
from typing import Any, Callable, Iterator, Mapping, Sequence

import pytest

from tests.gpusim import Server
from tests.support import environments

GIB = 1 << 30
TIMEOUT_S = 240


def python_with(*requirements: str) -> Path:
    """An environment with TensorFlow, an engine, and autogpu installed as a user does it.

    The engine has an environment of its own below this one, so that a change of autogpu's source installs only
    autogpu again. TensorFlow's packages come before the engine's: both need protobuf, and TensorFlow has bounds for it.
    """
    base = environments.tensorflow()
    try:
        engine = environments.environment(base.resolve(), requirements, with_autogpu=False)
    except RuntimeError as error:
        last_line = str(error).strip().splitlines()[-1]
        pytest.skip(f"{' and '.join(requirements)} can't be installed: {last_line}")
    made = environments.environment(base.resolve(), on_top_of=base, with_hook=True, name=" ".join(requirements))
    packages = environments.site_packages(made)
    # In the order of the files' names, so behind TensorFlow's. Replaced in one step: another test may be starting.
    new = packages / f"on_top_of_engine.{os.getpid()}"
    new.write_text(f"{environments.site_packages(engine)}\n")
    new.replace(packages / "on_top_of_engine.pth")
    return made


class Script:
    """A Python script on a server that prints JSON lines, and may wait for its input to end before it goes on."""

    def __init__(self, server: Server, command: Sequence[str], folder: Path, environ: Mapping[str, str]) -> None:
        self.server, self._errors = server, folder / "stderr"
        with self._errors.open("wb") as errors:
            self.process = server.popen(
                command,
                environ=environ,
                cwd=str(folder),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=False,
                # A line that is read too early into a buffer is one that nobody waits for any more.
                bufsize=0,
            )

    def reports(self, timeout_s: float = TIMEOUT_S) -> Any:
        """The next JSON line; other lines are skipped."""
        deadline = time.monotonic() + timeout_s
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            while selector.select(max(0.0, deadline - time.monotonic())):
                line = self.process.stdout.readline()
                if line.startswith((b"{", b"[")):
                    return json.loads(line)
                if not line:
                    raise AssertionError(f"it ended without a report\n{self.stderr()}")
        raise AssertionError(f"no report within {timeout_s:.0f} s\n{self.stderr()}")

    def has_reported(self) -> bool:
        """Whether there is something to read, which may also be its end."""
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            return bool(selector.select(0))

    def end(self, timeout_s: float = TIMEOUT_S) -> int:
        """End its input, wait for its end, and return the exit status."""
        self.process.stdin.close()
        return self.process.wait(timeout=timeout_s)

    def close(self, timeout_s: float = 30) -> None:
        """End its input if it still runs, and give it time to end what it started."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.end(timeout_s)

    def stderr(self) -> str:
        return self._errors.read_text(errors="replace")

    def said(self) -> list[str]:
        """What autogpu printed in it, and in what shares its stderr."""
        return lines_of_autogpu(self.stderr())


def lines_of_autogpu(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("autogpu: ")]


def gpus_of(server: Server, pid: int) -> list[int]:
    """The GPUs on which a process made a context, in PCI order."""
    return sorted(server.contexts().get(pid, []))


def gib_of(server: Server, pid: int) -> float:
    """What the driver granted to a process."""
    return sum(call.bytes or 0 for call in server.calls(pid=pid, call="allocate")) / GIB


def processes_on(server: Server) -> Iterator[int]:
    """The processes that were started on ``server``, at any depth, and still run."""
    marker = f"GPUSIM_FLEET={server.environ['GPUSIM_FLEET']}".encode()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if marker in (process / "environ").read_bytes().split(b"\0"):
                yield int(process.name)
        except OSError:
            # It has ended, or is another user's.
            continue


def until(holds: Callable[[], object], timeout_s: float) -> bool:
    """Whether ``holds`` did within the time."""
    deadline = time.monotonic() + timeout_s
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def end_all(server: Server, timeout_s: float = 30) -> list[str]:
    """Wait for the end of what was started on ``server``; kills and names what has not ended by itself."""
    if until(lambda: not any(processes_on(server)), timeout_s):
        return []
    left = []
    for pid in processes_on(server):
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            os.kill(pid, signal.SIGKILL)
        except OSError:
            continue
        left.append(f"{pid}: {command.strip()}")
    return left
