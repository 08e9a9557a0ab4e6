"""Several jobs of real TensorFlow on one host, checked by the driver's log and the lease folder."""

import re
import signal
import textwrap

import pytest

from tests.gpusim import Gpu
from tests.support import environments
from tests.support.live_jobs import GIB, HOLD, claims

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(900)]

CONTEXT = 256 << 20


def test_small_jobs_share_a_gpu_while_their_claims_fit(host, lease_folder):
    start = host(Gpu())
    jobs = [start(AUTOGPU_NEED="10GiB") for _ in range(2)]
    assert [job.ready() for job in jobs] == ["ready GPU:0"] * 2
    assert claims(lease_folder, start.server) == {job.pid: {0: 10.0} for job in jobs}
    third = start(AUTOGPU_NEED="10GiB", AUTOGPU_BUSY="cpu")
    assert third.ready() == "ready CPU:0"
    status, lines = third.end()
    assert (status, third.gpus()) == (0, [])
    assert lines == [
        "autogpu: no GPU for this process, TensorFlow starts on CPU: no GPU has 10.0 GiB left; "
        "policy: AUTOGPU_NEED, AUTOGPU_BUSY",
        "autogpu: GPU 0: 10.0 GiB needed, 4.0 GiB left",
    ]


def test_best_effort_job_claims_nothing_and_is_capped_at_free_memory(host, lease_folder):
    start = host(Gpu(), script=HOLD.replace("(256, 256)", "(1024, 1024, 512)"))
    owner = start()
    owner.ready()
    second = start(AUTOGPU_GROWTH="0", AUTOGPU_WAIT="0")
    assert second.ready() == "ready GPU:0"
    assert claims(lease_folder, start.server) == {owner.pid: {0: 24.0}, second.pid: {0: 0.0}}
    free_before = 24 * GIB - CONTEXT - owner.allocated()
    assert second.allocated() <= free_before - (510 << 20)
    assert "memory limited by other jobs" in second.end()[1][1]


def until_it_waits(waiter):
    while "autogpu: waiting" not in waiter.process.stderr.readline():
        pass
    assert "claimed by train.py" in waiter.process.stderr.readline()


def test_ctrl_c_ends_a_wait_at_once(host):
    start = host(Gpu())
    start().ready()
    waiter = start(AUTOGPU_BUSY="wait")
    until_it_waits(waiter)
    waiter.process.send_signal(signal.SIGINT)
    # Without Ctrl-C the wait would last 30 minutes.
    assert waiter.process.wait(timeout=60) == -signal.SIGINT
    assert waiter.process.stderr.read() == "autogpu: stopped while waiting for a GPU\n"


def test_script_can_catch_ctrl_c_during_a_wait_for_a_gpu(host):
    catches = f"try:\n{textwrap.indent(HOLD, '    ')}\nexcept KeyboardInterrupt:\n    print('caught')\n"
    start = host(Gpu(), script=catches)
    start().ready()
    waiter = start(AUTOGPU_BUSY="wait")
    until_it_waits(waiter)
    waiter.process.send_signal(signal.SIGINT)
    assert waiter.process.wait(timeout=60) == 0
    assert waiter.process.stdout.read() == "caught\n"
    assert waiter.process.stderr.read() == ""


def test_second_wait_of_a_script_prints_its_lines_again(host):
    attempt = f"try:\n{textwrap.indent(HOLD, '    ')}\nexcept KeyboardInterrupt:\n    print('caught', flush=True)\n"
    start = host(Gpu(), script=f"{attempt}{HOLD}")
    start().ready()
    waiter = start(AUTOGPU_BUSY="wait")
    for _ in range(2):
        until_it_waits(waiter)
        waiter.process.send_signal(signal.SIGINT)
    assert waiter.process.wait(timeout=60) == -signal.SIGINT
    assert waiter.process.stderr.read() == "autogpu: stopped while waiting for a GPU\n"


def test_traceback_of_a_refusal_shows_the_script_and_few_autogpu_frames(host):
    start = host(Gpu())
    start().ready()
    refused = start(AUTOGPU_BUSY="error")
    told = refused.process.communicate(timeout=120)[1]
    trace = told[told.rindex("Traceback") :]
    assert refused.process.returncode == 1
    assert "train.py" in trace
    # Each hook adds two lines. The folder of the checkout, in which all environments are, may also be called autogpu.
    assert sum("/site-packages/autogpu/" in line for line in trace.splitlines()) <= 6, trace
    assert trace.splitlines()[-1].endswith(
        '; the script stops because select.busy = "error"; '
        "to wait for one: AUTOGPU_BUSY=wait; to share one: AUTOGPU_BUSY=share"
    )


def test_explicit_choice_of_a_fully_claimed_gpu_works_with_a_limit(host, lease_folder):
    chooses = HOLD.replace(
        "with tf", "tf.config.set_visible_devices(tf.config.list_physical_devices('GPU'), 'GPU')\nwith tf"
    )
    start = host(Gpu(), script=chooses)
    start().ready()
    second = start(AUTOGPU_LIMIT="2GiB", AUTOGPU_WAIT="0")
    assert second.ready() == "ready GPU:0"
    assert claims(lease_folder, start.server)[second.pid] == {0: 0.0}
    status, lines = second.end()
    assert (status, len(lines)) == (0, 2)
    assert "free): the only one here; memory limited to 2048 MiB" in lines[0]
    limited = (
        r"autogpu: memory limited by other jobs to \d+\.\d GiB; no memory is reserved: less than 2.0 GiB was left.*"
    )
    assert re.fullmatch(limited, lines[1]), lines[1]


FRACTION = HOLD.replace(
    "with tf",
    "config = tf.compat.v1.ConfigProto()\n"
    "config.gpu_options.per_process_gpu_memory_fraction = float(sys.argv[1])\n"
    "tf.compat.v1.Session(config=config)\n"
    "with tf",
)


def test_memory_fractions_of_two_scripts_fit_into_one_gpu(host, lease_folder):
    start = host(Gpu(memory="16GiB"), script=FRACTION)
    first, second = [start("0.6", AUTOGPU_LIMIT="2GiB", AUTOGPU_WAIT="0") for _ in range(2)]
    assert [first.ready(), second.ready()] == ["ready GPU:0"] * 2
    claimed = sorted(claims(lease_folder, start.server).values(), key=lambda claim: claim[0])
    assert claimed == [{0: 0.0}, {0: 10.1}]
    ended = [first.end(), second.end()]
    assert [status for status, _ in ended] == [0, 0]
    said = " ".join(line for _, lines in ended for line in lines)
    assert "memory limited by the script to 60% of each GPU" in said
    assert "no memory is reserved: less than 60 % of its memory was left" in said


SPAWN = """
import multiprocessing
import sys

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
    "loky": "import joblib; print(joblib.Parallel(2)(joblib.delayed(work)(n) for n in range(2)))",
}


@pytest.mark.thorough
@pytest.mark.turns(2)
@pytest.mark.parametrize("pool", POOLS)
def test_worker_processes_use_the_gpu_of_their_parents_job(host, pool):
    base = environments.tensorflow()
    python = environments.environment(base.resolve(), ["joblib"], on_top_of=base, with_hook=True)
    start = host(*[Gpu()] * 2, script=SPAWN.format(pool=POOLS[pool]), python=python)
    job = start()
    assert job.ready() == "['GPU:0', 'GPU:0']"
    assert job.end()[0] == 0
    assert {gpu for gpus in start.server.contexts().values() for gpu in gpus} == {1}
