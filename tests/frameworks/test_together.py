"""Jobs of different frameworks on one machine, several frameworks in one process, and their claims."""

import pytest

from tests.support.framework_jobs import ALLOWED, AT_ONCE, FRAMEWORKS, READY
from tests.support.framework_machines import FOUR, GIB, IDLE, all_at_once

pytestmark = [pytest.mark.framework, pytest.mark.timeout(600), pytest.mark.xdist_group("together")]


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_four_jobs_started_at_once_get_four_gpus(framework, machine_of):
    machine = machine_of(framework, *IDLE)
    jobs = [machine.start(AT_ONCE[framework]) for _ in range(4)]
    # READY holds the device names. JAX's checkpoints store them, so each job must have the same names.
    assert all_at_once(*jobs) == [READY[framework]] * 4
    assert sorted(job.contexts for job in jobs) == [[0], [1], [2], [3]]
    assert machine.claims() == {job.pid: job.contexts for job in jobs}


def test_jobs_of_different_frameworks_get_different_gpus(together, machine_of):
    machine = machine_of("torch", *IDLE)
    names = ["torch", "jax", "tensorflow", "jax"]
    jobs = [machine.start(AT_ONCE[name], of=together[name], TF_CPP_MIN_LOG_LEVEL="3") for name in names]
    all_at_once(*jobs)
    assert sorted(job.contexts for job in jobs) == [[0], [1], [2], [3]]
    assert machine.claims() == {job.pid: job.contexts for job in jobs}


@pytest.mark.parametrize("name", ["tensorflow", "jax"])
def test_mere_contexts_of_an_unmanaged_process_do_not_block_a_gpu(name, together, machine_of):
    machine = machine_of(together[name], *IDLE, TF_CPP_MIN_LOG_LEVEL="3", TF_FORCE_GPU_ALLOW_GROWTH="true")
    plain = machine.start(AT_ONCE[name], AUTOGPU="0")
    all_at_once(plain)
    assert plain.contexts == [0, 1, 2, 3]
    job = machine.start(AT_ONCE[name], AUTOGPU_BUSY="error")
    all_at_once(job)
    assert machine.claimed_bytes() == {job.pid: {3: 24 * GIB}}


FOLLOWED = """
import sys
import torch
for ordinal in map(int, sys.stdin):
    torch.ones(3, device=f"cuda:{ordinal}")
    print("took", ordinal, flush=True)
"""


def test_status_follows_new_contexts_while_the_lease_stays_the_same(machine_of):
    machine = machine_of("torch", *FOUR)
    job = machine.start(FOLLOWED)
    for ordinal, contexts in ((2, [1]), (0, [1, 3]), (1, [1, 2, 3])):
        job.go_on(str(ordinal))
        assert job.line() == f"took {ordinal}"
        assert (job.contexts, machine.claims()) == (contexts, {job.pid: contexts})
        assert machine.claimed_bytes() == {job.pid: {3: 24 * GIB}}


TORCH = "import torch\nx = torch.ones(3, device='cuda')\n"
JAX = "import jax\ny = jax.numpy.ones(3)\n"
BOTH = {
    "torch-then-jax": TORCH + JAX,
    "jax-then-torch": JAX + TORCH,
    "both-imported-first-torch-takes": "import jax, torch\n" + TORCH + JAX,
    "both-imported-first-jax-takes": "import jax, torch\n" + JAX + TORCH,
    "torch-asks-jax-takes": "import torch\nassert torch.cuda.is_available()\n" + JAX + TORCH,
    "jax-in-a-thread": "import threading\nimport torch, jax\n"
    "job = threading.Thread(target=lambda: jax.numpy.ones(3))\njob.start()\njob.join()\n" + TORCH + JAX,
}
WAITS = "import sys\nprint('ready', x.device, *y.devices(), flush=True)\nsys.stdin.readline()\n"
IN_TURN = ("torch-then-jax", "jax-then-torch")


@pytest.mark.parametrize("order", BOTH)
def test_two_frameworks_in_one_process_have_one_claim(order, together, machine_of):
    machine = machine_of(together["torch"], *FOUR)
    job = machine.start(BOTH[order] + WAITS)
    assert job.line() == "ready cuda:0 cuda:0"
    assert (job.contexts, machine.claims()) == ([3], {job.pid: [3]})
    ran = job.end()
    assert (ran.exit_status, len(ran.said)) == (0, 1), ran.stderr
    assert "the idlest of 4" in ran.said[0]


@pytest.mark.parametrize("order", IN_TURN)
def test_two_frameworks_in_one_process_share_two_requested_gpus(order, together, machine_of):
    machine = machine_of(together["torch"], *FOUR)
    job = machine.start(BOTH[order] + "z = torch.ones(3, device='cuda:1')\n" + WAITS, AUTOGPU_COUNT="2")
    assert job.line().startswith("ready")
    assert (job.contexts, machine.claims()) == ([2, 3], {job.pid: [2, 3]})


@pytest.mark.parametrize("order", IN_TURN)
def test_two_frameworks_in_one_process_with_count_0_use_no_gpu(order, together, machine_of):
    machine = machine_of(together["torch"], *FOUR)
    script = BOTH[order].replace("'cuda'", "'cuda' if torch.cuda.is_available() else 'cpu'")
    job = machine.start(script + WAITS, AUTOGPU_COUNT="0")
    assert job.line() == "ready cpu cpu:0"
    assert machine.claims() == {}
    ran = job.end()
    assert (ran.exit_status, ran.contexts, len(ran.said)) == (0, [], 1), ran.stderr


LISTED = """
import sys
import tensorflow as tf
import torch
gpus = tf.config.list_physical_devices("GPU")
print("imported", flush=True)
sys.stdin.readline()
"""
FIRST_OF_EACH = {
    "torch": "x = torch.ones(3, device='cuda:0')\n",
    "tensorflow": "tf.config.set_visible_devices(gpus[0], 'GPU')\ny = tf.random.uniform((4, 4))\n",
}


@pytest.mark.parametrize("order", [("torch", "tensorflow"), ("tensorflow", "torch")], ids="-then-".join)
def test_processes_that_use_cuda_0_in_two_frameworks_share_no_gpu(order, together, machine_of):
    machine = machine_of(together["tensorflow"], *IDLE)
    script = LISTED + "".join(FIRST_OF_EACH[name] for name in order)
    waits = "print('ready', flush=True)\nsys.stdin.readline()\n"
    jobs = [machine.start(script + waits, TF_CPP_MIN_LOG_LEVEL="3") for _ in range(2)]
    assert all_at_once(*jobs) == ["ready"] * 2
    assert sorted(job.contexts for job in jobs) == [[2], [3]]
    assert machine.claims() == {job.pid: job.contexts for job in jobs}


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_limit_holds_for_each_framework_in_one_process(framework, together, machine_of):
    other = {"torch": JAX, "jax": TORCH}[framework]
    ran = machine_of(together["torch"], *FOUR).run(other + ALLOWED[framework].format(count=1), AUTOGPU_LIMIT="2GiB")
    assert (ran.exit_status, ran.contexts) == (0, [3]), ran.stderr
    found = ran.peak_bytes(3) if framework == "torch" else int(ran.stdout)
    assert 1.5 * GIB <= found <= 2 * GIB + GIB // 4
