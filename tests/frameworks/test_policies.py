"""Policies for PyTorch and JAX, unmodified, judged by what the driver was asked and by what the lease says."""

from __future__ import annotations

import pytest

from tests.gpusim import Gpu
from tests.support import framework_environments
from tests.support.framework_jobs import FILL, FRAMEWORKS, HOLD, ON_CPU, READY, USE_SEVERAL
from tests.support.framework_machines import BUSY, CONTEXT, GIB, MIB

FOUR = (BUSY, Gpu(), Gpu(), Gpu())
FULL = (BUSY, BUSY)

# What JAX allocates outside of the allocator that a limit is for.
BESIDE = 16 * MIB

pytestmark = [pytest.mark.framework, pytest.mark.timeout(600)]


@pytest.fixture(params=[pytest.param(name, marks=pytest.mark.xdist_group(f"{name}-policies")) for name in FRAMEWORKS])
def framework(request) -> str:
    return request.param


@pytest.fixture
def on(framework, framework_pythons, machine_of):
    """Make a machine for scripts of the framework."""
    return lambda *gpus: machine_of(framework_pythons[framework], *gpus)


def ended(job):
    """Let a job that waits for a line go on to its end."""
    job.go_on()
    return job.end()


@pytest.mark.parametrize(("limit", "most"), [("2GiB", 2 * GIB), ("25%", 6 * GIB)])
def test_a_limit_is_a_hard_cap_that_the_framework_enforces(framework, on, limit, most):
    ran = on(Gpu()).run(FILL[framework], AUTOGPU_LIMIT=limit)
    assert (ran.exit_status, ran.stdout.split()[0][-16:]) == (0, "OutOfMemoryError"), ran.stderr
    assert most - GIB // 2 <= ran.peak_bytes(0) <= most + BESIDE
    assert f"memory limited to {most >> 20} MiB, allocated as needed" in ran.said[0]


def test_a_limit_is_what_is_claimed(framework, on):
    machine = on(Gpu())
    job = machine.start(HOLD[framework], AUTOGPU_LIMIT="2GiB")
    assert job.line() == READY[framework].format(1)
    assert machine.claimed_bytes() == {job.pid: {0: pytest.approx(2 * GIB + CONTEXT, abs=0.5 * GIB)}}
    assert ended(job).exit_status == 0


def test_jobs_with_limits_share_a_gpu_while_they_fit(framework, on):
    machine = on(Gpu())
    jobs = [machine.start(HOLD[framework], AUTOGPU_LIMIT="10GiB", AUTOGPU_BUSY="cpu") for _ in range(3)]
    seen = sorted(job.line() for job in jobs)
    assert seen == sorted([READY[framework].format(1)] * 2 + [ON_CPU[framework]])


def test_count_two_gives_the_two_idlest(framework, on):
    machine = on(*FOUR)
    job = machine.start(USE_SEVERAL[framework].format(count=2), AUTOGPU_COUNT="2")
    assert job.line() == "ready 2"
    assert (job.contexts, machine.claims()) == ([2, 3], {job.pid: [2, 3]})
    ran = ended(job)
    assert (ran.exit_status, len(ran.said)) == (0, 1), ran.stderr
    assert "the 2 idlest of 4" in ran.said[0]


def test_a_limit_holds_on_each_of_two(framework, on):
    fill = {
        "torch": FILL["torch"].replace('device="cuda"', 'device=f"cuda:{len(kept) % 2}"'),
        "jax": FILL["jax"].replace(
            'jax.numpy.zeros(256 << 20, dtype="uint8")',
            'jax.numpy.zeros(256 << 20, dtype="uint8", device=jax.devices()[len(kept) % 2])',
        ),
    }
    ran = on(*FOUR).run(fill[framework], AUTOGPU_COUNT="2", AUTOGPU_LIMIT="2GiB")
    assert (ran.exit_status, ran.contexts) == (0, [2, 3]), ran.stderr
    assert [1.5 * GIB <= ran.peak_bytes(gpu) <= 2 * GIB + BESIDE for gpu in (2, 3)] == [True, True]


def test_all_gives_every_gpu(framework, on):
    machine = on(*FOUR)
    job = machine.start(USE_SEVERAL[framework].format(count=4), AUTOGPU_COUNT="all")
    assert job.line() == "ready 4"
    assert (job.contexts, machine.claims()) == ([0, 1, 2, 3], {job.pid: [0, 1, 2, 3]})


def test_count_zero_is_the_cpu_without_a_context_or_a_claim(framework, on):
    machine = on(*FOUR)
    job = machine.start(HOLD[framework], AUTOGPU_COUNT="0")
    assert job.line() == ON_CPU[framework]
    assert machine.claims() == {}
    ran = ended(job)
    assert (ran.exit_status, ran.contexts) == (0, []), ran.stderr
    assert len(ran.said) == 1
    assert "select.count is 0" in ran.said[0]


def test_busy_cpu_goes_to_the_cpu(framework, on):
    machine = on(*FULL)
    job = machine.start(HOLD[framework], AUTOGPU_BUSY="cpu")
    assert job.line() == ON_CPU[framework]
    ran = ended(job)
    assert (ran.exit_status, ran.contexts, len(ran.said)) == (0, [], 1), ran.stderr
    assert "no GPU is free" in ran.said[0]


def test_busy_error_ends_the_script_with_the_policys_error(framework, on):
    ran = on(*FULL).run(HOLD[framework], AUTOGPU_BUSY="error")
    assert (ran.exit_status, ran.contexts, ran.stdout) == (1, [], ""), ran.stderr
    assert "autogpu.errors.NoEligibleDevice: no GPU is free" in ran.stderr


def test_busy_wait_ends_with_status_75_when_its_time_is_over(framework, on):
    ran = on(*FULL).run(HOLD[framework], AUTOGPU_BUSY="wait", AUTOGPU_WAIT="1s")
    assert (ran.exit_status, ran.contexts, ran.stdout) == (75, [], ""), ran.stderr


def test_busy_wait_takes_the_gpu_of_a_job_that_ends(framework, on):
    machine = on(Gpu())
    first = machine.start(HOLD[framework])
    assert first.line() == READY[framework].format(1)
    second = machine.start(HOLD[framework], AUTOGPU_BUSY="wait")
    second.heard("waiting")
    assert second.contexts == []
    assert ended(first).exit_status == 0
    assert second.line() == READY[framework].format(1)
    assert machine.claims() == {second.pid: [0]}


def test_busy_share_is_capped_at_half_of_what_is_free(framework, on):
    ran = on(BUSY).run(FILL[framework], AUTOGPU_BUSY="share")
    free = 24 * GIB - 9 * GIB
    assert ran.exit_status == 0, ran.stderr
    assert free // 2 - GIB <= ran.peak_bytes(0) <= free // 2 + BESIDE
    assert "half of what is free" in ran.said[0]


def test_beside_somebodys_claim_a_job_is_promised_nothing_and_capped(framework, on):
    machine = on(Gpu())
    owner = machine.start(HOLD[framework])
    assert owner.line() == READY[framework].format(1)
    ran = machine.run(FILL[framework])
    assert ran.exit_status == 0, ran.stderr
    assert 10 * GIB <= ran.peak_bytes(0) <= 12 * GIB
    assert "half of what is free" in ran.said[0]
    assert ended(owner).exit_status == 0


def test_growth_off_leaves_the_framework_its_own_way(framework, on):
    ran = on(*FOUR).run(HOLD[framework], AUTOGPU_GROWTH="0")
    assert (ran.exit_status, ran.contexts) == (0, [3]), ran.stderr
    if framework == "jax":
        assert 17 * GIB < ran.peak_bytes(3) <= 18 * GIB
        assert "allocated as needed" not in ran.said[0]


def test_visible_chosen_hides_the_others(framework, on):
    show = "import os\nprint(len(os.environ['CUDA_VISIBLE_DEVICES'].split(',')), flush=True)\n"
    machine = on(*FOUR)
    ran = machine.run(HOLD[framework] + show, AUTOGPU_VISIBLE="chosen")
    assert ran.stdout.splitlines() == [READY[framework].format(1), "1"]
    assert (ran.exit_status, ran.contexts) == (0, [3]), ran.stderr


def test_visible_chosen_keeps_data_parallel_on_the_chosen(framework_pythons, machine_of):
    script = "import torch\nmodel = torch.nn.DataParallel(torch.nn.Linear(4, 4).cuda())\nprint(model.device_ids)\n"
    ran = machine_of(framework_pythons["torch"], *FOUR).run(
        script + "model(torch.ones(8, 4).cuda())\n", AUTOGPU_VISIBLE="chosen", AUTOGPU_COUNT="2"
    )
    assert (ran.exit_status, ran.stdout, ran.contexts) == (0, "[0, 1]\n", [2, 3]), ran.stderr


def test_devices_and_exclude_narrow_the_choice(framework, on):
    machine = on(*FOUR)
    assert machine.run(HOLD[framework], AUTOGPU_EXCLUDE="3").contexts == [2]
    assert machine.run(HOLD[framework], AUTOGPU_DEVICES="1").contexts == [1]


def test_an_inherited_list_is_the_pool(framework, on):
    machine = on(*FOUR)
    ran = machine.run(HOLD[framework], CUDA_VISIBLE_DEVICES="0,1")
    assert (ran.exit_status, ran.contexts) == (0, [1]), ran.stderr
    ran = machine.run(HOLD[framework], CUDA_VISIBLE_DEVICES="0", CUDA_DEVICE_ORDER="PCI_BUS_ID")
    assert (ran.exit_status, ran.contexts) == (0, [0]), ran.stderr
    assert "busy while" in ran.said[0]


@pytest.mark.parametrize("line", ["x = 1", "torch.cuda.device_count()", "torch.cuda.is_initialized()"])
def test_before_cudas_start_pytorch_asks_no_cuda_and_claims_nothing(framework_pythons, machine_of, line):
    hold = f"import sys, torch\n{line}\nprint('ready', flush=True)\nsys.stdin.readline()\n"
    machine = machine_of(framework_pythons["torch"], *FOUR)
    job = machine.start(hold)
    assert job.line() == "ready"
    assert machine.claims() == {}
    ran = ended(job)
    assert (ran.exit_status, {call.call for call in ran.calls} - {"nvmlInit"}, ran.said) == (0, set(), [])


def test_importing_jax_asks_no_cuda_and_claims_nothing(framework_pythons, machine_of):
    hold = "import sys, jax, jax.numpy, jaxlib\nprint('ready', flush=True)\nsys.stdin.readline()\n"
    machine = machine_of(framework_pythons["jax"], *FOUR)
    job = machine.start(hold)
    assert job.line() == "ready"
    assert machine.claims() == {}
    ran = ended(job)
    assert (ran.exit_status, {call.call for call in ran.calls} - {"nvmlInit"}, ran.said) == (0, set(), [])


def test_switched_off_it_is_as_without_the_hook(framework, framework_pythons, machine_of):
    bare = getattr(framework_environments, framework)()
    runs = [
        machine_of(bare, *FOUR).run(HOLD[framework]),
        machine_of(framework_pythons[framework], *FOUR).run(HOLD[framework], AUTOGPU="0"),
    ]
    first, second = [
        sorted((call.call, call.gpu, call.bytes) for call in ran.calls if call.call != "nvmlInit") for ran in runs
    ]
    assert first == second
    assert [(ran.exit_status, ran.stdout, ran.said) for ran in runs] == [(0, runs[0].stdout, [])] * 2


def test_a_policy_file_of_the_project_holds(framework, on):
    machine = on(*FOUR)
    (machine.project / "autogpu.toml").write_text('[select]\nexclude = ["3"]\n[memory]\nlimit = "4GiB"\n')
    ran = machine.run(FILL[framework])
    assert (ran.exit_status, ran.contexts) == (0, [2]), ran.stderr
    assert 3 * GIB <= ran.peak_bytes(2) <= 4 * GIB + BESIDE
    assert "autogpu.toml" in ran.said[0]


LISTS = "import jax\nprint([device.platform for device in jax.devices()])\n"


@pytest.mark.parametrize("policy", [{"AUTOGPU_COUNT": "0"}, {"AUTOGPU_BUSY": "cpu"}], ids=["count-0", "busy-cpu"])
def test_named_platforms_go_without_cuda_where_the_policy_says_so(framework_pythons, machine_of, policy):
    ran = machine_of(framework_pythons["jax"], *FULL).run(LISTS, JAX_PLATFORMS="cuda,cpu", **policy)
    assert (ran.exit_status, ran.stdout, ran.contexts) == (0, "['cpu']\n", []), ran.stderr
    assert "JAX starts on CPU" in ran.said[0]


@pytest.mark.parametrize("policy", [{"AUTOGPU_COUNT": "0"}, {"AUTOGPU_BUSY": "cpu"}], ids=["count-0", "busy-cpu"])
def test_where_only_cuda_is_named_the_gpus_are_taken_and_the_line_says_so(framework_pythons, machine_of, policy):
    # Anything else would raise: JAX has no other platform left.
    ran = machine_of(framework_pythons["jax"], *FULL).run(LISTS, JAX_PLATFORMS="cuda", **policy)
    assert (ran.exit_status, ran.stdout, ran.contexts) == (0, "['gpu', 'gpu']\n", [0, 1]), ran.stderr
    assert len(ran.said) == 1
    assert "JAX starts on CPU" not in ran.said[0]


@pytest.mark.parametrize(
    "starts_cuda",
    [
        pytest.param("torch.Generator(device='cuda')", id="generator"),
        pytest.param("torch.ones(3, requires_grad=True).sum().backward()", id="cpu-backward"),
        pytest.param("torch.cuda.Stream()", id="stream"),
    ],
)
def test_a_limit_holds_where_cuda_starts_without_a_word_to_python(framework_pythons, machine_of, starts_cuda):
    fill = FILL["torch"].replace("kept = []", f"kept = []\n{starts_cuda}")
    ran = machine_of(framework_pythons["torch"], *FOUR).run(fill, AUTOGPU_LIMIT="2GiB")
    assert (ran.exit_status, ran.stdout, ran.contexts) == (0, "OutOfMemoryError 8\n", [3]), ran.stderr


def test_a_limit_holds_on_whichever_gpu_the_script_names(framework_pythons, machine_of):
    # A number that its text does not tell.
    fill = FILL["torch"].replace('device="cuda"', 'device=f"cuda:{1 + 1}"')
    ran = machine_of(framework_pythons["torch"], *FOUR).run(fill, AUTOGPU_LIMIT="2GiB")
    assert (ran.exit_status, ran.stdout, ran.contexts) == (0, "OutOfMemoryError 8\n", [1]), ran.stderr
