"""autogpu's commands on a simulated server, and programs that hold GPUs under ``autogpu run --hold``."""

import json
import os
import shutil
import subprocess
import sys

import pytest

from tests.lease.conftest import ALICE, BOB, TIMEOUT_S

__all__ = ["ALICE", "BOB"]

# A shell program: it prints its CUDA_VISIBLE_DEVICES, and runs until its input ends.
HOLD = ("sh", "-c", 'echo "$CUDA_VISIBLE_DEVICES"; exec cat >/dev/null')

# A program that does the same, but with a CUDA context on its first GPU.
COMPUTE = (
    sys.executable,
    "-c",
    "import ctypes, os, sys; cuda, context = ctypes.CDLL('libcuda.so.1'), ctypes.c_void_p(); cuda.cuInit(0); "
    "cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0); print(os.environ['CUDA_VISIBLE_DEVICES'], flush=True); "
    "sys.stdin.read()",
)

# Python may be in a folder that other users can't read, so they get the capability to read everything.
READS_ALL = "dac_read_search"


def as_user(uid):
    """Return the words in front of a command that make it run as another user, who may read every file."""
    allowed = [f"--inh-caps=+{READS_ALL}", f"--ambient-caps=+{READS_ALL}", f"--bounding-set=-all,+{READS_ALL}"]
    return ("setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", *allowed)


def _why_no_users():
    if os.geteuid() or shutil.which("setpriv") is None:
        return "only root, with setpriv, can start programs of two other users"
    done = subprocess.run([*as_user(ALICE), "true"], capture_output=True, text=True, timeout=60, check=False)
    return f"this machine starts no programs of other users: {done.stderr.strip()}" if done.returncode else ""


NO_USERS = _why_no_users()
needs_other_users = pytest.mark.skipif(bool(NO_USERS), reason=NO_USERS)


class Holder:
    """A program under ``autogpu run --hold``.

    Attributes:
        process: The process of ``autogpu run``, which has become the program or is its parent.
    """

    def __init__(self, process, server):
        self.process, self._server = process, server

    def line(self, stream="stdout"):
        """Return the next line of a stream without its newline; an empty text if the program has ended."""
        return getattr(self.process, stream).readline().rstrip("\n")

    def gpus(self):
        """Wait until the program has GPUs, and return their numbers, best first."""
        # autogpu lists GPUs by number, or by UUID if CUDA may number them differently.
        names = [str(number) for number in range(len(self._server.gpus))]
        uuids = [gpu.uuid for gpu in self._server.gpus]
        line = self.line()
        # The message is needed: pytest explains bare assertions only in test files.
        assert line, f"it has no GPU: {self.end()}"
        return [(names if name.isdigit() else uuids).index(name) for name in line.split(",")]

    def end(self):
        """End the program, and return its exit status and the rest of its stderr."""
        self.process.stdin.close()
        return self.process.wait(TIMEOUT_S), self.process.stderr.read()


class AutoGpu:
    """autogpu's commands, run by the Python of one environment on one server."""

    def __init__(self, server, python):
        self.server, self.python = server, python

    def __call__(self, *arguments, **environ):
        return self.server.run([str(self.python), "-m", "autogpu", *arguments], environ=environ)

    def pick(self, *options, **environ):
        """Return the GPU numbers that ``autogpu pick`` prints; an empty list if it picks none."""
        printed = self("pick", "--format", "index", *options, **environ).stdout.strip()
        return [int(index) for index in printed.split(",") if index]

    def status(self, **environ):
        """Return the output of ``autogpu status --json``. Fail if it writes to stderr or exits with an error."""
        done = self("status", "--json", **environ)
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        return json.loads(done.stdout)

    def jobs(self):
        """Return the pids of the jobs on each claimed GPU, keyed by GPU number."""
        return {gpu["index"]: [job["pid"] for job in gpu["jobs"]] for gpu in self.status()["gpus"] if gpu["jobs"]}

    def hold(self, *options, prefix=(), program=HOLD, environ=None):
        """Start a program that holds GPUs. It is killed at the end of the test."""
        command = [*prefix, str(self.python), "-m", "autogpu", "run", "--hold", *options, "--", *program]
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        return Holder(self.server.popen(command, environ=environ, **pipes), self.server)
