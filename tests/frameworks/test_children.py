"""A child of a process with a GPU uses that GPU, by whatever list its parent came to have."""

from __future__ import annotations

import pytest

from tests.gpusim import Gpu
from tests.support.framework_jobs import HOLD
from tests.support.framework_machines import GIB

IDLE = (Gpu(), Gpu(), Gpu(), Gpu())

pytestmark = [pytest.mark.framework, pytest.mark.timeout(600), pytest.mark.xdist_group("together")]

PARENT = """
import subprocess
import sys
import torch
print("imported", flush=True)
sys.stdin.readline()
x = torch.ones(3, device="cuda")
child = "import os, torch; torch.ones(3, device='cuda'); print(os.getpid(), flush=True); input()"
subprocess.run([sys.executable, "-c", child])
"""


@pytest.mark.parametrize("case", ["alone", "another-came-between", "visible-chosen"])
def test_a_child_is_on_its_parents_gpu(machine_of, case):
    machine = machine_of("torch", *IDLE)
    parent = machine.start(PARENT, **({"AUTOGPU_VISIBLE": "chosen"} if case == "visible-chosen" else {}))
    assert parent.line() == "imported"
    if case == "another-came-between":
        assert machine.start(HOLD["torch"]).line().startswith("ready")
    parent.go_on()
    child = int(parent.line())
    assert machine.server.contexts()[child] == parent.contexts == [2 if case == "another-came-between" else 3]
    parent.go_on()
    assert parent.end().exit_status == 0


LAUNCHER = """
import os
import subprocess
import sys
import torch
assert torch.cuda.is_available()
print("asked", flush=True)
sys.stdin.readline()
environ = {**os.environ, "CUDA_VISIBLE_DEVICES": sys.argv[1], "AUTOGPU_BUSY": sys.argv[3]}
sys.exit(subprocess.run([sys.argv[2], "-c", sys.argv[4]], env=environ).returncode)
"""


@pytest.mark.parametrize(("framework", "busy"), [("torch", "error"), ("torch", "share"), ("jax", "error")])
def test_a_launcher_that_has_only_asked_is_not_in_the_way_of_the_program_to_which_it_gives_a_gpu(
    framework, busy, newest, machine_of
):
    machine = machine_of("torch", *IDLE)
    arguments = ("3", str(newest[framework].python), busy, HOLD[framework])
    launcher = machine.start(LAUNCHER, arguments=arguments)
    assert launcher.line() == "asked"
    assert machine.claims() == {}
    launcher.go_on()
    assert launcher.line() == "ready cuda:0 1"
    (claim,) = machine.claimed_bytes().values()
    assert claim[3] > 20 * GIB
    launcher.go_on()
    ran = launcher.end()
    assert (ran.exit_status, "limited to what is free" in ran.stderr) == (0, False), ran.stderr
