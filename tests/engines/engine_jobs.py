"""Helpers for tests of real engines: environments, jobs that report, and a check for leftover processes."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Iterator, Mapping, Sequence

import pytest

from tests.gpusim import Server
from tests.support import environments

GIB = 1 << 30
TIMEOUT_S = 240
# Scripts that run in the engines. They import each other as modules.
JOBS = Path(__file__).parent / "jobs"
# GiB that a job requests. Only a whole GPU of 24 GiB has so much; its CUDA context and the system need the rest.
WHOLE = 22.0


def python_with(*requirements: str, base: Path | None = None) -> Path:
    """Return the Python of an environment with TensorFlow, an engine, and autogpu after ``autogpu install``.

    The engine has its own environment below this one, so that a change of autogpu's source reinstalls only autogpu.
    TensorFlow's packages come before the engine's, because both need protobuf and TensorFlow restricts its version.

    Args:
        requirements: The packages of the engine.
        base: An environment with another framework, instead of TensorFlow's.
    """
    base = base or environments.tensorflow()
    try:
        engine = environments.environment(base.resolve(), requirements, with_autogpu=False)
    except RuntimeError as error:
        last_line = str(error).strip().splitlines()[-1]
        pytest.skip(f"{' and '.join(requirements)} can't be installed: {last_line}")
    return environments.environment(base.resolve(), on_top_of=(base, engine), with_hook=True)


@dataclass(frozen=True)
class Holding:
    """Memory that a job has allocated, keyed by GPU in PCI order: ``whole``, or text such as ``11.50 GiB``."""

    pid: int
    gpus: dict[int, str]


class Run:
    """Jobs that stay until ``count`` of them hold their memory, or until the test calls ``end``.

    Args:
        folder: A new folder for the jobs' reports.
    """

    def __init__(self, folder: Path, count: int = 1) -> None:
        self._folder, self._count = folder, count
        folder.mkdir()

    def command(self, python: Path, gib: float = WHOLE, framework: str = "toyflow", dies: str = "") -> list[str]:
        """Return a command that allocates ``gib`` on each of its GPUs; the rank ``dies`` then runs out of memory."""
        command = [str(python), str(JOBS / "job.py"), str(self._folder), str(self._count), str(gib), framework]
        return command + ([dies] if dies else [])

    def wait(self, count: int) -> None:
        """Wait until ``count`` jobs hold their memory."""
        assert until(lambda: len(self._reports()) >= count, TIMEOUT_S), f"{len(self._reports())} of {count} jobs"

    def end(self) -> None:
        """Let the jobs end: each empty file counts as the report of a job."""
        for number in range(self._count):
            (self._folder / f"end{number}.json").touch()

    def taken(self, *servers: Server) -> list[Holding]:
        """Return the memory of the jobs, sorted by rank and then by GPU."""
        ranked = [(told["rank"], taken_by(told["pid"], *servers)) for told in self._reports()]
        return [taken for _, taken in sorted(ranked, key=lambda each: (each[0], list(each[1].gpus)))]

    def _reports(self) -> list[dict[str, Any]]:
        return [json.loads(path.read_text()) for path in self._folder.glob("[0-9]*.json")]


def taken_by(pid: int, *servers: Server) -> Holding:
    """Return the memory of a process, read from the logs of the servers' drivers."""
    sizes: dict[int, int] = {}
    for server in servers:
        sizes.update((call.gpu, 0) for call in server.calls(pid=pid, call="context"))
        for call in server.calls(pid=pid, call="allocate"):
            sizes[call.gpu] += call.bytes or 0
    in_words = {gpu: "whole" if size >= WHOLE * GIB else f"{size / GIB:.2f} GiB" for gpu, size in sizes.items()}
    return Holding(pid, dict(sorted(in_words.items())))


class Script:
    """A Python script on a server. It prints JSON lines, and may wait until its stdin is closed."""

    def __init__(self, server: Server, command: Sequence[str], folder: Path, environ: Mapping[str, str]) -> None:
        self.server = server
        self.command = command
        self._errors = folder / "stderr"
        with self._errors.open("wb") as errors:
            self.process = server.popen(
                command,
                environ=environ,
                cwd=str(folder),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=False,
                # No buffer: ``select`` does not see lines that Python has read into a buffer already.
                bufsize=0,
            )

    def has_reported(self, timeout_s: float = 0) -> bool:
        """True if the script prints something, or ends, within ``timeout_s``."""
        return bool(select.select([self.process.stdout], [], [], timeout_s)[0])

    def reports(self, timeout_s: float = TIMEOUT_S) -> Any:
        """Return the content of the next JSON line; skip other lines."""
        deadline = time.monotonic() + timeout_s
        while self.has_reported(max(0.0, deadline - time.monotonic())):
            line = self.process.stdout.readline()
            if line.startswith((b"{", b"[")):
                return json.loads(line)
            assert line, f"it ended without a report\n{self.stderr()}"
        raise AssertionError(f"no report within {timeout_s:.0f} s\n{self.stderr()}")

    def end(self, timeout_s: float = TIMEOUT_S) -> int:
        self.process.stdin.close()
        return self.process.wait(timeout=timeout_s)

    def close(self, timeout_s: float = 30) -> None:
        """Close the script's stdin, and give the script time to end its own processes."""
        with suppress(subprocess.TimeoutExpired):
            self.end(timeout_s)

    def stderr(self) -> str:
        return self._errors.read_text(errors="replace")

    def said(self) -> list[str]:
        """Return autogpu's lines in the script's stderr, which its children share."""
        return lines_of_autogpu(self.stderr())


def lines_of_autogpu(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("autogpu: ")]


def first_lines(lines: Sequence[str]) -> list[str]:
    """Return the lines about the GPUs of a process, without the second line that some processes print."""
    return [line for line in lines if line.startswith("autogpu: no GPU") or "; memory " in line]


def gpus_of(server: Server, pid: int) -> list[int]:
    """Return the GPUs on which a process made a context, in PCI order."""
    return sorted(server.contexts().get(pid, []))


def processes_on(server: Server) -> Iterator[int]:
    """Yield the pids of running processes that were started on ``server``, at any depth."""
    marker = f"GPUSIM_FLEET={server.environ['GPUSIM_FLEET']}".encode()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if marker in (process / "environ").read_bytes().split(b"\0"):
                yield int(process.name)
        except OSError:
            # The process has ended, or belongs to another user.
            continue


def free_ports(count: int) -> list[int]:
    with ExitStack() as held:
        # All sockets are open together, so each port is different.
        sockets = [held.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [free.getsockname()[1] for free in sockets]


def configurations(*kinds: str) -> list[str]:
    """Return TF_CONFIG for each task of a cluster, in the order of ``kinds``."""
    cluster: dict[str, list[str]] = {kind: [] for kind in kinds}
    tasks = []
    for kind, port in zip(kinds, free_ports(len(kinds))):
        tasks.append({"type": kind, "index": len(cluster[kind])})
        cluster[kind].append(f"127.0.0.1:{port}")
    return [json.dumps({"cluster": cluster, "task": task}) for task in tasks]


def until(holds: Callable[[], object], timeout_s: float) -> bool:
    """Wait until ``holds`` is true; return False if ``timeout_s`` is over before."""
    deadline = time.monotonic() + timeout_s
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def end_all(server: Server, timeout_s: float = 30) -> list[str]:
    """Wait for the end of all processes on ``server``.

    Kill those that still run after ``timeout_s``, and return their pids and command lines.
    """
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
