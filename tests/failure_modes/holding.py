"""The commands of autogpu on a simulated server, and programs of any kind that hold GPUs by them."""

import json
import os
import shutil
import subprocess
import sys

import pytest

from tests.lease.conftest import ALICE, BOB, TIMEOUT_S

__all__ = ["ALICE", "BOB"]

# A program that is no Python: it says which GPUs it has, and keeps them until its input ends.
HOLD = ("sh", "-c", 'echo "$CUDA_VISIBLE_DEVICES"; exec cat >/dev/null')

# The same for one that computes.
COMPUTE = (
    sys.executable,
    "-c",
    "import ctypes, os, sys; cuda, context = ctypes.CDLL('libcuda.so.1'), ctypes.c_void_p(); cuda.cuInit(0); "
    "cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0); print(os.environ['CUDA_VISIBLE_DEVICES'], flush=True); "
    "sys.stdin.read()",
)

# Python itself may be in a folder that is closed to others, so they are allowed to read everything.
READS_ALL = "dac_read_search"


def as_user(uid):
    """What a command begins with that another user starts."""
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
        process: It has become the program, or the parent of the program.
    """

    def __init__(self, process, server):
        self.process, self._server = process, server

    def line(self, stream="stdout"):
        """What it says next; empty where it has ended."""
        return getattr(self.process, stream).readline().rstrip("\n")

    def gpus(self):
        """The GPUs that it has got, best first; waits until it has some."""
        # By number, or by UUID beside a card whose numbers CUDA may count otherwise.
        names = [str(number) for number in range(len(self._server.gpus))]
        uuids = [gpu.uuid for gpu in self._server.gpus]
        line = self.line()
        # pytest explains bare assertions in files of tests only.
        assert line, f"it has no GPU: {self.end()}"
        return [(names if name.isdigit() else uuids).index(name) for name in line.split(",")]

    def end(self):
        """Let it end; its exit status and what else it said on stderr."""
        self.process.stdin.close()
        return self.process.wait(TIMEOUT_S), self.process.stderr.read()


class AutoGpu:
    """autogpu, as a user of the environment of that Python has it on one server."""

    def __init__(self, server, python):
        self.server, self.python = server, python

    def __call__(self, *arguments, **environ):
        """Run a command of autogpu to its end."""
        return self.server.run([str(self.python), "-m", "autogpu", *arguments], environ=environ)

    def pick(self, *options, **environ):
        """The GPUs that ``autogpu pick`` names; empty where it picks none."""
        printed = self("pick", "--format", "index", *options, **environ).stdout.strip()
        return [int(index) for index in printed.split(",") if index]

    def status(self, **environ):
        """What ``autogpu status`` says; fails where it says anything else."""
        done = self("status", "--json", **environ)
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        return json.loads(done.stdout)

    def jobs(self):
        """By GPU, the pids of the jobs that hold it."""
        return {gpu["index"]: [job["pid"] for job in gpu["jobs"]] for gpu in self.status()["gpus"] if gpu["jobs"]}

    def hold(self, *options, prefix=(), program=HOLD, environ=None):
        """Start a program that holds GPUs; it is killed at the end of the test."""
        command = [*prefix, str(self.python), "-m", "autogpu", "run", "--hold", *options, "--", *program]
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        return Holder(self.server.popen(command, environ=environ, **pipes), self.server)
