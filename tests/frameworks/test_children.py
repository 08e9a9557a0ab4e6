"""A child of a process with a GPU uses that GPU, by whatever list its parent came to have."""

from __future__ import annotations

import pytest

from tests.gpusim import Gpu
from tests.support.framework_jobs import HOLD

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
def test_a_child_is_on_its_parents_gpu(framework_pythons, machine_of, case):
    machine = machine_of(framework_pythons["torch"], *IDLE)
    parent = machine.start(PARENT, **({"AUTOGPU_VISIBLE": "chosen"} if case == "visible-chosen" else {}))
    assert parent.line() == "imported"
    if case == "another-came-between":
        assert machine.start(HOLD["torch"]).line().startswith("ready")
    parent.go_on()
    child = int(parent.line())
    assert machine.server.contexts()[child] == parent.contexts == [2 if case == "another-came-between" else 3]
    parent.go_on()
    assert parent.end().exit_status == 0
