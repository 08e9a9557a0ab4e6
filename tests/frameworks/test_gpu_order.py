"""The order in which CUDA counts the GPUs.

The tests cover a script that sets CUDA_VISIBLE_DEVICES, a library that starts CUDA before autogpu can choose a GPU, and
the choice between equally idle GPUs by their NVLinks.
"""

import pytest

from tests.gpusim import Gpu
from tests.support.framework_jobs import HOLD, READY, USE_SEVERAL
from tests.support.framework_machines import FOUR, IDLE

pytestmark = [pytest.mark.framework, pytest.mark.timeout(600), pytest.mark.xdist_group("gpu-order")]


def test_ranks_of_a_script_that_sets_visible_devices_share_no_gpu(machine_of):
    # NCCL refuses two ranks on one card.
    script = (
        "import os\nos.environ['CUDA_VISIBLE_DEVICES'] = '1,2'\nimport torch\n"
        "torch.cuda.set_device(int(os.environ['LOCAL_RANK']))\ntorch.ones(3, device='cuda')\n"
    )
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2")
    ran = machine_of("torch", *IDLE).run(script, launcher=launcher)
    assert (ran.exit_status, ran.contexts) == (0, [1, 2]), ran.said


@pytest.mark.parametrize("busy", ["share", "wait"])
def test_job_that_starts_cuda_early_is_capped_and_its_line_names_others(busy, machine_of):
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
    job = machine_of("torch", *FOUR).start(script, AUTOGPU_BUSY=busy)
    job.heard("CUDA was initialised before autogpu could choose")
    notes = job.heard("GPU 1, GPU 2 and GPU 3 are free")
    assert "; to use the idlest GPU: start the program as `autogpu run --hold COMMAND`" in notes
    ran = job.end()
    assert (ran.exit_status, ran.stdout) == (0, "refused\n"), ran.stderr


AT = [f"0000:0{bus}:00.0" for bus in range(1, 5)]
# NVLink connects GPU 0 with GPU 2, and GPU 1 with GPU 3. Without NVLinks, two jobs of one GPU each would
# get GPU 3 and GPU 2.
TWO_PAIRS = tuple(Gpu(pci=AT[place], nvlinks=[AT[place ^ 2]] * 4, path=f"0/{place}") for place in range(4))


@pytest.mark.parametrize(
    ("script", "says", "gpus"),
    [
        pytest.param(
            USE_SEVERAL["torch"].format(count=2), "ready 2", [[1, 3], [0, 2]], id="two-gpu-jobs-get-a-pair-each"
        ),
        pytest.param(HOLD["torch"], READY["torch"], [[3], [1]], id="one-gpu-jobs-leave-a-pair-free"),
    ],
)
def test_jobs_get_gpus_by_nvlink_pairs(machine_of, script, says, gpus):
    machine = machine_of("torch", *TWO_PAIRS, AUTOGPU_COUNT=str(len(gpus[0])))
    for expected in gpus:
        job = machine.start(script)
        assert job.line() == says
        assert job.contexts == expected
