"""``visible = "chosen"``: the first query for GPUs makes the claim, and the process sees only claimed GPUs."""

from __future__ import annotations

import pytest

from tests.support.framework_machines import FOUR, IDLE

pytestmark = [pytest.mark.framework, pytest.mark.timeout(600)]

CHOSEN = {"AUTOGPU_VISIBLE": "chosen"}

QUESTIONS = {
    "torch": ("import torch", "torch.cuda.device_count()"),
    "jax": ("import jax", "jax.device_count()"),
    "tensorflow": ("import tensorflow as tf", "len(tf.config.list_physical_devices('GPU'))"),
}
ASKS = """
import sys
{imports}
print("imported", flush=True)
sys.stdin.readline()
print({question}, flush=True)
sys.stdin.readline()
"""


def test_device_query_claims_one_gpu_and_an_import_claims_none(framework, on):
    imports, question = QUESTIONS[framework]
    machine = on(*FOUR)
    jobs = [machine.start(ASKS.format(imports=imports, question=question), **CHOSEN) for _ in range(2)]
    assert [job.line() for job in jobs] == ["imported", "imported"]
    assert machine.leased() == []
    for job in jobs:
        job.go_on()
    assert [job.line() for job in jobs] == ["1", "1"]
    assert sorted(machine.claims().values()) == [[2], [3]]


@pytest.mark.parametrize("question", ["torch.cuda.is_available()", "torch.cuda.get_device_name(0) != ''"])
def test_other_device_queries_of_pytorch_claim_a_gpu(machine_of, question):
    machine = machine_of("torch", *FOUR)
    job = machine.start(ASKS.format(imports="import torch", question=question), **CHOSEN)
    job.line()
    job.go_on()
    assert (job.line(), list(machine.claims().values())) == ("True", [[3]])


def test_gpu_number_of_the_command_line_is_below_the_device_count(machine_of):
    script = """
import sys, torch
number = int(sys.argv[2])
assert number < torch.cuda.device_count()
print(torch.ones(3, device=torch.device("cuda", number)).device, flush=True)
sys.stdin.readline()
"""
    machine = machine_of("torch", *IDLE)
    jobs = [machine.start(script, arguments=("--gpu", str(number)), **CHOSEN) for number in range(3)]
    assert [job.line() for job in jobs] == ["cuda:0", "cuda:1", "cuda:2"]
    assert sorted(machine.claims().values()) == [[1], [2], [3]]


# PyTorch's tutorial without its rendezvous, because NCCL is not available.
TUTORIAL = """
import torch
import torch.multiprocessing as mp

def train(rank, world_size):
    torch.cuda.set_device(rank)
    print(world_size, torch.ones(3).cuda().device, flush=True)

if __name__ == "__main__":
    world_size = torch.cuda.device_count()
    mp.spawn(train, args=(world_size,), nprocs=world_size)
"""


@pytest.mark.parametrize(
    ("script", "environ", "lines", "contexts"),
    [
        pytest.param(TUTORIAL, {}, ["1 cuda:0"], [3], id="as-many-workers-as-gpus"),
        pytest.param(TUTORIAL, {"AUTOGPU_COUNT": "2"}, ["2 cuda:0", "2 cuda:1"], [2, 3], id="two-gpus"),
        pytest.param(
            TUTORIAL.replace("torch.cuda.device_count()", "2"), {}, ["2 cuda:0", "2 cuda:1"], [2, 3], id="two-workers"
        ),
    ],
)
def test_spawned_workers_get_a_gpu_each(machine_of, script, environ, lines, contexts):
    ran = machine_of("torch", *FOUR).run(script, fresh=True, **CHOSEN, **environ)
    assert (sorted(ran.stdout.splitlines()), ran.contexts) == (lines, contexts), ran.stderr


def test_device_count_in_an_imported_module_claims_nothing(machine_of, tmp_path):
    package = tmp_path / "site-packages"
    package.mkdir()
    (package / "asks.py").write_text("import torch\nCOUNT = torch.cuda.device_count()\n")
    machine = machine_of("torch", *FOUR)
    script = f"import sys\nsys.path.append({str(package)!r})\nimport asks\nprint(asks.COUNT, flush=True)\ninput()\n"
    job = machine.start(script, **CHOSEN)
    assert (job.line(), machine.leased()) == ("4", [])
