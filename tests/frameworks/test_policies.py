"""Policies for unmodified scripts of PyTorch and JAX, checked by the driver's log and the leases."""

from __future__ import annotations

import pytest

from autogpu.caps import CONTEXT_BYTES
from tests.gpusim import Gpu
from tests.support.framework_jobs import (
    ALLOWED,
    FILL,
    FRAMEWORKS,
    HOLD,
    ON_CPU,
    READY_ON_THE_ONLY,
    USE_SEVERAL,
)
from tests.support.framework_machines import BUSY, CONTEXT, FOUR, GIB, MIB

FULL = (BUSY, BUSY)
LIMITED = "memory limited to 2048 MiB"

# Bytes that JAX allocates outside of the allocator that a limit caps.
BESIDE = 16 * MIB

pytestmark = [pytest.mark.framework, pytest.mark.timeout(600)]


@pytest.fixture(params=[pytest.param(name, marks=pytest.mark.xdist_group(f"{name}-policies")) for name in FRAMEWORKS])
def framework(request) -> str:
    return request.param


@pytest.fixture
def on(framework, machine_of):
    return lambda *gpus: machine_of(framework, *gpus)


def allowed_bytes(framework, ran, gpu):
    """Return the bytes that a script of ``ALLOWED`` could use on ``gpu``. All its GPUs have the same limit."""
    assert ran.exit_status == 0, ran.stderr
    return ran.peak_bytes(gpu) if framework == "torch" else int(ran.stdout.split()[-1])


@pytest.mark.parametrize(
    ("gpus", "policy", "caps", "words"),
    [
        pytest.param((Gpu(),), {"limit": "25%"}, {0: 6 * GIB}, "memory limited to 6144 MiB", id="limit-in-percent"),
        pytest.param(FOUR, {"limit": "2GiB", "count": "2"}, {2: 2 * GIB, 3: 2 * GIB}, LIMITED, id="limit-on-two-gpus"),
        pytest.param(
            (BUSY,),
            {"busy": "share"},
            {0: 29 * GIB // 2},
            "memory limited by other jobs",
            id="cap-beside-an-unmanaged-process",
        ),
    ],
)
def test_memory_limit_is_enforced_on_each_gpu(framework, on, gpus, policy, caps, words):
    environ = {f"AUTOGPU_{key.upper()}": value for key, value in policy.items()}
    ran = on(*gpus).run(ALLOWED[framework].format(count=len(caps)), **environ)
    assert words in "".join(ran.said)
    assert ran.contexts == [*caps]
    for gpu, cap in caps.items():
        assert cap - GIB // 2 <= allowed_bytes(framework, ran, gpu) <= cap + BESIDE


@pytest.mark.parametrize(
    ("name", "setting"),
    [
        ("torch", "PYTORCH_NO_CUDA_MEMORY_CACHING=1"),
        ("jax", "XLA_PYTHON_CLIENT_ALLOCATOR=address"),
        ("jax", "XLA_PYTHON_CLIENT_ALLOCATOR=platform"),
        ("jax", "TF_FORCE_UNIFIED_MEMORY=1"),
        ("jax", "TF_FORCE_UNIFIED_MEMORY=true"),
    ],
)
def test_line_names_a_setting_that_disables_the_limit(machine_of, name, setting):
    variable, _, value = setting.partition("=")
    ran = machine_of(name, Gpu()).run(FILL[name], fresh=True, AUTOGPU_LIMIT="2GiB", **{variable: value})
    assert f"memory limited to 2048 MiB, allocated as needed (not enforced by {setting})" in "".join(ran.said)
    assert ran.peak_bytes(0) > 4 * GIB


def test_limit_sets_the_size_of_the_claim(framework, on):
    machine = on(Gpu())
    job = machine.start(HOLD[framework], AUTOGPU_LIMIT="2GiB")
    assert job.line() == READY_ON_THE_ONLY
    assert machine.claimed_bytes() == {job.pid: {0: pytest.approx(2 * GIB + CONTEXT, abs=0.5 * GIB)}}
    assert job.end().exit_status == 0


def test_memory_fraction_of_the_script_sets_the_size_of_the_claim(machine_of):
    machine = machine_of("torch", Gpu())
    first = "import torch\ntorch.cuda.set_per_process_memory_fraction(0.25)\n"
    job = machine.start(first + HOLD["torch"], AUTOGPU_LIMIT="12GiB")
    assert job.line() == READY_ON_THE_ONLY
    assert machine.claimed_bytes() == {job.pid: {0: 6 * GIB + CONTEXT_BYTES}}
    ran = job.end()
    assert "memory limited by the script to 25%" in ran.said[0], ran.said


@pytest.mark.parametrize(
    ("count", "gpus", "words"),
    [("2", [2, 3], "the 2 idlest of 4"), ("all", [0, 1, 2, 3], "all 4")],
    ids=["count-2", "count-all"],
)
def test_count_claims_that_many_of_the_idlest_gpus(framework, on, count, gpus, words):
    machine = on(*FOUR)
    job = machine.start(USE_SEVERAL[framework].format(count=len(gpus)), AUTOGPU_COUNT=count)
    assert job.line() == f"ready {len(gpus)}"
    assert (job.contexts, machine.claims()) == (gpus, {job.pid: gpus})
    ran = job.end()
    assert ran.exit_status == 0, ran.stderr
    assert words in ran.said[0]


@pytest.mark.parametrize(
    ("gpus", "policy", "words"),
    [
        pytest.param(FOUR, {"AUTOGPU_COUNT": "0"}, "select.count is 0", id="count-0"),
        pytest.param(FULL, {"AUTOGPU_BUSY": "cpu"}, "no GPU is free", id="busy-cpu"),
        pytest.param(
            (Gpu(),), {"CUDA_VISIBLE_DEVICES": "1"}, "=1 matches no GPU of this host", id="list-matches-no-gpu"
        ),
    ],
)
def test_job_without_a_gpu_runs_on_the_cpu_without_context_or_claim(framework, on, gpus, policy, words):
    machine = on(*gpus)
    job = machine.start(HOLD[framework], **policy)
    assert job.line() == ON_CPU[framework]
    assert machine.claims() == {}
    ran = job.end()
    assert (ran.exit_status, ran.contexts, len(ran.said)) == (0, [], 1 + (words == "no GPU is free")), ran.stderr
    assert words in ran.said[0]


def test_status_shows_a_jobs_lines_to_the_owner_of_the_job(framework, on):
    machine = on(*FOUR)
    job = machine.start(HOLD[framework], AUTOGPU_NEED="6GiB")
    job.line()
    page = machine.status()
    ran = job.end()
    assert len(ran.said) == 2
    assert [line.strip() for line in page.splitlines() if "autogpu: " in line] == ran.said


def test_status_shows_no_lines_of_a_user_who_keeps_no_history(framework, on):
    machine = on(*FOUR)
    job = machine.start(HOLD[framework], AUTOGPU_HISTORY="false")
    job.line()
    assert "autogpu: " not in machine.status()
    assert job.end().exit_status == 0


@pytest.mark.parametrize(
    ("policy", "exit_status", "words"),
    [
        ({"AUTOGPU_BUSY": "error"}, 1, "autogpu.errors.NoEligibleDevice: no GPU is free"),
        ({"AUTOGPU_BUSY": "wait", "AUTOGPU_WAIT": "1s"}, 75, "no GPU is free"),
    ],
    ids=["busy-error", "busy-wait-times-out"],
)
def test_script_ends_as_the_policy_sets_if_no_gpu_is_free(framework, on, policy, exit_status, words):
    ran = on(*FULL).run(HOLD[framework], **policy)
    assert (ran.exit_status, ran.contexts, ran.stdout) == (exit_status, [], ""), ran.stderr
    assert words in ran.stderr


def test_best_effort_job_beside_a_claim_is_capped(framework, on):
    machine = on(Gpu())
    owner = machine.start(HOLD[framework])
    assert owner.line() == READY_ON_THE_ONLY
    ran = machine.run(ALLOWED[framework].format(count=1), AUTOGPU_WAIT="0")
    # The cap is half of the free memory, because the owner's use is not known yet.
    assert 10 * GIB <= allowed_bytes(framework, ran, 0) <= 12 * GIB
    assert "memory limited by other jobs to " in ran.said[1]
    assert owner.end().exit_status == 0


def test_growth_off_keeps_the_frameworks_own_allocation(framework, on):
    ran = on(*FOUR).run(HOLD[framework], AUTOGPU_GROWTH="0")
    assert (ran.exit_status, ran.contexts) == (0, [3]), ran.stderr
    if framework == "jax":
        assert 17 * GIB < ran.peak_bytes(3) <= 18 * GIB
        assert "allocated as needed" not in ran.said[0]


def test_visible_chosen_hides_unclaimed_gpus(framework, on):
    show = "import os\nprint(len(os.environ['CUDA_VISIBLE_DEVICES'].split(',')), flush=True)\n"
    ran = on(*FOUR).run(HOLD[framework] + show, AUTOGPU_VISIBLE="chosen")
    assert ran.stdout.splitlines() == [READY_ON_THE_ONLY, "1"]
    assert (ran.exit_status, ran.contexts) == (0, [3]), ran.stderr


def test_visible_chosen_keeps_data_parallel_on_the_claimed_gpus(machine_of):
    script = """
import torch
model = torch.nn.DataParallel(torch.nn.Linear(4, 4).cuda())
print(model.device_ids)
model(torch.ones(8, 4).cuda())
"""
    ran = machine_of("torch", *FOUR).run(script, AUTOGPU_VISIBLE="chosen", AUTOGPU_COUNT="2")
    assert (ran.exit_status, ran.stdout, ran.contexts) == (0, "[0, 1]\n", [2, 3]), ran.stderr


@pytest.mark.parametrize(
    ("framework", "program"),
    [
        ("torch", "import torch"),
        ("torch", "import torch\ntorch.cuda.device_count()"),
        ("torch", "import torch\ntorch.cuda.is_initialized()"),
        ("jax", "import jax, jax.numpy, jaxlib"),
    ],
    ids=["torch-import", "torch-count", "torch-is-initialized", "jax-import"],
)
def test_import_or_device_count_calls_no_cuda_and_claims_nothing(framework, program, machine_of):
    machine = machine_of(framework, *FOUR)
    job = machine.start(f"import sys\n{program}\nprint('ready', flush=True)\nsys.stdin.readline()\n")
    assert job.line() == "ready"
    assert machine.claims() == {}
    ran = job.end()
    assert (ran.exit_status, {call.call for call in ran.calls} - {"nvmlInit"}, ran.said) == (0, set(), [])


LISTS = "import jax\nprint([device.platform for device in jax.devices()])\n"


@pytest.mark.parametrize("policy", [{"AUTOGPU_COUNT": "0"}, {"AUTOGPU_BUSY": "cpu"}], ids=["count-0", "busy-cpu"])
@pytest.mark.parametrize(
    ("platforms", "found", "contexts"),
    [
        ("cuda,cpu", ["cpu"], []),
        # JAX keeps the GPUs: without CUDA it would have no platform left and raise an error.
        ("cuda", ["gpu", "gpu"], [0, 1]),
    ],
)
def test_jax_platforms_lose_cuda_only_if_another_platform_is_left(machine_of, platforms, found, contexts, policy):
    ran = machine_of("jax", *FULL).run(LISTS, fresh=True, JAX_PLATFORMS=platforms, **policy)
    assert (ran.exit_status, ran.stdout, ran.contexts) == (0, f"{found}\n", contexts), ran.stderr
    assert any("JAX starts on CPU" in line for line in ran.said) == (not contexts)


@pytest.mark.parametrize(
    ("changed", "gpu"),
    [
        # CUDA starts in C++, without a call of a Python function.
        (("kept = []", "kept = []\ntorch.Generator(device='cuda')"), 3),
        (("kept = []", "kept = []\ntorch.ones(3, requires_grad=True).sum().backward()"), 3),
        (("kept = []", "kept = []\ntorch.cuda.Stream()"), 3),
        # The number is computed, so the script's text does not contain it.
        (('device="cuda"', 'device=f"cuda:{1 + 1}"'), 1),
    ],
    ids=["generator", "cpu-backward", "stream", "computed-number"],
)
def test_limit_holds_on_any_gpu_however_cuda_starts(machine_of, changed, gpu):
    ran = machine_of("torch", *FOUR).run(FILL["torch"].replace(*changed), AUTOGPU_LIMIT="2GiB")
    assert (ran.exit_status, ran.stdout, ran.contexts) == (0, "OutOfMemoryError 8\n", [gpu]), ran.stderr
