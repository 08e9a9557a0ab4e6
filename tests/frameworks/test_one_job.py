"""Processes that belong to one job: ranks started by hand, ranks started under ``run --hold``, and children."""

import os

import pytest

from tests.gpusim import Gpu
from tests.support.framework_jobs import HOLD, READY_ON_THE_ONLY
from tests.support.framework_machines import BUSY, GIB, IDLE
from tests.support.live_jobs import GPU_OF_NUMBER

pytestmark = [pytest.mark.framework, pytest.mark.timeout(600), pytest.mark.xdist_group("one-job")]

# This script checks that there is a GPU, then runs Python with the script's arguments.
ASKER = """
import subprocess, sys
import torch
assert torch.cuda.is_available()
sys.exit(subprocess.call([sys.executable, *sys.argv[1:]]))
"""
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", "rank.py")

# This script uses the GPU whose number is its local rank until its input ends.
RANK = """
import os, sys
import torch
kept = torch.ones(3, device=f"cuda:{os.environ['LOCAL_RANK']}")
# At once: torchrun's ranks write without a buffer, into one pipe.
os.write(1, f"{os.environ['LOCAL_RANK']} {os.getpid()}\\n".encode())
sys.stdin.read()
"""
# The same rank, but its script sets CUDA_VISIBLE_DEVICES to the local rank.
MASKED = RANK.replace("import torch", "os.environ['CUDA_VISIBLE_DEVICES'] = os.environ['LOCAL_RANK']\nimport torch")
MASKED = MASKED.replace("cuda:{os.environ['LOCAL_RANK']}", "cuda")


def started_by_hand(machine, script, ranks, *, world=None, **environ):
    """Start each rank without a launcher, with the variables of one job; return the jobs after each uses its GPU."""
    numbers = {"WORLD_SIZE": str(world or len(ranks))}
    jobs = [machine.start(script, LOCAL_RANK=str(rank), **numbers, **environ) for rank in ranks]
    assert [job.line() for job in jobs] == [f"{rank} {job.pid}" for rank, job in zip(ranks, jobs)]
    return jobs


def claimed(machine, *jobs):
    """Return the claimed GiB of each job, keyed by the GPUs of its contexts; 0 for a best-effort job."""
    claims = machine.claimed_bytes()
    return [{gpu: claims[job.pid].get(gpu, 0) / GIB for gpu in job.contexts} for job in jobs]


def test_ranks_started_by_hand_with_two_ports_share_no_gpu(machine_of):
    machine = machine_of("torch", *IDLE)
    jobs = [job for port in ("29500", "29501") for job in started_by_hand(machine, RANK, (0, 1), MASTER_PORT=port)]
    claims = claimed(machine, *jobs)
    assert sorted(gpu for each in claims for gpu in each) == [0, 1, 2, 3], claims
    assert [list(each.values()) for each in claims] == [[24.0]] * 4
    assert [len(job.end().said) for job in jobs] == [1, 0, 1, 0]


@pytest.mark.parametrize(
    ("ranks", "of_size", "missing"),
    [
        pytest.param((1,), 2, "GPU 2 and GPU 3", id="rank-1-of-2-alone"),
        pytest.param((0,), 2, None, id="rank-0-of-2-alone"),
        pytest.param((1,), 1, None, id="world-size-1"),
    ],
)
def test_missing_rank_0_is_reported_with_the_held_gpus(machine_of, ranks, of_size, missing):
    machine = machine_of("torch", *IDLE)
    (job,) = started_by_hand(machine, RANK, ranks, world=of_size, MASTER_PORT="29577", fresh=True)
    said = "\n".join(job.end().said)
    assert ("for all ranks: no rank 0 was found on this host" in said) == (missing is not None)
    assert (missing or "") in said


def test_second_rank_that_claims_first_is_silent_if_rank_0_is_running(machine_of):
    machine = machine_of("torch", *IDLE)
    together = {"WORLD_SIZE": "2", "MASTER_PORT": "29577", "fresh": True}
    waiting = "import sys\nprint('started', flush=True)\nsys.stdin.readline()\n"
    first = machine.start(waiting, LOCAL_RANK="0", **together)
    assert first.line() == "started"
    second = machine.start(RANK, LOCAL_RANK="1", **together)
    assert second.line() == f"1 {second.pid}"
    assert (second.end().said, first.end().said) == ([], [])


def test_two_torchrun_jobs_share_no_gpu(machine_of):
    machine = machine_of("torch", *IDLE)
    (machine.project / "rank.py").write_text(RANK)
    jobs = [machine.start(ASKER, arguments=TORCHRUN) for _ in range(2)]
    assert sorted(gpu for job in jobs for gpu in by_rank(machine, job)[1]) == [[0], [1], [2], [3]]
    assert [job.end().exit_status for job in jobs] == [0, 0]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["rank-0-first", "rank-1-first"])
def test_rank_that_lists_one_gpu_claims_all_of_its_memory(machine_of, order):
    machine = machine_of("torch", *IDLE[:2])
    first = started_by_hand(machine, MASKED, order[:1], world=2, MASTER_PORT="29500")
    second = started_by_hand(machine, MASKED, order[1:], world=2, MASTER_PORT="29500")
    assert claimed(machine, *first, *second) == [{rank: 24.0} for rank in order]


def test_local_ranks_of_a_two_host_job_claim_a_whole_gpu_each(machine_of):
    machine = machine_of("torch", *IDLE[:2])
    ranks = started_by_hand(machine, RANK, (0, 1), world=4, MASTER_ADDR="node1", MASTER_PORT="29500")
    assert claimed(machine, *ranks) == [{0: 24.0}, {1: 24.0}]
    assert "local rank 0 of 2" in ranks[0].end().said[0]


def by_rank(machine, job):
    """Return the pids of a job's two ranks, and the GPUs of each rank's contexts, in the order of ranks."""
    pids = [int(pid) for _, pid in sorted(job.line().split() for _ in range(2))]
    return pids, [machine.server.contexts().get(pid) for pid in pids]


BELOW_A_HOLD = """
import subprocess, sys
hold = [sys.executable, "-m", "autogpu", "run", "--hold", "--count", "2", "--", sys.executable, *sys.argv[1:]]
sys.exit(subprocess.call(hold))
"""


@pytest.mark.parametrize(
    ("script", "above"),
    [
        pytest.param(RANK, 2, id="two-launchers-in-between"),
        pytest.param(MASKED, 0, id="rank-sets-its-own-list"),
    ],
)
def test_ranks_started_under_run_hold_get_one_of_its_gpus_each(machine_of, script, above):
    machine = machine_of("torch", *IDLE[:2], AUTOGPU_BUSY="wait", AUTOGPU_WAIT="60s")
    (machine.project / "rank.py").write_text(script)
    (machine.project / "asker.py").write_text(ASKER)
    job = machine.start(BELOW_A_HOLD, fresh=True, arguments=[*["asker.py"] * above, *TORCHRUN])
    pids, on = by_rank(machine, job)
    claims = machine.claimed_bytes()
    assert sorted(on) == [[0], [1]], "\n".join(job.end().said)
    assert [claims[pid].get(gpu) for pid, (gpu,) in zip(pids, on)] == [24 * GIB] * 2
    assert len({lease["group"] for lease in machine.leased()}) == 1, "one job"
    ran = job.end()
    assert (ran.exit_status, len(ran.said)) == (0, 2), ran.said


def test_ranks_do_not_wait_for_launchers_that_only_checked_for_gpus(machine_of):
    machine = machine_of("torch", *IDLE[:2], AUTOGPU_BUSY="wait", AUTOGPU_WAIT="60s")
    (machine.project / "rank.py").write_text(RANK)
    (machine.project / "asker.py").write_text(ASKER)
    job = machine.start(ASKER, arguments=["asker.py", *TORCHRUN])
    assert sorted(by_rank(machine, job)[1]) == [[0], [1]]
    assert job.end().exit_status == 0


# The script that pip installs as ``torchrun``.
LAUNCHER = "import sys\nfrom torch.distributed.run import main\nsys.exit(main())\n"
# The rank in the argument waits until the test opens the FIFO ``start``.
LATE = "import os, sys\nif sys.argv[1:] == [os.environ['LOCAL_RANK']]:\n    open('start').read()\n"


@pytest.mark.parametrize("idiom", GPU_OF_NUMBER)
@pytest.mark.parametrize(
    "late",
    [
        pytest.param("", id="both-ranks-at-once", marks=pytest.mark.turns(3, 0)),
        pytest.param("0", id="rank-0-later", marks=pytest.mark.turns(3, 1)),
        pytest.param("1", id="rank-1-later", marks=pytest.mark.turns(3, 2)),
    ],
)
def test_tensorflow_ranks_that_use_the_gpu_of_their_number_get_idle_gpus(machine_of, together, idiom, late):
    machine = machine_of(together["tensorflow"], BUSY, Gpu(), BUSY, Gpu())
    rank = GPU_OF_NUMBER[idiom].format(number="os.environ['LOCAL_RANK']")
    (machine.project / "rank.py").write_text(LATE + rank)
    os.mkfifo(machine.project / "start")
    job = machine.start(LAUNCHER, fresh=True, name="torchrun", arguments=[*TORCHRUN[2:], *late])
    said = [job.line()]
    if late and all(said):
        (machine.project / "start").open("w").close()
    said.append(job.line())
    assert all(said), job.end().stderr
    contexts = machine.server.contexts()
    assert [contexts.get(int(line.split()[1])) for line in sorted(said)] == [[1], [3]], job.end().stderr
    assert job.end().exit_status == 0


PARENT = """
import subprocess, sys, torch
print("imported", flush=True)
sys.stdin.readline()
x = torch.ones(3, device="cuda")
child = "import os, torch; torch.ones(3, device='cuda'); print(os.getpid(), flush=True); input()"
subprocess.run([sys.executable, "-c", child])
"""


@pytest.mark.parametrize(
    ("policy", "others", "gpu"),
    [
        pytest.param({}, 0, 3, id="no-other-job"),
        pytest.param({}, 1, 2, id="another-job-claims-in-between"),
        pytest.param({"AUTOGPU_VISIBLE": "chosen"}, 0, 3, id="visible-chosen"),
    ],
)
def test_child_uses_the_gpu_of_its_parent(machine_of, policy, others, gpu):
    machine = machine_of("torch", *IDLE)
    parent = machine.start(PARENT, **policy)
    assert parent.line() == "imported"
    for _ in range(others):
        assert machine.start(HOLD["torch"]).line().startswith("ready")
    parent.go_on()
    child = int(parent.line())
    assert machine.server.contexts()[child] == parent.contexts == [gpu]
    parent.go_on()
    assert parent.end().exit_status == 0


GIVES_A_GPU = """
import os, subprocess, sys, torch
assert torch.cuda.is_available()
print("asked", flush=True)
sys.stdin.readline()
environ = {**os.environ, "CUDA_VISIBLE_DEVICES": sys.argv[1], "AUTOGPU_BUSY": sys.argv[3]}
sys.exit(subprocess.run([sys.argv[2], "-c", sys.argv[4]], env=environ).returncode)
"""


@pytest.mark.parametrize(("framework", "busy"), [("torch", "error"), ("torch", "share"), ("jax", "error")])
def test_launcher_that_only_checked_for_gpus_does_not_block_its_program(framework, busy, newest, machine_of):
    machine = machine_of("torch", *IDLE)
    arguments = ("3", str(newest[framework].python), busy, HOLD[framework])
    launcher = machine.start(GIVES_A_GPU, arguments=arguments)
    assert launcher.line() == "asked"
    assert machine.claims() == {}
    launcher.go_on()
    assert launcher.line() == READY_ON_THE_ONLY
    (claim,) = machine.claimed_bytes().values()
    assert claim[3] > 20 * GIB
    ran = launcher.end()
    assert (ran.exit_status, "limited by other jobs" in ran.stderr) == (0, False), ran.stderr
