"""Fixtures of the lease tests: a folder that every user can write, and worker processes that a test can kill."""

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
    return snapshot(folder).holders


def waiters(folder):
    """Return all waiters in their order, including the unresponsive ones."""
    return snapshot(folder).waiters


PROGRAM = str(Path(__file__).with_name("worker.py"))
PIPES: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)


class Fork:
    """A fork of ``parent``, which has imported everything. Has the part of ``subprocess.Popen`` that a worker needs."""

    def __init__(self, parent, arguments):
        (its_stdin, stdin), (stdout, its_stdout), (stderr, its_stderr) = [os.pipe() for _ in range(3)]
        self.stdin, self.stdout, self.stderr = os.fdopen(stdin, "wb"), os.fdopen(stdout, "rb"), os.fdopen(stderr, "rb")
        its = (its_stdin, its_stdout, its_stderr)
        # ``parent`` has no descriptors of these pipes. The fork opens their paths, which makes new ends of the pipes.
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
    """Wait until file timestamps advance. They order the queue, and the kernel advances them in steps of some ms."""
    with tempfile.NamedTemporaryFile() as first:
        begun_ns, until_s = os.fstat(first.fileno()).st_ctime_ns, time.monotonic() + TIMEOUT_S
        while os.fstat(first.fileno()).st_ctime_ns == begun_ns:
            assert time.monotonic() < until_s
            os.fchmod(first.fileno(), 0o600)


class Worker:
    """A process of ``worker.py``: a new program if ``python`` or ``prefix`` is given, else a fork of ``parent``."""

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
        """Return the worker's next answer. Fail if the worker has ended or is silent for ``timeout_s``."""
        end = time.monotonic() + timeout_s
        while b"\n" not in self._pending:
            readable, _, _ = select.select([self.process.stdout], [], [], max(0.0, end - time.monotonic()))
            part = os.read(self.process.stdout.fileno(), 65536) if readable else None
            if not part:
                # Kill its children as well: a living child would keep stderr open, and the read below would not end.
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
        """Return the next answer that is not an event of waiting; drop the events before it."""
        end = time.monotonic() + timeout_s
        while True:
            told = self.hear(max(0.01, end - time.monotonic()))
            if "event" not in told:
                return told

    def wait_in_line(self, **command):
        """Let the worker wait for a GPU, and return its first event when its ticket is in the queue."""
        self.tell("wait", **command)
        told = self.hear()
        assert told["event"] == "waiting", told
        pass_a_tick()  # the next ticket gets a later timestamp
        return told

    def kill(self, number=signal.SIGKILL):
        os.kill(self.process.pid, number)
        if number == signal.SIGKILL:
            self.process.wait(TIMEOUT_S)

    def stop(self, folder):
        """Send SIGSTOP. Hold the mutex meanwhile: a process that is stopped with the mutex would block all others."""
        with folder.locked():
            os.kill(self.process.pid, signal.SIGSTOP)
            until(lambda: Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T")

    def end(self):
        # The worker leads a process group of its own: this kills its children as well.
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
    """Make a sticky folder that all users can write, like the host's. Other users can't enter pytest's ``tmp_path``."""
    made = Path(tempfile.mkdtemp(prefix="autogpu-test-"))
    leases = made / "leases"
    leases.mkdir()
    made.chmod(0o755)
    leases.chmod(0o1777)
    yield leases
    shutil.rmtree(str(made), ignore_errors=True)


@pytest.fixture(params=["0", "1", "2"])
def protected_regular(request):
    """Run a test with each value of ``fs.protected_regular``, which restricts O_CREAT in sticky folders."""
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
    with subprocess.Popen([sys.executable, PROGRAM, "--forks"], **PIPES) as parent:
        yield parent


@pytest.fixture
def start(path, parent):
    """Return a function that starts a worker. All workers are killed after the test."""
    workers = []

    def start(*arguments, **options):
        workers.append(Worker(parent, options.pop("path", path), *arguments, **options))
        return workers[-1]

    yield start
    for worker in workers:
        worker.end()


def until(predicate, timeout_s=10.0):
    end = time.monotonic() + timeout_s
    while not predicate():
        assert time.monotonic() < end, f"not within {timeout_s} s"
        time.sleep(0.002)


def lease_text(claims):
    return model.encode_lease({**model.identity("a.py"), "group": "j"}, model.Terms(claims))
