"""The recorded memory of a script's runs, counted by its framework, and the advice in the line of its next start."""

import re

import pytest

from tests.gpusim import Gpu
from tests.support.framework_machines import BUSY

pytestmark = [pytest.mark.framework, pytest.mark.timeout(900)]

MIB, GIB = 1 << 20, 1 << 30

# Each script allocates one tensor for each size in SIZES, in GiB, and holds all of them at the same time.
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
# A forked child that only runs its exit functions records no run.
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
    return lambda *gpus: Machine(on(*gpus), framework)


class Machine:
    """A machine for scripts that allocate some GiB of its GPU."""

    def __init__(self, machine, framework):
        self.machine = machine
        self._script = TAKE[framework]
        self._file = machine.project.parent / "home/.local/state/autogpu/runs"

    def script(self, *sizes, tail=""):
        """Return a script that holds tensors of these sizes in GiB, then runs ``tail``."""
        return self._script.replace("SIZES", repr(sizes)) + tail

    def take(self, *sizes, tail="", status=0, **environ):
        """Run a script to its end, check its exit status, and return autogpu's lines."""
        # The sizes are in the script's text, so that all runs have the same file and arguments.
        ran = self.machine.run(self.script(*sizes, tail=tail), fresh=True, **environ)
        assert ran.exit_status == status, ran.stderr
        return "\n".join(ran.said)

    def start(self, *sizes):
        return self.machine.start(self.script(*sizes), name="train.py", fresh=True)

    def neighbour(self, memory=""):
        """Set the memory of the only other process on the GPU; without ``memory``, end that process."""
        self.machine.server.change(0, processes={5004242: memory} if memory else {}, utilization=97 if memory else 0)

    @property
    def runs(self):
        """Return the recorded runs: how each ended, its used GiB and its needed GiB, both without the CUDA context."""
        lines = [line.split() for line in self._file.read_text().splitlines()[1:]] if self._file.exists() else []
        return [(ended, int(used) / GIB - 0.5, int(needed) / GIB) for _, _, ended, used, needed in lines]

    @property
    def needs(self):
        """Return the recorded need of each run in GiB; 0 if the need is unknown."""
        return [needed for _, _, needed in self.runs]


# Recorded needs in GiB for 2 and 3 tensors of 1 GiB. JAX counts reserved memory. For TensorFlow, autogpu
# adds half.
COUNTED = {"torch": (2, 3), "jax": (2, 4), "tensorflow": (3, 4.5)}


def test_line_suggests_a_need_after_three_runs(framework, takes):
    machine, (two, three) = takes(Gpu()), COUNTED[framework]
    for sizes in ((1, 1), (1, 1, 1), (1, 1)):
        assert "runs" not in machine.take(*sizes)
    assert machine.needs == [pytest.approx(gib, abs=0.1) for gib in (two, three, two)]
    assert [used for _, used, _ in machine.runs] == [pytest.approx(gib, abs=0.1) for gib in (2, 3, 2)]
    gib = int(1.1 * three + 1.5)
    assert f"AUTOGPU_NEED={gib}GiB (enough for the last 3 runs) would let other jobs share this GPU" in machine.take(1)
    assert "last 3 runs" not in machine.take(1, AUTOGPU_NEED="5GiB")
    assert len(machine.needs) == 5


def test_suggested_need_is_enough_beside_others(framework, takes):
    machine = takes(Gpu())
    for _ in range(3):
        machine.take(4, 4)
    (need,) = re.findall(r"AUTOGPU_NEED=(\d+)GiB", machine.take(4, 4))
    machine.machine.server.change(0, processes={5004242: f"{int(1024 * (23.9 - float(need)))}MiB"})
    assert "limited" not in machine.take(4, 4, AUTOGPU_NEED=f"{need}GiB")


@pytest.mark.xdist_group("tensorflow-memory")
def test_one_and_a_half_times_the_use_is_enough_for_tensorflow(machine_of, together):
    for sizes in ((5, 5), (3, 3, 3), (1, 2, 4, 5), (5, 1, 1, 1, 1, 1)):
        need = 1.1 * 1.5 * sum(sizes) + 0.5
        gpu = Gpu(processes={5004242: f"{int(1024 * (23.9 - need))}MiB"})
        machine = Machine(machine_of(together["tensorflow"], gpu), "tensorflow")
        ran = machine.machine.run(machine.script(*sizes), AUTOGPU_NEED=f"{need:.1f}GiB")
        assert ran.exit_status == 0, (sizes, ran.stderr)


def test_run_ended_by_a_signal_or_another_error_is_not_recorded(framework, takes):
    machine = takes(BUSY)
    machine.take(1, tail=KILLED, status=-15)
    machine.take(1, tail=OTHER_ERROR, status=1)
    machine.take(1, AUTOGPU_NEED="4GiB", AUTOGPU_HISTORY="false")
    assert machine.runs == []
    machine.take(1, tail=FORKED + "sys.exit(7)\n", status=7, AUTOGPU_NEED="4GiB")
    assert len(machine.runs) == 1
    if framework == "torch":  # the other frameworks do not count caught errors
        machine.take(1, tail=CAUGHT, status=1, AUTOGPU_NEED="4GiB")
        assert len(machine.runs) == 1


def test_capped_run_records_its_use_but_no_need(framework, takes):
    machine = takes(BUSY)
    assert "memory limited by other jobs" in machine.take(1)
    machine.take(1, AUTOGPU_LIMIT="4GiB")
    assert machine.runs == [("succeeded", pytest.approx(1, abs=0.1), 0)] * 2


def test_job_that_ran_out_of_memory_waits_until_its_neighbour_ends(framework, takes):
    machine = takes(Gpu())
    machine.neighbour("12GiB")
    assert "memory limited by other jobs" in machine.take(14, status=1)
    again = machine.start(14)
    assert re.search(r"the next 30 min only if 14\.[4-9] GiB is free", again.heard("shares a GPU whose jobs"))
    machine.neighbour()
    assert again.end().exit_status == 0
    machine.neighbour("12GiB")
    third = machine.start(14)
    assert re.search(r"only if 14\.\d GiB is free", third.heard("shares a GPU whose jobs"))
    third.kill()
    machine.neighbour("6GiB")
    assert "shared" in machine.take(14)


def test_failed_run_records_the_memory_that_it_held_and_requested(framework, takes):
    machine = takes(Gpu())
    machine.neighbour("14GiB")
    after = f"x = None\n{machine.script(10)}"
    machine.take(6, tail=after, status=1)
    assert machine.runs == [("failed", pytest.approx(10, abs=0.5), 0)]


def test_need_or_wait_0_lets_a_failed_job_share_at_once(framework, takes):
    machine = takes(Gpu())
    machine.neighbour("12GiB")
    machine.take(14, status=1)
    assert "shared" in machine.take(1, AUTOGPU_NEED="2GiB")
    machine.take(14, status=1)
    assert "shared" in machine.take(1, AUTOGPU_WAIT="0")


MPI_RANK = {"OMPI_COMM_WORLD_LOCAL_RANK": "0", "OMPI_COMM_WORLD_LOCAL_SIZE": "2", "OMPI_COMM_WORLD_RANK": "0"}
SLURM = {"SLURM_JOB_ID": "7", "SLURM_NODEID": "0", "SLURM_JOB_GPUS": "0", "CUDA_VISIBLE_DEVICES": "0"}
WITHOUT_THE_RULE = {
    "rank-of-mpi": MPI_RANK,
    "granted-by-slurm": SLURM,
    "no-history": {"AUTOGPU_HISTORY": "false"},
    "unwritable-state-folder": {"XDG_STATE_HOME": "/proc"},
}


# One framework is enough, because the rule does not depend on the framework.
@pytest.mark.xdist_group("torch-memory")
@pytest.mark.parametrize("environ", WITHOUT_THE_RULE.values(), ids=WITHOUT_THE_RULE)
def test_failed_job_of_mpi_or_slurm_or_without_history_does_not_wait(machine_of, environ):
    machine = Machine(machine_of("torch", Gpu()), "torch")
    machine.neighbour("12GiB")
    first, second = (machine.take(14, status=1, **environ) for _ in "12")
    assert first == second
    assert "waiting for a GPU" not in first


def test_out_of_memory_run_restarts_the_count_of_three(framework, takes):
    machine = takes(Gpu(memory="6GiB"))
    for _ in range(3):
        machine.take(1)
    assert "last 3 runs" in machine.take(1)
    machine.take(20, status=1)
    assert machine.runs[-1] == ("failed", pytest.approx(-0.5), 0)  # the GPU is smaller than the request
    assert "last 3 runs" not in machine.take(1)
