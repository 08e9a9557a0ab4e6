"""Claims of real processes. Others see a claim until it is released or the last process that keeps it has ended."""

import os
import random
import signal
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from autogpu.caps import Cap, CapCause
from autogpu.frozen import replace
from autogpu.lease import Lease, Terms, acquire_lease, choose_and_lease
from tests.conftest import each_python
from tests.lease.choosers import free, promised
from tests.lease.conftest import TIMEOUT_S, holders, until
from tests.support import environments
from tests.support.processes import in_a_fork
from tests.support.signals import raise_in_signal_handler


def take(holders, waiters):
    return {"GPU-0": 1}


def test_claim_is_visible_to_others_until_it_is_released(folder, start):
    other = start()
    lease = acquire_lease(Lease(folder, "/home/me/train.py"), lambda *_: {"GPU-0": 5})

    (seen,) = other.ask("holders")["holders"]

    process = {"uid": os.geteuid(), "pid": os.getpid(), "pid_here": os.getpid(), "is_mine": False}
    assert seen == {**process, "name": lease.name, "claims": {"GPU-0": 5}, "script": "train.py"}
    assert [holder.is_mine for holder in holders(folder)] == [True]
    lease.release()
    lease.release()
    assert other.ask("holders")["holders"] == []


def test_exception_in_choose_propagates_and_frees_the_mutex(folder):
    for error in (TimeoutError("by a signal"), TimeoutError(110, "by a signal"), KeyboardInterrupt(), ValueError("x")):

        def choose(holders, waiters, error=error):
            if isinstance(error, TimeoutError):
                raise_in_signal_handler(error)
            raise error

        with pytest.raises(type(error)) as caught:
            acquire_lease(Lease(folder, "a"), choose)
        assert caught.value is error
    assert acquire_lease(Lease(folder, "a"), lambda *_: None) is None


def test_lease_file_is_readable_by_all_and_writable_by_its_owner_only(folder):
    lease = acquire_lease(Lease(folder, "a"), lambda *_: {"GPU-0": 5})
    mode = (folder.path / lease.name).stat().st_mode
    lease.release()
    assert stat.S_IMODE(mode) & 0o777 == 0o644
    # Without the sticky bit systemd-tmpfiles would remove the lease of a job that has run for a month.
    assert mode & stat.S_ISVTX


def test_killed_holder_frees_its_gpu_and_next_claim_removes_its_file(folder, start, path):
    killed, other = start(), start()
    assert killed.ask("acquire", free=["GPU-0"])["claims"] == {"GPU-0": 1}
    assert other.ask("acquire", free=["GPU-0"])["claims"] is None
    killed.kill()
    assert holders(folder) == ()
    assert len(list(path.glob("job.*"))) == 1
    acquire_lease(Lease(folder, "a"), lambda *_: None)
    assert list(path.glob("job.*")) == []
    assert other.ask("acquire", free=["GPU-0"])["claims"] == {"GPU-0": 1}


def test_lease_without_a_lock_as_after_a_reboot_is_dead(folder, path):
    name = f"job.{os.geteuid()}.{os.getpid()}.00000000"
    live = acquire_lease(Lease(folder, "a"), take)
    (path / name).write_bytes((path / live.name).read_bytes())
    assert [holder.name for holder in holders(folder)] == [live.name]
    live.release()


@pytest.mark.parametrize("version", each_python())
def test_each_supported_python_claims_and_reads_leases(folder, start, version):
    worker = start(python=environments.interpreter(version))
    assert worker.ask("acquire", gpus={"GPU-0": 3})["claims"] == {"GPU-0": 3}
    (seen,) = holders(folder)
    assert (seen.claims, seen.pid_here, seen.pid) == ({"GPU-0": 3}, worker.pid, worker.pid)
    assert worker.ask("holders")["holders"][0]["claims"] == {"GPU-0": 3}


def test_threads_of_one_process_exclude_each_other(folder):
    uuids = [f"GPU-{number}" for number in range(8)]
    with ThreadPoolExecutor(8) as threads:
        leases = list(threads.map(lambda _: acquire_lease(Lease(folder, "a"), free(uuids, 1)), uuids))
    assert sorted(uuid for lease in leases for uuid in lease.claims) == uuids
    for lease in leases:
        lease.release()


def test_simultaneous_claims_overbook_no_gpu_and_end_with_their_processes(folder, start):
    totals = {f"GPU-{number}": 24 for number in range(4)}
    crowd, other = start(), start()
    told = crowd.ask("crowd", count=40, totals=totals, size=8)["told"]
    assert [one["problem"] for one in told] == [None] * 40
    assert [one["claims"] is None for one in told].count(False) == 12
    assert promised(holders(folder)) == totals
    assert other.ask("acquire", totals=totals, size=8)["claims"] is None
    crowd.ask("reap", children=[holder.pid for holder in holders(folder)][:6])
    assert sum(promised(holders(folder)).values()) == 6 * 8
    assert other.ask("acquire", totals=totals, size=8)["claims"]


def test_forked_child_keeps_the_claim_alive_and_can_not_release_it(folder, start):
    worker = start()
    worker.ask("acquire", gpus={"GPU-0": 1})
    one, other = (worker.ask("fork") for _ in range(2))
    assert one["mine"] == other["mine"] == [False]
    assert [holder.claims for holder in holders(folder)] == [{"GPU-0": 1}]
    worker.ask("reap", children=[one["child"]])
    assert [holder.claims for holder in holders(folder)] == [{"GPU-0": 1}]
    worker.kill()
    (seen,) = holders(folder)
    assert (seen.claims, seen.pid, seen.pid_here) == ({"GPU-0": 1}, worker.pid, None)
    os.kill(other["child"], signal.SIGKILL)
    until(lambda: holders(folder) == ())


def test_exec_ends_the_claim_and_the_program_has_no_parent_lease(folder, start):
    worker = start()
    worker.ask("acquire", gpus={"GPU-0": 1})
    worker.tell("exec")
    told = worker.hear()
    assert told == {"holders": [], "parent": False}
    assert worker.hear()["pid"] == worker.pid
    assert holders(folder) == ()


def test_closing_all_files_ends_the_claim_and_release_closes_no_new_file(folder, start):
    worker = start()
    worker.ask("acquire", gpus={"GPU-0": 1})
    assert worker.ask("close_everything") == {"still_open": 8}
    assert holders(folder) == ()


def test_lease_file_never_becomes_a_standard_stream(folder):
    def claim_without_them():
        os.closerange(0, 3)
        lease = acquire_lease(Lease(folder, "a"), take)
        return lease.name == holders(folder)[0].name, [
            number for number in range(3) if Path(f"/proc/self/fd/{number}").exists()
        ]

    assert in_a_fork(claim_without_them) == (True, [])


@pytest.mark.parametrize(
    ("by", "finish"),
    [
        pytest.param("python", True, id="fork-by-python"),
        pytest.param("a-library", True, id="fork-by-a-library-without-python-hooks"),
        pytest.param("python", False, id="parent-killed-while-it-holds-the-mutex"),
    ],
)
def test_child_forked_while_a_thread_chooses_does_not_keep_the_mutex(start, by, finish):
    worker, other = start(), start()
    worker.ask("fork_while_choosing", finish=finish, by=by)
    if not finish:
        worker.kill()
    told = other.ask("acquire", gpus={"GPU-1": 1}, patience_s=0.2)
    assert (told["claims"], told["problem"]) == ({"GPU-1": 1}, None)


def test_claiming_does_not_disturb_the_random_numbers_of_a_script(folder, start):
    start().ask("acquire", gpus={"GPU-0": 1})
    holding = start()
    holding.ask("hold_mutex")
    random.seed(1)
    before = random.getstate()
    lease = acquire_lease(Lease(replace(folder, patience_s=0.05), "a"), lambda *_: {"GPU-1": 1})
    lease.release()
    assert lease.problem is not None
    assert random.getstate() == before


# A script whose clocks stand still, as in a test that freezes time.
STILL = """
import sys, time
time.time = lambda: 1325376000.0
time.monotonic = time.perf_counter = lambda: 1000.0
from pathlib import Path
from autogpu.lease import Folder, Lease, acquire_lease
from autogpu.lease.folder import FolderOrigin
path = Path(sys.argv[1])
folder = Folder(path, FolderOrigin.ENVIRONMENT, path.stat().st_uid)
lease = acquire_lease(Lease(folder, "a.py"), lambda *_: {"GPU-0": 1})
print(dict(lease.claims), lease.problem.fault.name, round(lease.problem.stuck_s))
"""


@pytest.mark.slow
def test_a_clock_that_stands_still_does_not_stop_a_claim(folder):
    with folder.locked():
        command = [sys.executable, "-c", STILL, str(folder.path)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert (done.stdout, done.stderr) == ("{'GPU-0': 1} MUTEX_HELD 2\n", "")


def test_prepare_runs_before_the_mutex_is_taken(folder):
    problems = []

    def prepare(holders):
        # If ``choose_and_lease`` held the mutex now, ``locked`` would yield a problem after ``patience_s``.
        with folder.locked() as (_, problem):
            problems.append(problem)

    choose_and_lease(Lease(replace(folder, patience_s=0.05), "a"), lambda *_: (None, None), prepare)
    assert problems == [None]


def test_cap_is_chosen_again_if_a_rival_claims_without_the_mutex(folder, start):
    rival = start()
    caps = {0: Cap(8, CapCause.SHARED), 1: Cap(2, CapCause.SHARED)}

    def choose(holders, waiters):
        if not rivals:
            rivals.append(rival.ask("acquire", gpus={"GPU-0": 0}, patience_s=0.05))
        return None, Terms({"GPU-0": 0}, {"GPU-0": caps[len(holders)]})

    rivals: list[dict[str, object]] = []
    lease = Lease(folder, "a")
    choose_and_lease(lease, choose)
    assert lease.terms.caps == {"GPU-0": caps[1]}
