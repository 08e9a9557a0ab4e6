"""Jobs of real TensorFlow that meet on one host, judged by the driver's log and the lease folder."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import textwrap

import pytest

from tests.gpusim import Gpu
from tests.support.live_jobs import GIB, HOLD, claims

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(900)]

CONTEXT = 256 << 20


def test_small_jobs_share_a_gpu_while_their_claims_fit(host, lease_folder):
    start = host(Gpu())
    jobs = [start(AUTOGPU_NEED="10GiB") for _ in range(2)]
    assert [job.ready() for job in jobs] == ["ready GPU:0"] * 2
    assert claims(lease_folder, start.server) == {job.pid: {0: 10.0} for job in jobs}
    third = start(AUTOGPU_NEED="10GiB")
    assert third.ready() == "ready CPU:0"
    status, lines = third.end()
    assert (status, third.gpus()) == (0, [])
    assert lines == [
        "autogpu: no GPU for this process, TensorFlow starts on CPU: no GPU is free (GPU 0: 10.0 GiB do not fit, "
        "4.0 GiB are neither used nor claimed); policy: AUTOGPU_NEED"
    ]


def test_a_best_effort_job_is_promised_nothing_and_capped_at_half_of_what_is_free(host, lease_folder):
    start = host(Gpu(), script=HOLD.replace("(256, 256)", "(1024, 1024, 512)"))
    owner = start()
    owner.ready()
    second = start(AUTOGPU_GROWTH="0")
    assert second.ready() == "ready GPU:0"
    assert claims(lease_folder, start.server) == {owner.pid: {0: 24.0}, second.pid: {0: 0.0}}
    free_before = 24 * GIB - CONTEXT - owner.allocated()
    assert second.allocated() <= free_before // 2 + (2 << 20)
    assert "half of what is free" in second.end()[1][0]


def test_a_limit_with_growth_grows_up_to_the_limit_and_is_what_is_claimed(host, lease_folder):
    start = host(Gpu(), script=HOLD.replace("(256, 256)", "(1024, 1024, 128)"))
    job = start(AUTOGPU_LIMIT="2GiB")
    assert job.ready() == "ready GPU:0"
    # The limit and the context's cost as the driver shows it, not as it was estimated before there was one.
    assert claims(lease_folder, start.server) == {job.pid: {0: 2.25}}
    assert 0.5 * GIB < job.allocated() <= 2 * GIB
    assert "memory limited to 2048 MiB, allocated as needed" in job.end()[1][0]


def test_ctrl_c_ends_a_wait_at_once(host):
    start = host(Gpu())
    start().ready()
    waiter = start(AUTOGPU_BUSY="wait")
    while "autogpu: waiting" not in waiter.process.stderr.readline():
        pass
    waiter.process.send_signal(signal.SIGINT)
    # The wait itself would last 30 minutes.
    assert waiter.process.wait(timeout=60) == -signal.SIGINT
    assert waiter.process.stderr.read() == "autogpu: stopped waiting for a GPU; nothing is claimed\n"


def test_a_script_may_catch_the_ctrl_c_that_ends_its_wait(host):
    script = HOLD.replace("with tf", "try:\n  with tf").replace("    x = ", "      x = ")
    script = script.replace("print(", "except KeyboardInterrupt: print('caught', flush=True); sys.exit(3)\nprint(")
    start = host(Gpu(), script=script)
    start().ready()
    waiter = start(AUTOGPU_BUSY="wait")
    while "autogpu: waiting" not in waiter.process.stderr.readline():
        pass
    waiter.process.send_signal(signal.SIGINT)
    assert waiter.ready() == "caught"
    assert waiter.end() == (3, [])


def test_what_the_script_chooses_is_leased_and_breaks_no_promise(host, lease_folder):
    chooses = HOLD.replace(
        "with tf", "tf.config.set_visible_devices(tf.config.list_physical_devices('GPU')[1], 'GPU')\nwith tf"
    )
    start = host(Gpu(), Gpu(), script=chooses)
    first, second = start(), start()
    assert [first.ready(), second.ready()] == ["ready GPU:0"] * 2
    promised = claims(lease_folder, start.server)
    assert {pid: list(gpus) for pid, gpus in promised.items()} == {job.pid: job.gpus() for job in (first, second)}
    for gpu in (0, 1):
        assert sum(claims.get(gpu, 0) for claims in promised.values()) <= 24


def test_an_explicit_choice_beside_a_whole_claim_works_with_a_limit_too(host, lease_folder):
    chooses = HOLD.replace(
        "with tf", "tf.config.set_visible_devices(tf.config.list_physical_devices('GPU'), 'GPU')\nwith tf"
    )
    start = host(Gpu(), script=chooses)
    start().ready()
    second = start(AUTOGPU_LIMIT="2GiB")
    assert second.ready() == "ready GPU:0"
    assert claims(lease_folder, start.server)[second.pid] == {0: 0.0}
    status, lines = second.end()
    assert (status, len(lines)) == (0, 1)
    assert "chosen by the script" in lines[0]


SWEEP = """
import subprocess, sys
import tensorflow as tf
gpus = tf.config.list_physical_devices("GPU")
for gpu in gpus:
    tf.config.experimental.set_memory_growth(gpu, True)
pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
jobs = [subprocess.Popen([sys.executable, "train.py"], **pipes) for _ in gpus]
assert [job.stdout.readline()[:5] for job in jobs] == [b"ready"] * 4
for job in jobs:
    job.stdin.close()
sys.exit(max(job.wait() for job in jobs))
"""


def test_a_sweep_launcher_that_only_lists_gets_a_gpu_for_each_of_its_jobs(host, lease_folder, tmp_path):
    (tmp_path / "train.py").write_text(HOLD)
    start = host(*[Gpu()] * 4, script=SWEEP.replace('"train.py"', repr(str(tmp_path / "train.py"))))
    assert start().end()[0] == 0
    assert sorted(start.server.contexts().values()) == [[0], [1], [2], [3]]


SPAWN = """
import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor

def work(_):
    import tensorflow as tf
    return tf.random.uniform((2, 2)).device[-5:]

if __name__ == "__main__":
    import tensorflow as tf
    tf.random.uniform((2, 2))
    {pool}
"""

POOLS = {
    "spawn": "print(multiprocessing.get_context('spawn').Pool(2).map(work, range(2)))",
    "forkserver": "print(multiprocessing.get_context('forkserver').Pool(2).map(work, range(2)))",
    "executor": "print(list(ProcessPoolExecutor(2, multiprocessing.get_context('spawn')).map(work, range(2))))",
    "loky": "import joblib; print(joblib.Parallel(2)(joblib.delayed(work)(n) for n in range(2)))",
}


@pytest.mark.parametrize("pool", POOLS)
def test_workers_of_a_holder_are_members_of_it(host, lease_folder, pool):
    start = host(*[Gpu()] * 2, script=SPAWN.format(pool=POOLS[pool]))
    job = start()
    assert job.ready() == "['GPU:0', 'GPU:0']"
    assert job.end()[0] == 0
    assert {gpu for gpus in start.server.contexts().values() for gpu in gpus} == {1}


def test_a_child_whose_gpus_were_set_since_is_left_alone(host, lease_folder):
    script = """
    import os, subprocess, sys
    import tensorflow as tf
    tf.random.uniform((2, 2))
    first = os.environ["CUDA_VISIBLE_DEVICES"].split(",")[1]
    child = "import tensorflow as tf; tf.random.uniform((2, 2))"
    sys.exit(subprocess.call([sys.executable, "-c", child], env={**os.environ, "CUDA_VISIBLE_DEVICES": first}))
    """
    start = host(*[Gpu()] * 2, script=textwrap.dedent(script))
    assert start().end()[0] == 0
    assert sorted(start.server.contexts().values()) == [[0], [1]]


@pytest.mark.parametrize("state", ["fifo", "folder", "symlink"])
def test_a_broken_mutex_costs_a_line_and_no_gpu(host, lease_folder, state):
    mutex = lease_folder / "mutex"
    {"fifo": os.mkfifo, "folder": os.mkdir, "symlink": lambda path: path.symlink_to("/etc/passwd")}[state](mutex)
    start = host(Gpu())
    job = start()
    assert job.ready() == "ready GPU:0"
    status, lines = job.end()
    assert (status, len(lines)) == (0, 2)
    assert lines[0].startswith("autogpu: claiming without the host's lock: ")


RANKS = """
import os, sys
import tensorflow as tf
rank = int(os.environ.get("OMPI_COMM_WORLD_LOCAL_RANK") or os.environ["MPI_LOCALRANKID"])
if len(sys.argv) > 1:
    tf.config.set_visible_devices(tf.config.list_physical_devices("GPU")[rank], "GPU")
tf.random.uniform((2, 2))
print("rank", rank, os.getpid(), flush=True)
"""

LAUNCHERS = {
    "open-mpi": ["mpirun.openmpi", "--oversubscribe", "--allow-run-as-root", "-n"],
    "mpich": ["mpirun.mpich", "-n"],
}


def run_ranks(host, python, lease_folder, launcher, count, gpus, *arguments):
    if shutil.which(LAUNCHERS[launcher][0]) is None:
        pytest.skip(f"{LAUNCHERS[launcher][0]} is not installed (Debian: openmpi-bin, mpich)")
    start = host(*gpus)
    file = lease_folder.parent / "ranks.py"
    file.write_text(RANKS)
    done = start.server.run(
        [*LAUNCHERS[launcher], str(count), str(python), str(file), *arguments],
        environ={"AUTOGPU_LEASE_DIR": str(lease_folder), "TF_CPP_MIN_LOG_LEVEL": "3"},
        timeout=300,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stderr
    pids = {int(line.split()[1]): int(line.split()[2]) for line in done.stdout.splitlines() if line.startswith("rank")}
    contexts = start.server.contexts()
    lines = [line for line in done.stderr.splitlines() if "autogpu: " in line]
    return [contexts[pids[rank]] for rank in range(count)], lines


@pytest.mark.parametrize("launcher", LAUNCHERS)
@pytest.mark.parametrize("arguments", [[], ["chooses"]], ids=["script-says-nothing", "script-chooses-its-rank"])
def test_local_ranks_get_the_gpus_in_rank_order(host, python, lease_folder, launcher, arguments):
    # The busiest first: ranks keep the pool's order and don't look for idle ones.
    gpus = [Gpu(processes={5004242: "9GiB"}, utilization=90), Gpu(), Gpu(), Gpu()]
    given, lines = run_ranks(host, python, lease_folder, launcher, 4, gpus, *arguments)
    assert given == [[0], [1], [2], [3]]
    assert len(lines) == 1, "only rank 0 speaks"


def test_more_ranks_than_gpus_share_them(host, python, lease_folder):
    given, lines = run_ranks(host, python, lease_folder, "open-mpi", 4, [Gpu(), Gpu()])
    assert given == [[0], [0], [1], [1]]
    assert "local rank 0 of 4 (Open MPI), 2 ranks share it" in lines[0]
