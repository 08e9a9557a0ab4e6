"""Which processes are one job: ranks started by hand or below a hold, children. Judged by driver and leases."""

import os

import pytest

from tests.gpusim import Gpu
from tests.support.framework_jobs import HOLD, READY_ON_THE_ONLY
from tests.support.framework_machines import BUSY, GIB, IDLE
from tests.support.live_jobs import GPU_OF_NUMBER

pytestmark = [pytest.mark.framework, pytest.mark.timeout(600), pytest.mark.xdist_group("one-job")]

# Starts what its arguments say, after it has asked whether there is a GPU.
ASKER = """
import subprocess, sys
import torch
assert torch.cuda.is_available()
sys.exit(subprocess.call([sys.executable, *sys.argv[1:]]))
"""
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", "rank.py")

# On the GPU of its rank until its input ends.
RANK = """
import os, sys
import torch
kept = torch.ones(3, device=f"cuda:{os.environ['LOCAL_RANK']}")
# At once: torchrun's ranks write without a buffer, into one pipe.
os.write(1, f"{os.environ['LOCAL_RANK']} {os.getpid()}\\n".encode())
sys.stdin.read()
"""
# The same, where the script gives itself a GPU by its number.
MASKED = RANK.replace("import torch", "os.environ['CUDA_VISIBLE_DEVICES'] = os.environ['LOCAL_RANK']\nimport torch")
MASKED = MASKED.replace("cuda:{os.environ['LOCAL_RANK']}", "cuda")


def started_by_hand(machine, script, ranks, *, world=None, **environ):
    """Ranks that nothing but their variables tells of each other, each on its GPU."""
    numbers = {"WORLD_SIZE": str(world or len(ranks))}
    jobs = [machine.start(script, LOCAL_RANK=str(rank), **numbers, **environ) for rank in ranks]
    assert [job.line() for job in jobs] == [f"{rank} {job.pid}" for rank, job in zip(ranks, jobs)]
    return jobs


def claimed(machine, *jobs):
    """By job, where it is and how many GiB it may take there; nothing where it is a best-effort job."""
    claims = machine.claimed_bytes()
    return [{gpu: claims[job.pid].get(gpu, 0) / GIB for gpu in job.contexts} for job in jobs]


def test_two_launches_by_hand_share_no_gpu(machine_of):
    machine = machine_of("torch", *IDLE)
    jobs = [job for port in ("29500", "29501") for job in started_by_hand(machine, RANK, (0, 1), MASTER_PORT=port)]
    claims = claimed(machine, *jobs)
    assert sorted(gpu for each in claims for gpu in each) == [0, 1, 2, 3], claims
    assert [list(each.values()) for each in claims] == [[24.0]] * 4
    assert [len(job.end().said) for job in jobs] == [1, 0, 1, 0]


@pytest.mark.parametrize(
    ("ranks", "of_size", "missing"),
    [
        pytest.param((1,), 2, "GPU 2 and GPU 3", id="second-of-two-alone"),
        pytest.param((0,), 2, None, id="first-of-two-alone"),
        pytest.param((1,), 1, None, id="no-rank"),
    ],
)
def test_rank_without_a_first_one_says_what_it_holds(machine_of, ranks, of_size, missing):
    machine = machine_of("torch", *IDLE)
    (job,) = started_by_hand(machine, RANK, ranks, world=of_size, MASTER_PORT="29577", fresh=True)
    said = "\n".join(job.end().said)
    assert ("no rank 0 is seen here; this process holds" in said) == (missing is not None)
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


def test_two_launchers_of_ranks_share_no_gpu(machine_of):
    machine = machine_of("torch", *IDLE)
    (machine.project / "rank.py").write_text(RANK)
    jobs = [machine.start(ASKER, arguments=TORCHRUN) for _ in range(2)]
    assert sorted(gpu for job in jobs for gpu in by_rank(machine, job)[1]) == [[0], [1], [2], [3]]
    assert [job.end().exit_status for job in jobs] == [0, 0]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["rank-0-first", "rank-1-first"])
def test_a_rank_whose_script_lists_a_gpu_by_its_number_has_all_of_it(machine_of, order):
    machine = machine_of("torch", *IDLE[:2])
    first = started_by_hand(machine, MASKED, order[:1], world=2, MASTER_PORT="29500")
    second = started_by_hand(machine, MASKED, order[1:], world=2, MASTER_PORT="29500")
    assert claimed(machine, *first, *second) == [{rank: 24.0} for rank in order]


def test_of_the_ranks_of_two_hosts_each_has_a_whole_gpu_of_this_one(machine_of):
    machine = machine_of("torch", *IDLE[:2])
    ranks = started_by_hand(machine, RANK, (0, 1), world=4, MASTER_ADDR="node1", MASTER_PORT="29500")
    assert claimed(machine, *ranks) == [{0: 24.0}, {1: 24.0}]
    assert "local rank 0 of 2" in ranks[0].end().said[0]


def by_rank(machine, job):
    """The pids of two ranks that a job has started, and the GPUs on which each is."""
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
        pytest.param(RANK, 2, id="below-two-that-have-asked"),
        pytest.param(MASKED, 0, id="by-a-list-of-its-own"),
    ],
)
def test_ranks_below_a_hold_have_each_their_gpu_of_it(machine_of, script, above):
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


def test_ranks_do_not_wait_for_launchers_above_that_have_only_asked(machine_of):
    machine = machine_of("torch", *IDLE[:2], AUTOGPU_BUSY="wait", AUTOGPU_WAIT="60s")
    (machine.project / "rank.py").write_text(RANK)
    (machine.project / "asker.py").write_text(ASKER)
    job = machine.start(ASKER, arguments=["asker.py", *TORCHRUN])
    assert sorted(by_rank(machine, job)[1]) == [[0], [1]]
    assert job.end().exit_status == 0


# What pip installs as torchrun.
LAUNCHER = "import sys\nfrom torch.distributed.run import main\nsys.exit(main())\n"
# The rank that the command line names starts when it may.
LATE = "import os, sys\nif sys.argv[1:] == [os.environ['LOCAL_RANK']]:\n    open('start').read()\n"


@pytest.mark.parametrize("idiom", GPU_OF_NUMBER)
@pytest.mark.parametrize(
    "late",
    [
        pytest.param("", id="at-once", marks=pytest.mark.turns(3, 0)),
        pytest.param("0", id="0-later", marks=pytest.mark.turns(3, 1)),
        pytest.param("1", id="1-later", marks=pytest.mark.turns(3, 2)),
    ],
)
def test_ranks_of_tensorflow_that_take_the_gpu_of_their_number_have_the_idle_ones(machine_of, together, idiom, late):
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
        pytest.param({}, 0, 3, id="alone"),
        pytest.param({}, 1, 2, id="another-came-between"),
        pytest.param({"AUTOGPU_VISIBLE": "chosen"}, 0, 3, id="visible-chosen"),
    ],
)
def test_a_child_is_on_its_parents_gpu(machine_of, policy, others, gpu):
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
def test_a_launcher_that_has_only_asked_is_not_in_the_way_of_the_program_to_which_it_gives_a_gpu(
    framework, busy, newest, machine_of
):
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
    assert (ran.exit_status, "capped at" in ran.stderr) == (0, False), ran.stderr
