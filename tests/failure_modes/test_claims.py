"""Failure modes of jobs that want the same GPUs."""

import json
import os
import signal

import pytest

from tests.failure_modes.holding import COMPUTE
from tests.gpusim import Gpu
from tests.support.containers import CONTAINER, NO_NAMESPACES, SHARED
from tests.support.holders import let_age
from tests.support.live_jobs import claims, leases

pytestmark = pytest.mark.timeout(600)


@pytest.mark.tensorflow
def test_01_jobs_started_in_the_same_second_get_different_gpus(host, lease_folder):
    start = host(*[Gpu()] * 3)
    jobs = [start() for _ in range(3)]
    assert [job.ready() for job in jobs] == ["ready GPU:0"] * 3
    assert sorted(gpu for job in jobs for gpu in job.gpus()) == [0, 1, 2]
    assert claims(lease_folder, start.server) == {job.pid: {job.gpus()[0]: 24.0} for job in jobs}
    for job in jobs:
        assert job.end()[0] == 0
    assert leases(lease_folder) == {}


def test_02_one_of_two_jobs_gets_all_its_gpus_and_the_other_waits(lab):
    autogpu = lab(*[Gpu()] * 4)
    both = [autogpu.hold("--count", "3", "--busy", "wait") for _ in range(2)]
    # Each job prints one line. The waiter's line contains "waiting".
    said = [holder.line("stderr") for holder in both]
    assert sorted("waiting" in line for line in said) == [False, True], said
    waiter = both[["waiting" in line for line in said].index(True)]
    (holder,) = (each for each in both if each is not waiter)
    had = holder.gpus()
    assert (len(had), sorted(autogpu.jobs())) == (3, sorted(had))
    assert holder.end()[0] == 0
    assert len(waiter.gpus()) == 3


@pytest.mark.tensorflow
def test_03_killed_holder_gives_its_gpu_to_the_waiter(host, lease_folder):
    start = host(Gpu())
    holder = start()
    holder.ready()
    waiter = start(AUTOGPU_BUSY="wait")
    while "autogpu: waiting" not in waiter.process.stderr.readline():
        pass
    assert f"train.py (pid {holder.pid})" in waiter.process.stderr.readline()
    impatient = start(AUTOGPU_BUSY="cpu")
    assert impatient.ready() == "ready CPU:0"
    holder.process.send_signal(signal.SIGKILL)
    holder.process.wait(timeout=30)
    assert waiter.ready() == "ready GPU:0"
    assert claims(lease_folder, start.server) == {waiter.pid: {0: 24.0}}


def test_04_lease_of_a_reused_pid_holds_no_gpu(lab, lease_folder):
    autogpu = lab(Gpu(), Gpu())
    holder = autogpu.hold()
    assert holder.gpus() == [1]
    (file,) = lease_folder.glob("job.*")
    text = file.read_text()
    assert json.loads(text)["pid"] == holder.process.pid
    holder.end()
    # A crash of the whole machine leaves the lease. After the boot another process has its pid.
    file.write_text(text.replace(str(holder.process.pid), str(os.getpid())))
    assert autogpu.jobs() == {}
    assert autogpu.pick() == [1]


@pytest.mark.skipif(bool(NO_NAMESPACES), reason=NO_NAMESPACES)
def test_04_holder_in_another_pid_namespace_keeps_its_gpu(lab):
    autogpu = lab(Gpu(), Gpu())
    assert autogpu.hold(prefix=[*CONTAINER, SHARED, "sh"]).gpus() == [1]
    # The lease has the pid inside the container, 1. Outside, another process has this pid.
    assert autogpu.jobs() == {1: [1]}
    assert autogpu.hold().gpus() == [0]


@pytest.mark.tensorflow
@pytest.mark.parametrize(
    ("busy", "status", "contexts", "said"),
    [
        ("share", 0, [0], "memory limited by other jobs"),
        ("cpu", 0, [], "TensorFlow starts on CPU: no GPU is free; policy: "),
        ("error", 1, [], "NoEligibleDevice: no GPU is free; GPU 0: claimed by sh "),
        ("wait", 75, [], "autogpu: gave up after 0 s at place 1; to wait longer: AUTOGPU_WAIT=1h; "),
    ],
)
def test_25_policy_decides_what_happens_if_all_gpus_are_busy(train, commands, busy, status, contexts, said):
    run = train(Gpu())
    assert commands(run.server).hold().gpus() == [0]
    script = "import tensorflow as tf\ntf.random.uniform((2, 2))\n"
    ran = run(script, exit_status=status, AUTOGPU_BUSY=busy, AUTOGPU_WAIT="0")
    assert ran.contexts == contexts
    assert said in ran.stderr, ran.stderr


@pytest.mark.slow
def test_25_two_waiters_join_a_busy_gpu_one_minute_apart(lab, lease_folder):
    autogpu = lab(Gpu())
    assert autogpu.hold(program=COMPUTE).gpus() == [0]
    first = autogpu.hold(program=COMPUTE)
    line = first.line("stderr")
    assert line.startswith("autogpu: waiting for a GPU, place 1 in the queue, waited 0 s of 30 min: no GPU is free"), (
        line
    )
    line = first.line("stderr")
    assert line.startswith("autogpu: shares a GPU whose jobs have run 1 min ") and "to start now: --wait 0" in line
    second = autogpu.hold(program=COMPUTE)
    assert "place 2 in the queue" in second.line("stderr")
    assert autogpu.pick() == []

    let_age(lease_folder, 60)
    assert first.gpus() == [0]
    assert autogpu.pick("--wait", "0") == [0]
    # The second job still waits, because the first one has just started.
    assert len(list(lease_folder.glob("wait.*"))) == 1
    let_age(lease_folder, 60)
    assert second.gpus() == [0]
    assert autogpu.pick() == []


@pytest.mark.slow
def test_26_waiter_prints_the_holder_at_once_and_gives_up_in_time(lab):
    autogpu = lab(Gpu())
    assert autogpu.hold().gpus() == [0]
    waiter = autogpu.hold("--busy", "wait", "--wait", "2s")
    line = waiter.line("stderr")
    assert line.startswith("autogpu: waiting for a GPU, place 1 in the queue, waited 0 s of 2 s: "), line
    assert "claimed by sh" in waiter.line("stderr")
    status, errors = waiter.end()
    assert (status, "autogpu: " in errors) == (75, True), errors


@pytest.mark.tensorflow
def test_28_unused_memory_of_a_growing_job_stays_claimed(host, commands):
    start = host(Gpu())
    job = start()
    assert job.ready() == "ready GPU:0"
    autogpu = commands(start.server)
    (gpu,) = autogpu.status()["gpus"]
    # Nearly all memory is free, but the job has claimed all of it.
    assert gpu["memory_used_bytes"] < 1 << 30
    assert [each["claim_bytes"] for each in gpu["jobs"]] == [gpu["memory_total_bytes"]]
    assert autogpu.pick("--busy", "error") == []
    assert autogpu.pick("--busy", "error", "--need", "1GiB") == []
