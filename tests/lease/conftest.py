"""Lease folders that other users can reach, and processes in them that are really killed."""

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

from autogpu.lease import Folder, model, snapshot
from autogpu.lease.folder import FolderOrigin

TIMEOUT_S = 120.0
ALICE, BOB = 12345, 12346

SWITCH = Path("/proc/sys/fs/protected_regular")

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become two other users, and mount")


def holders(folder):
    """Who holds a lease at this moment."""
    return snapshot(folder).holders


def waiters(folder):
    """The queue at this moment, with those that are passed over."""
    return snapshot(folder).waiters


PROGRAM = str(Path(__file__).with_name("worker.py"))
PIPES: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)


class Fork:
    """A fork of the process that has imported all that a worker needs; used as :class:`subprocess.Popen` is."""

    def __init__(self, parent, arguments):
        (its_stdin, stdin), (stdout, its_stdout), (stderr, its_stderr) = [os.pipe() for _ in range(3)]
        self.stdin, self.stdout, self.stderr = os.fdopen(stdin, "wb"), os.fdopen(stdout, "rb"), os.fdopen(stderr, "rb")
        its = (its_stdin, its_stdout, its_stderr)
        # It opens these anew: of a pipe, each opening is an end of its own.
        files = [f"/proc/{os.getpid()}/fd/{end}" for end in its]
        parent.stdin.write(json.dumps({"arguments": arguments, "files": files}).encode() + b"\n")
        parent.stdin.flush()
        self.pid = json.loads(parent.stdout.readline())
        self._end = os.pidfd_open(self.pid)
        for end in its:
            os.close(end)

    def wait(self, timeout_s):
        assert select.select([self._end], [], [], timeout_s)[0], f"pid {self.pid} lives on"

    def __del__(self):
        os.close(self._end)


def pass_a_tick():
    """Wait until the kernel's clock for files, by which the queue is ordered, has gone on: it goes by some ms."""
    with tempfile.NamedTemporaryFile() as first:
        begun_ns, until_s = os.fstat(first.fileno()).st_ctime_ns, time.monotonic() + TIMEOUT_S
        while os.fstat(first.fileno()).st_ctime_ns == begun_ns:
            assert time.monotonic() < until_s
            os.fchmod(first.fileno(), 0o600)


class Worker:
    """A process of ``worker.py``: a fork of ``parent``, or what a command starts."""

    def __init__(self, parent, path, *arguments, python=None, prefix=()):
        if python or prefix:
            command = [*prefix, str(python or sys.executable), PROGRAM, str(path), *arguments]
            self.process: Any = subprocess.Popen(command, **PIPES, start_new_session=True)
        else:
            self.process = Fork(parent, [str(path), *arguments])
        self._pending = b""
        self.pid = self.hear()["pid"]

    def tell(self, do, **command):
        self.process.stdin.write(json.dumps({"do": do, **command}).encode() + b"\n")
        self.process.stdin.flush()

    def hear(self, timeout_s=TIMEOUT_S):
        """Its next answer."""
        end = time.monotonic() + timeout_s
        while b"\n" not in self._pending:
            readable, _, _ = select.select([self.process.stdout], [], [], max(0.0, end - time.monotonic()))
            part = os.read(self.process.stdout.fileno(), 65536) if readable else None
            if not part:
                # With all that it forked, which would keep its stderr open.
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait(TIMEOUT_S)
                state = "ended" if readable else f"silent for {timeout_s} s"
                raise AssertionError(f"worker {state}: {self.process.stderr.read().decode()}")
            self._pending += part
        line, _, self._pending = self._pending.partition(b"\n")
        return json.loads(line.decode())

    def ask(self, do, **command):
        self.tell(do, **command)
        return self.hear()

    def result(self, timeout_s=TIMEOUT_S):
        """Its next answer that is not an event of waiting."""
        end = time.monotonic() + timeout_s
        while True:
            told = self.hear(max(0.01, end - time.monotonic()))
            if "event" not in told:
                return told

    def wait_in_line(self, **command):
        """Start to wait, and return when it stands in line."""
        self.tell("wait", **command)
        told = self.hear()
        assert told["event"] == "waiting", told
        pass_a_tick()  # who comes next comes later
        return told

    def kill(self, number=signal.SIGKILL):
        os.kill(self.process.pid, number)
        if number == signal.SIGKILL:
            self.process.wait(TIMEOUT_S)

    def stop(self, folder):
        """Stop it, but not while it holds the mutex, which no other process could take then."""
        with folder.locked():
            os.kill(self.process.pid, signal.SIGSTOP)
            until(lambda: Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T")

    def end(self):
        # The session: with all that it forked.
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except OSError:
            pass
        self.process.wait(TIMEOUT_S)
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            try:
                pipe.close()
            except OSError:
                pass


@pytest.fixture
def path():
    """A sticky folder that every user can write, as the host's is; pytest's own are closed to others."""
    made = Path(tempfile.mkdtemp(prefix="autogpu-test-"))
    leases = made / "leases"
    leases.mkdir()
    made.chmod(0o755)
    leases.chmod(0o1777)
    yield leases
    shutil.rmtree(str(made), ignore_errors=True)


@pytest.fixture(params=["0", "1", "2"])
def protected_regular(request):
    """How the kernel guards files in sticky folders against those who open them with O_CREAT."""
    try:
        before = SWITCH.read_text()
        SWITCH.write_text(request.param)
    except OSError as error:
        pytest.skip(f"{SWITCH} can't be set: {error.strerror}")
    yield request.param
    SWITCH.write_text(before)


@pytest.fixture
def folder(path):
    return Folder(path, FolderOrigin.ENVIRONMENT, path.stat().st_uid)


@pytest.fixture(scope="session")
def parent():
    """The process that workers are forks of."""
    with subprocess.Popen([sys.executable, PROGRAM, "--forks"], **PIPES) as parent:
        yield parent


@pytest.fixture
def start(path, parent):
    """Start a worker; all are killed at the end."""
    workers = []

    def start(*arguments, **options):
        workers.append(Worker(parent, options.pop("path", path), *arguments, **options))
        return workers[-1]

    yield start
    for worker in workers:
        worker.end()


def until(predicate, timeout_s=10.0):
    """Wait for ``predicate`` to become true."""
    end = time.monotonic() + timeout_s
    while not predicate():
        assert time.monotonic() < end, f"not within {timeout_s} s"
        time.sleep(0.002)


def lease_text(claims):
    """What a lease of this process says."""
    return model.encode_lease({**model.identity("a.py"), "group": "j"}, model.Terms(claims))
