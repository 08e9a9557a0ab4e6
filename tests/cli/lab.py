"""A server of three GPUs, of which one is a colleague's, and the commands of autogpu on it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from autogpu.lease import find_folder, snapshot
from tests.gpusim import Gpu, Server

# GPU 0 is a colleague's; of the idle ones the last wins.
LAB = (Gpu(processes={5004242: "20GiB"}, utilization=90), Gpu(), Gpu())
AUTOGPU = [sys.executable, "-m", "autogpu"]


@pytest.fixture
def server(tmp_path, lease_folder):
    (tmp_path / "server").mkdir()
    with Server(LAB, folder=tmp_path / "server") as running:
        yield running


def holders(lease_folder):
    return [holder.script for holder in snapshot(find_folder({"AUTOGPU_LEASE_DIR": str(lease_folder)})).holders]


def autogpu(server, *arguments, **environ):
    return server.run([*AUTOGPU, *arguments], environ=environ)


def running(server, *arguments, **options):
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    return server.popen([*AUTOGPU, "run", *arguments], **pipes, **options)
