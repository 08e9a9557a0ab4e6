"""Code that reads CUDA_VISIBLE_DEVICES: the same result as without autogpu until the claim, then the claimed GPU."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.frameworks import readers
from tests.gpusim import Gpu
from tests.support import framework_environments
from tests.support.framework_environments import TORCHES, each_other
from tests.support.framework_machines import FOUR, Installed

pytestmark = [pytest.mark.framework, pytest.mark.timeout(600)]

READERS = Path(readers.__file__).read_text()
TAKE = {
    "torch": "torch.ones(3, device='cuda')",
    "jax": "jax.numpy.ones(3).block_until_ready()",
    "tensorflow": "tensorflow.random.uniform((2, 2))",
}


def without_autogpu(**environ: str) -> dict[str, str]:
    """Return the results of the readers in a plain Python with this environment."""
    command = [sys.executable, "-S", "-c", f"{READERS}\nshow()"]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=True)
    found: dict[str, str] = json.loads(done.stdout)
    return found


def read(machine, framework: str, **environ: str) -> list[dict[str, str]]:
    """Return the results of the readers at the start of a script, after its import, and after its claim."""
    script = f"{READERS}\nshow()\nimport {framework}\nshow()\n{TAKE[framework]}\nshow()\n"
    ran = machine.run(script, **environ)
    assert (ran.exit_status, len(ran.said)) == (0, 1), ran.stderr
    return [json.loads(line) for line in ran.stdout.splitlines()]


# The results of the readers after the claim. An unmanaged process computes on GPU 0, and CUDA's order is 3, 2, 1, 0.
AFTER_THE_CLAIM = {
    # As with a list set in the shell, the length is not the number of GPUs that the process uses.
    "length, 1 by default": "4",
    "tensorpack": "4",
    "int of the first, 0 by default": "3",
    "returnn": "{0: 3, 1: 2, 2: 1, 3: 0}",
    "int of the whole text": "ValueError",
    "robosuite": "3",
    "robosuite with MUJOCO_EGL_DEVICE_ID=0": "ok",
    "only digits, else the CPU": "cuda:3",
    "is it set?": "True",
    "ordinal 0 in NVML": "3",
    "for a child, 0 by default": "3,2,1,0",
    "index of an engine's id": "0",
    "printed": "CUDA_VISIBLE_DEVICES=3,2,1,0",
    "port": "29503",
}


def test_readers_find_the_list_unset_until_the_claim_and_then_numbers(framework, on):
    start, imported, claimed = read(on(*FOUR), framework)
    assert start == imported == without_autogpu()
    assert claimed == AFTER_THE_CLAIM


def test_readers_find_the_list_of_the_shell_unchanged(framework, on):
    machine = on(*FOUR)
    assert read(machine, framework, CUDA_VISIBLE_DEVICES="0,1") == [without_autogpu(CUDA_VISIBLE_DEVICES="0,1")] * 3


def test_readers_find_the_list_unset_on_a_machine_with_one_gpu(framework, on):
    assert read(on(Gpu()), framework) == [without_autogpu()] * 3


def test_readers_find_a_list_without_the_excluded_gpu(framework, on):
    start, imported, claimed = read(on(*FOUR), framework, AUTOGPU_EXCLUDE="3")
    assert start == without_autogpu()
    assert claimed == without_autogpu(CUDA_VISIBLE_DEVICES="2,1,0")
    # JAX's import is too short for a query of the driver, so the list is written at the first use.
    assert imported == (start if framework == "jax" else claimed)


# The tests with this mark share fork servers that have imported PyTorch.
OF_MONITORS = pytest.mark.xdist_group("torch-monitors")

MONITORS = """
import json, os, torch
import joblib
import nvitop
from codecarbon import OfflineEmissionsTracker
from deepspeed.accelerator import get_accelerator
from zeus.device.gpu.nvidia import NVIDIAGPUs

def codecarbon():
    options = {"save_to_file": False, "measure_power_secs": 3600, "log_level": "critical", "allow_multiple_runs": True}
    return OfflineEmissionsTracker(country_iso_code="FRA", **options)._gpu_ids

def worker():
    return joblib.Parallel(n_jobs=2)(joblib.delayed(os.environ.get)("CUDA_VISIBLE_DEVICES") for _ in range(1))

def torch_reads():
    return [torch.cuda._get_nvml_device_index(ordinal) for ordinal in range(torch.cuda.device_count())]

def show(**more):
    found = {
        "torch": torch_reads(),
        "torch utilization": torch.cuda.utilization(0),
        "nvitop": [device.nvml_index for device in nvitop.Device.cuda.all()],
        "codecarbon": codecarbon(),
        "zeus": [gpu.gpu_index for gpu in NVIDIAGPUs().gpus],
        "DeepSpeed": round(get_accelerator().available_memory(0) / 2**30),
        "joblib": worker(),
    }
    print(json.dumps({**found, **more}), flush=True)

show()
torch.ones(3, device="cuda")
# Without an ordinal, PyTorch starts CUDA to find the current one.
show(**{
    "torch memory": torch.cuda.device_memory_used() >> 30,
    "torch temperature": torch.cuda.temperature(),
})
"""


def indices(*numbers):
    """Return the results of the readers that list NVML indices, for this order."""
    return {"nvitop": list(numbers), "zeus": list(numbers), "torch": list(numbers)}


# GPU 0 is busy, with 9 of its 24 GiB in use.
BUSY = {"torch utilization": 97, "DeepSpeed": 15}
IDLE = {"torch utilization": 0, "DeepSpeed": 24}
UNSET = {"codecarbon": None, "joblib": [None]}
IN_USE = {"torch memory": 9, "torch temperature": 83}
NOT_IN_USE = {"torch memory": 0, "torch temperature": 35}


@pytest.fixture
def monitored(machine_of, importers):
    """Return a function that runs the monitors before and after a claim; it returns both results and the contexts."""
    python = framework_environments.torch_monitors_with_autogpu()

    def monitored(**environ: str):
        ran = machine_of(Installed(python, importers["torch"]), *FOUR).run(MONITORS, **environ)
        assert ran.exit_status == 0, ran.stderr
        return [*map(json.loads, ran.stdout.splitlines()), ran.contexts]

    return monitored


@OF_MONITORS
def test_monitors_read_the_first_gpu_without_autogpu(monitored):
    before, after, contexts = monitored(AUTOGPU="0")
    assert before == {**indices(0, 1, 2, 3), **BUSY, **UNSET}
    assert (after, contexts) == ({**before, **IN_USE}, [0])


@OF_MONITORS
def test_monitors_read_the_claimed_gpu(monitored):
    before, after, contexts = monitored()
    # Zeus and DeepSpeed read the same as without autogpu. PyTorch and nvitop use CUDA's order. nvitop asks CUDA in a
    # child process.
    without = {"zeus": [0, 1, 2, 3], "DeepSpeed": 15}
    assert before == {**indices(3, 2, 1, 0), **IDLE, **UNSET, **without}
    shown = {"codecarbon": ["3", "2", "1", "0"], "joblib": ["3,2,1,0"]}
    assert after == {**indices(3, 2, 1, 0), **IDLE, **NOT_IN_USE, **shown}
    assert contexts == [3]


@OF_MONITORS
def test_monitors_use_the_shells_order_and_pytorch_the_order_of_cuda(monitored):
    before, after, contexts = monitored(CUDA_VISIBLE_DEVICES="0,1")
    shown = {"codecarbon": ["0", "1"], "joblib": ["0,1"], "DeepSpeed": 15}
    assert before == {**indices(0, 1), "torch": [1, 0], **IDLE, **shown}
    assert (after, contexts) == ({**before, **NOT_IN_USE}, [1])


ORDINALS = """
import os, torch

def show():
    print([torch.cuda._get_nvml_device_index(ordinal) for ordinal in range(torch.cuda.device_count())])

show()
found = os.environ.pop("CUDA_VISIBLE_DEVICES", None)
os.environ["CUDA_VISIBLE_DEVICES"] = "2"
show()
del os.environ["CUDA_VISIBLE_DEVICES"]
os.environ.update({} if found is None else {"CUDA_VISIBLE_DEVICES": found})
show()
torch.ones(3, device="cuda:1")
show()
"""


@OF_MONITORS
@pytest.mark.parametrize(
    ("environ", "lists"),
    [
        pytest.param({}, ([3, 2, 1, 0], [2], [3, 2, 1, 0], [2, 3, 1, 0]), id="list-unset"),
        pytest.param({"CUDA_VISIBLE_DEVICES": "0,1"}, ([1, 0], [2], [1, 0], [0, 1]), id="list-of-the-shell"),
        pytest.param({"AUTOGPU_EXCLUDE": "3"}, ([2, 1, 0], [2], [2, 1, 0], [1, 2, 0]), id="excluded-gpu"),
    ],
)
@pytest.mark.parametrize("release", [pytest.param(TORCHES[0], id=str(TORCHES[0])), *each_other(TORCHES)])
def test_pytorch_maps_cuda_ordinals_to_nvml_indices(release, environ, lists, machine_of, importers):
    python = framework_environments.with_autogpu(framework_environments.torch(release))
    ran = machine_of(Installed(python, importers["torch"]), *FOUR).run(ORDINALS, **environ)
    assert (ran.exit_status, ran.stdout.splitlines()) == (0, [*map(str, lists)]), ran.stderr
