"""Fixtures: a simulated server with three GPUs, one of them in use by a colleague, and autogpu commands on it."""

import os
import pty
import select
import subprocess
import sys
import termios
import time

import pytest

from autogpu.lease import find_folder, snapshot
from tests.gpusim import Gpu, Server

# A colleague uses GPU 0. Of the two idle GPUs, autogpu prefers the last.
LAB = (Gpu(processes={5004242: "20GiB"}, utilization=90), Gpu(), Gpu())
AUTOGPU = [sys.executable, "-m", "autogpu"]


@pytest.fixture
def server(request, tmp_path, lease_folder):
    """Start a server with the ``GPUS`` of the test module, or with ``LAB`` if the module has none."""
    (tmp_path / "server").mkdir()
    with Server(getattr(request.module, "GPUS", LAB), folder=tmp_path / "server") as running:
        yield running


@pytest.fixture
def environ(lease_folder):
    return {"AUTOGPU_LEASE_DIR": str(lease_folder)}


def holders(lease_folder):
    return [holder.script for holder in snapshot(find_folder({"AUTOGPU_LEASE_DIR": str(lease_folder)})).holders]


def autogpu(server, *arguments, **environ):
    return server.run([*AUTOGPU, *arguments], environ=environ)


def running(server, *arguments, **options):
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    return server.popen([*AUTOGPU, "run", *arguments], **pipes, **options)


class OnTerminal:
    """An autogpu command with a terminal as its stdin and stderr. With ``is_whole`` stdout is that terminal, too."""

    def __init__(self, popen, *arguments, is_whole=False, **options):
        self._controller, terminal = pty.openpty()
        streams = {"stdin": terminal, "stdout": terminal if is_whole else subprocess.PIPE, "stderr": terminal}
        self.process = popen([*AUTOGPU, *arguments], **streams, text=True, **options)
        os.close(terminal)
        self.shown = ""

    def until_shown(self, text, times=1):
        end_s = time.monotonic() + 60
        while self.shown.count(text) < times:
            assert select.select([self._controller], [], [], max(0.0, end_s - time.monotonic()))[0], self.shown
            self._read()

    def type(self, text):
        os.write(self._controller, text.encode())

    def echoes(self):
        return bool(termios.tcgetattr(self._controller)[3] & termios.ECHO)

    def end(self):
        """Wait for the command and return its stdout and exit status."""
        printed = self.process.communicate(timeout=60)[0]
        while select.select([self._controller], [], [], 0)[0] and self._read():
            pass
        os.close(self._controller)
        return printed, self.process.returncode

    def _read(self):
        try:
            part = os.read(self._controller, 65536)
        except OSError:  # Linux raises EIO once the other side is closed
            part = b""
        self.shown += part.decode("utf-8", "replace")
        return part
