"""What a script took, as its own framework counted it on the simulated server, and what its next start says of it."""

import re

import pytest

from tests.gpusim import Gpu
from tests.support.framework_machines import BUSY

pytestmark = [pytest.mark.framework, pytest.mark.timeout(900)]

MIB, GIB = 1 << 20, 1 << 30

# Take so many GiB each, at one time.
TAKE = {
    "torch": "import sys, torch\nx = [torch.empty(n << 30, dtype=torch.uint8, device='cuda') for n in SIZES]\ndel x\n",
    "jax": "import sys, jax\nx = [jax.numpy.zeros(n << 30, 'uint8').block_until_ready() for n in SIZES]\ndel x\n",
    "tensorflow": "import sys, tensorflow\nx = [tensorflow.random.uniform((256 * n, 1024, 1024)) for n in SIZES]\n",
}
KILLED = "import os, signal\nos.kill(os.getpid(), signal.SIGTERM)\n"
OTHER_ERROR = "1 / 0\n"
CAUGHT = """
try:
    torch.empty(30 << 30, dtype=torch.uint8, device="cuda")
except RuntimeError:
    sys.exit(1)
"""
# A child that only ends as Python does: what it has of its parent's is its parent's.
FORKED = """
import os
if os.fork() == 0:
    import atexit
    atexit._run_exitfuncs()
    os._exit(0)
os.wait()
"""


@pytest.fixture
def takes(framework, on):
    """Make a machine for scripts that take some GiB."""
    return lambda *gpus: Machine(on(*gpus), framework)


class Machine:
    """A machine whose scripts take some GiB of its GPU."""

    def __init__(self, machine, framework):
        self.machine = machine
        self._script = TAKE[framework]
        self._file = machine.project.parent / "home/.local/state/autogpu/runs"

    def script(self, *sizes, tail=""):
        """That takes so many GiB each, and ends in that way."""
        return self._script.replace("SIZES", repr(sizes)) + tail

    def take(self, *sizes, tail="", status=0, **environ):
        """The line of a run."""
        # The same file each time: what is taken is no argument.
        ran = self.machine.run(self.script(*sizes, tail=tail), fresh=True, **environ)
        assert ran.exit_status == status, ran.stderr
        (line, *_) = ran.said
        return line

    @property
    def peaks(self):
        """What is kept, in GiB."""
        lines = self._file.read_text().splitlines()[1:] if self._file.exists() else []
        return [int(line.split()[-1]) / GIB for line in lines]


# What is counted for 2 and 3 tensors of 1 GiB: JAX counts what it has reserved, and TensorFlow half as much again.
COUNTED = {"torch": (2, 3), "jax": (2, 4), "tensorflow": (3, 4.5)}


def test_after_three_runs_the_next_start_says_which_need_is_enough(framework, takes):
    machine, (two, three) = takes(Gpu()), COUNTED[framework]
    for sizes in ((1, 1), (1, 1, 1), (1, 1)):
        assert "runs" not in machine.take(*sizes)
    assert machine.peaks == [pytest.approx(gib, abs=0.1) for gib in (two, three, two)]
    gib = int(1.1 * three + 1.5)
    line = machine.take(1)
    assert f"; by its last 3 runs, AUTOGPU_NEED={gib}GiB should be enough and lets others share this GPU" in line
    assert "last 3 runs" not in machine.take(1, AUTOGPU_NEED="5GiB")
    assert len(machine.peaks) == 5


def test_need_that_the_line_names_is_enough_beside_others(framework, takes):
    machine = takes(Gpu())
    for _ in range(3):
        machine.take(4, 4)
    (need,) = re.findall(r"AUTOGPU_NEED=(\d+)GiB", machine.take(4, 4))
    machine.machine.server.change(0, processes={5004242: f"{int(1024 * (23.9 - float(need)))}MiB"})
    assert "limited" not in machine.take(4, 4, AUTOGPU_NEED=f"{need}GiB")


@pytest.mark.xdist_group("tensorflow-memory")
def test_half_as_much_again_is_enough_for_growing_memory(machine_of, together):
    for sizes in ((5, 5), (3, 3, 3), (1, 2, 4, 5), (5, 1, 1, 1, 1, 1)):
        need = 1.1 * 1.5 * sum(sizes) + 0.5
        gpu = Gpu(processes={5004242: f"{int(1024 * (23.9 - need))}MiB"})
        machine = Machine(machine_of(together["tensorflow"], gpu), "tensorflow")
        ran = machine.machine.run(machine.script(*sizes), AUTOGPU_NEED=f"{need:.1f}GiB")
        assert ran.exit_status == 0, (sizes, ran.stderr)


def test_runs_that_teach_nothing(framework, takes):
    machine = takes(BUSY)
    assert "limited to what is free" in machine.take(1)  # capped beside another job
    machine.take(1, AUTOGPU_LIMIT="4GiB")
    machine.take(1, tail=KILLED, status=-15)
    machine.take(1, tail=OTHER_ERROR, status=1)
    machine.take(1, AUTOGPU_NEED="4GiB", AUTOGPU_HISTORY="false")
    assert machine.peaks == []
    machine.take(1, tail=FORKED + "sys.exit(7)\n", status=7, AUTOGPU_NEED="4GiB")
    assert len(machine.peaks) == 1
    if framework == "torch":  # the others do not count it
        machine.take(1, tail=CAUGHT, status=1, AUTOGPU_NEED="4GiB")
        assert len(machine.peaks) == 1


def test_a_run_that_ends_by_want_of_memory_begins_anew(framework, takes):
    machine = takes(Gpu(memory="6GiB"))
    for _ in range(3):
        machine.take(1)
    assert "last 3 runs" in machine.take(1)
    machine.take(20, status=1)
    assert machine.peaks[-1] == 0
    assert "last 3 runs" not in machine.take(1)
