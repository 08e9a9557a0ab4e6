"""What a script took, as its own framework counted it on the simulated server, and what its next start says of it."""

from __future__ import annotations

import pytest

from tests.gpusim import Gpu
from tests.support.framework_machines import BUSY

pytestmark = [pytest.mark.framework, pytest.mark.timeout(900)]

MIB, GIB = 1 << 20, 1 << 30

# Take some GiB, at one time.
TAKE = {
    "torch": """
import sys, torch
kept = [torch.empty(1 << 30, dtype=torch.uint8, device="cuda") for _ in range(GIB)]
del kept
""",
    "jax": """
import sys, jax
kept = [jax.numpy.zeros(1 << 30, dtype="uint8").block_until_ready() for _ in range(GIB)]
del kept
""",
    "tensorflow": """
import sys, tensorflow as tf
kept = [tf.random.uniform((256, 1024, 1024)) for _ in range(GIB)]
del kept
""",
}
KILLED = "import os, signal\nos.kill(os.getpid(), signal.SIGTERM)\n"
OTHER_ERROR = "1 / 0\n"
# A child that only ends as Python does: what it has of its parent's is its parent's.
FORKED = """
import os
if os.fork() == 0:
    import atexit
    atexit._run_exitfuncs()
    os._exit(0)
os.wait()
"""


@pytest.fixture(
    params=[
        pytest.param(name, marks=pytest.mark.xdist_group(f"{name}-runs")) for name in ("torch", "jax", "tensorflow")
    ]
)
def framework(request) -> str:
    return request.param


@pytest.fixture
def on(framework, machine_of, together):
    """Make a machine for scripts of the framework."""
    of = together["tensorflow"] if framework == "tensorflow" else framework
    return lambda *gpus: Machine(machine_of(of, *gpus), framework)


class Machine:
    """A machine whose scripts take some GiB of its GPU."""

    def __init__(self, machine, framework):
        self.machine = machine
        self._script = TAKE[framework]
        self._file = machine.project.parent / "home/.local/state/autogpu/runs"

    def take(self, gib, tail="", status=0, **environ):
        """The line of a run that ends in that way."""
        # The same file each time: what is taken is no argument.
        ran = self.machine.run(self._script.replace("GIB", str(gib)) + tail, fresh=True, **environ)
        assert ran.exit_status == status, ran.stderr
        (line, *_) = ran.said
        return line

    @property
    def peaks(self):
        """What is kept, in GiB."""
        lines = self._file.read_text().splitlines()[1:] if self._file.exists() else []
        return [int(line.split()[-1]) / GIB for line in lines]


def test_after_three_runs_the_next_start_says_what_they_took(framework, on):
    machine = on(Gpu())
    for gib in (2, 3, 2):
        assert "runs" not in machine.take(gib)
    assert [round(peak) for peak in machine.peaks] == [2, 3, 2]
    assert max(machine.peaks) < 3.3
    line = machine.take(2)
    assert line.endswith("; its last 3 runs took at most 3.5 GiB: AUTOGPU_NEED=4GiB lets others share this GPU")
    assert "last 3 runs" not in machine.take(1, AUTOGPU_NEED="5GiB")
    assert "claims 2.7 GiB, learned from 3 runs" in machine.take(1, AUTOGPU_NEED="learned")
    assert [round(peak) for peak in machine.peaks] == [2, 3, 2, 2, 1, 1]


def test_runs_that_teach_nothing(framework, on):
    machine = on(BUSY)
    assert "limited to what is free" in machine.take(1)  # capped beside another job
    machine.take(1, AUTOGPU_LIMIT="4GiB")
    machine.take(1, KILLED, status=-15)
    machine.take(1, OTHER_ERROR, status=1)
    machine.take(1, AUTOGPU_NEED="4GiB", AUTOGPU_HISTORY="false")
    assert machine.peaks == []
    machine.take(1, FORKED + "sys.exit(7)\n", status=7, AUTOGPU_NEED="4GiB")
    assert [round(peak) for peak in machine.peaks] == [1]


def test_a_run_that_ends_by_want_of_memory_begins_anew(framework, on):
    machine = on(Gpu(memory="6GiB"))
    for _ in range(3):
        machine.take(1)
    assert "learned from 3 runs" in machine.take(1, AUTOGPU_NEED="learned")
    machine.take(20, status=1)
    assert machine.peaks[-1] == 0
    line = machine.take(1, AUTOGPU_NEED="learned")
    assert line.endswith("select.need is learned from 3 runs, of which there are 0")
    assert "last 3 runs" not in machine.take(1)
