"""A process belongs to the job of an ancestor, or to the job whose lease file the process keeps open."""

import os
import signal
import subprocess
import sys
import time

import pytest

from autogpu import process
from autogpu.frozen import replace
from autogpu.lease import Processes, ProcessTable, processes_of, snapshot
from autogpu.process import start_time
from autogpu.variables import LEASE_DIR
from tests.lease.conftest import ALICE, BOB, needs_root

# Claims a GPU and starts a shell, which starts another program and prints both pids.
HOLDER = """
import os, subprocess, sys
from autogpu.lease import Lease, acquire_lease, find_folder
held = acquire_lease(Lease(find_folder(os.environ), "a.py"), lambda *_: {"GPU-0": 1})
if sys.argv[1:]:
    held.leave_to_programs()
command = ["sh", "-c", "sleep 600 & echo $$ $!; wait"]
subprocess.Popen(command, close_fds=False, stdin=subprocess.DEVNULL).wait()
"""
GONE = (1 << 22) + 1  # above the largest pid that Linux allows


@pytest.fixture
def job(folder):
    """Return a function that starts a job and returns its holder (a Popen) and the pids below it, nearest first."""
    started, below = [], []

    def job(*options):
        environ = {**os.environ, LEASE_DIR: str(folder.path)}
        command = [sys.executable, "-c", HOLDER, *options]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environ))
        below.extend(map(int, started[-1].stdout.readline().split()))
        return (started[-1], *below)

    yield job
    for pid in below:
        os.kill(pid, signal.SIGKILL)
    for each in started:
        each.kill()
        each.communicate(timeout=60)


def found(folder, *listed, **options):
    (holder,) = snapshot(folder).holders
    return processes_of([holder], listed, **options).of(holder)


def test_only_a_holder_and_processes_below_it_belong_to_its_job(folder, job):
    holder, shell, program = job()
    assert found(folder, program, os.getpid(), GONE) == (holder.pid, program)
    assert found(folder, shell, program) == (holder.pid, shell, program)
    # The holder belongs to its job from the claim on, before the driver lists any process of the job.
    assert (found(folder), found(folder, is_complete=True)) == ((holder.pid,), (holder.pid,))


def test_table_looks_each_process_up_once_for_all_sets_of_holders(folder, job, monkeypatch):
    holder, _, program = job()
    (lease,) = snapshot(folder).holders
    table = ProcessTable([program])
    assert table.of([lease]).of(lease) == (holder.pid, program)
    monkeypatch.setattr(process, "with_ancestors", lambda pid: 1 / 0)
    other = replace(lease, name="job.0.1.00000000", pid=GONE)
    assert table.of([lease, other]).of(lease) == (holder.pid, program)


def test_thousand_unlisted_holders_cost_at_most_16_lookups(folder, job, monkeypatch):
    job()
    (lease,) = snapshot(folder).holders
    holders, looks = [replace(lease, name=f"job.0.1.{number:08x}") for number in range(1000)], []
    monkeypatch.setattr(process, "start_time", looks.append)
    assert set(processes_of(holders, []).of_lease.values()) == {()}
    assert 0 < len(looks) <= 16


@pytest.mark.parametrize("is_left", [True, False], ids=["programs-keep-lease", "programs-drop-lease"])
def test_job_of_an_ended_holder_has_the_processes_that_keep_its_lease(folder, job, is_left):
    holder, shell, program = job(*["left"] * is_left)
    (lease,) = snapshot(folder).holders
    holder.kill()
    holder.wait(60)
    of_job = processes_of([lease], [program]).of(lease)
    assert of_job == ((program,) if is_left else ())
    assert processes_of([lease], [program], is_complete=True).of(lease) == ((shell, program) if is_left else ())


def test_a_process_that_only_reads_a_lease_does_not_keep_it(folder, job):
    # The reader starts first. If it counted, it would be found as the oldest process that keeps the lease.
    command = ["sh", "-c", 'read path; exec 3< "$path"; echo; exec sleep 600']
    reader = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    time.sleep(0.02)  # more than a tick, the unit of start times
    holder, shell, program = job("left")
    (lease,) = snapshot(folder).holders
    try:
        print(folder.path / lease.name, file=reader.stdin, flush=True)
        reader.stdout.readline()
        holder.kill()
        holder.wait(60)
        assert processes_of([lease], [program], is_complete=True).of(lease) == (shell, program)
    finally:
        reader.kill()
        reader.communicate(timeout=60)


def test_lease_with_a_wrong_pid_start_or_namespace_has_no_processes(folder, job):
    program = job()[-1]
    lease = replace(snapshot(folder).holders[0], name="job.0.1.00000000")  # no process has this file open
    assert len(processes_of([lease], [program]).of(lease)) == 2
    for wrong in ({"start_time": 1}, {"pid_namespace": "pid:[1]"}, {"pid_namespace": None}, {"pid": program}):
        assert processes_of([replace(lease, **wrong)], [program], is_complete=True).of(lease) == (), wrong
    assert processes_of([], [program]) == Processes({})


@needs_root
@pytest.mark.parametrize(
    ("uid", "is_of_job"), [(ALICE, False), (BOB, False), (0, True)], ids=["alices-lease", "bobs-lease", "roots-lease"]
)
def test_lease_with_a_pid_of_root_counts_only_if_root_owns_the_lease(folder, job, uid, is_of_job):
    job()
    lease = replace(snapshot(folder).holders[0], name="job.0.1.00000000", uid=uid)
    lease = replace(lease, pid=os.getpid(), start_time=start_time())
    alices = subprocess.Popen(["sleep", "600"], preexec_fn=lambda: os.setuid(ALICE))
    try:
        found = processes_of([lease], [os.getpid(), alices.pid]).of(lease)
        assert found == ((os.getpid(), alices.pid) if is_of_job else ())
    finally:
        alices.kill()
        alices.wait(60)


@needs_root
def test_lease_with_another_users_pid_takes_no_process_of_that_users_job(folder, job):
    holder, *_ = job()
    (own,) = snapshot(folder).holders
    planted = replace(own, name="job.1002.1.00000000", uid=BOB, claims={}, since_s=(own.since_s or 0.0) + 1)
    for leases in ([own, planted], [planted, own]):
        assert processes_of(leases, [holder.pid]).of(own) == (holder.pid,)
