"""The order in which CUDA counts the GPUs: whose words it is written in, and what others see of it.

Among equally idle GPUs what connects them decides.
"""

from __future__ import annotations

import pytest

from tests.frameworks.test_together import all_at_once
from tests.gpusim import Gpu
from tests.support.framework_jobs import AT_ONCE, HOLD, USE_SEVERAL
from tests.support.framework_machines import BUSY

IDLE = (Gpu(), Gpu(), Gpu(), Gpu())

pytestmark = [pytest.mark.framework, pytest.mark.timeout(600), pytest.mark.xdist_group("gpu-order")]


def at_imported(script):
    """The script, which waits for a line of input before it goes on."""
    return f"import sys, torch\nprint('imported', flush=True)\nsys.stdin.readline()\n{script}"


def test_a_script_that_reads_its_own_list_finds_its_own_words(machine_of):
    script = (
        "import os\nimport torch\nos.environ['CUDA_VISIBLE_DEVICES'] = '0,1'\nassert torch.cuda.is_available()\n"
        "print([int(number) for number in os.environ['CUDA_VISIBLE_DEVICES'].split(',')])\n"
    )
    ran = machine_of("torch", Gpu()).run(script)
    assert (ran.exit_status, ran.stdout) == (0, "[0, 1]\n"), ran.stderr


def test_ranks_whose_script_lists_gpus_have_one_order_and_a_gpu_each(machine_of):
    # NCCL refuses two ranks on one card.
    script = (
        "import os\nos.environ['CUDA_VISIBLE_DEVICES'] = '1,2'\nimport torch\n"
        "torch.cuda.set_device(int(os.environ['LOCAL_RANK']))\ntorch.ones(3, device='cuda')\n"
    )
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2")
    machine = machine_of("torch", *IDLE)
    ran = machine.run(script, launcher=launcher)
    assert (ran.exit_status, ran.contexts) == (0, [1, 2]), ran.said


def test_jobs_that_name_the_second_gpu_in_one_instant_claim_what_they_use(machine_of):
    # Each has claimed the other's card at first.
    script = at_imported("x = torch.ones(3, device='cuda:1')\nprint('ready', flush=True)\nsys.stdin.readline()\n")
    machine = machine_of("torch", *IDLE)
    jobs = [machine.start(script) for _ in range(2)]
    all_at_once(*jobs)
    assert machine.claims() == {job.pid: job.contexts for job in jobs}


def test_a_device_of_jax_has_the_same_name_as_without(machine_of):
    # JAX names its devices by their ordinals, and checkpoints hold such names.
    machine = machine_of("jax", *IDLE)
    jobs = [machine.start(AT_ONCE["jax"]) for _ in range(4)]
    assert all_at_once(*jobs) == ["ready cuda:0 1"] * 4


@pytest.mark.parametrize("busy", ["share", "wait"])
def test_where_another_library_has_started_cuda_others_on_the_gpu_are_named_and_protected(busy, machine_of):
    script = """
import ctypes
assert ctypes.CDLL("libcuda.so.1").cuInit(0) == 0
import sys, torch
x = torch.ones(3, device="cuda")
sys.stdin.readline()
try:
    torch.empty(15 << 30, dtype=torch.uint8, device=x.device)
except torch.cuda.OutOfMemoryError:
    print("refused")
"""
    job = machine_of("torch", BUSY, Gpu(), Gpu(), Gpu()).start(script, AUTOGPU_BUSY=busy)
    line = job.heard("CUDA had counted the GPUs before autogpu could choose")
    assert ('busy = "wait" has no effect' in line) == (busy == "wait")
    assert "choose (shared: pid 5004242 on it without a claim" in line.replace(
        ', so that busy = "wait" has no effect', ""
    )
    assert "limited to what is free there" in line
    job.go_on()
    ran = job.end()
    assert (ran.exit_status, ran.stdout) == (0, "refused\n"), ran.stderr


AT = [f"0000:0{bus}:00.0" for bus in range(1, 5)]
# GPU 0 belongs to GPU 2, and GPU 1 to GPU 3: without them two jobs would be given GPU 3 and GPU 2.
TWO_PAIRS = tuple(Gpu(pci=AT[place], nvlinks=[AT[place ^ 2]] * 4, path=f"0/{place}") for place in range(4))


def test_a_job_of_two_gets_a_pair_and_the_next_one_the_other(machine_of):
    machine = machine_of("torch", *TWO_PAIRS, AUTOGPU_COUNT="2")
    jobs = []
    for pair in ([1, 3], [0, 2]):
        jobs.append(machine.start(USE_SEVERAL["torch"].format(count=2)))
        assert jobs[-1].line() == "ready 2"
        assert sorted(jobs[-1].contexts) == pair
    assert [job.end().exit_status for job in jobs] == [0, 0]


def test_jobs_of_one_leave_a_pair_whole(machine_of):
    machine = machine_of("torch", *TWO_PAIRS)
    for gpu in (3, 1):
        job = machine.start(HOLD["torch"])
        assert job.line() == "ready cuda:0 4"
        assert job.contexts == [gpu]
