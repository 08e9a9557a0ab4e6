"""Broken and hostile folders: a claim may fail or go without the mutex, but no process hangs or crashes."""

import contextlib
import errno
import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from autogpu.doctor.checks import try_folder
from autogpu.frozen import replace
from autogpu.lease import Fault, Folder, Lease, LeaseProblem, LeaseUnavailable, acquire_lease, locks
from autogpu.lease.folder import FolderOrigin
from autogpu.variables import LEASE_DIR
from tests.lease.conftest import ALICE, holders, lease_text, needs_root, until, waiters
from tests.lease.test_record import GOOD
from tests.support.processes import in_a_fork


def take(*_):
    return {"GPU-0": 1}


@pytest.fixture
def locked(path):
    """Return a function that writes a file into the folder and locks it, as a live process does."""
    descriptors = []

    def locked(name, content):
        descriptors.append(os.open(str(path / name), os.O_RDWR | os.O_CREAT, 0o644))
        locks.own(descriptors[-1])
        os.write(descriptors[-1], content)

    yield locked
    for descriptor in descriptors:
        os.close(descriptor)


@pytest.mark.slow
def test_claim_succeeds_if_the_mutex_is_stuck_and_names_the_mutex_holder(folder, path, start):
    acquire_lease(Lease(folder, "a"), lambda *_: None)
    other = start()
    other.ask("hold_mutex")
    begin = time.monotonic()
    lease = acquire_lease(Lease(folder, "a"), take)
    lease.release()
    assert 1.9 < time.monotonic() - begin < 10
    by = (other.pid, os.geteuid())
    assert lease.problem == LeaseProblem(Fault.MUTEX_HELD, str(path), holder=by, stuck_s=lease.problem.stuck_s)
    assert lease.problem.stuck_s >= 2.0
    other.kill()
    assert acquire_lease(Lease(folder, "a"), take).problem is None


def test_forked_child_does_not_release_its_parents_mutex(folder):
    with contextlib.ExitStack() as held:
        held.enter_context(folder.locked())
        assert in_a_fork(held.close) is None
        with replace(folder, patience_s=0.1).locked() as (_, problem):
            assert problem.holder == (os.getpid(), os.geteuid())


def test_child_forked_while_the_mutex_is_opened_does_not_keep_it(folder, monkeypatch):
    def opened():
        files = list(Path("/proc/self/fd").iterdir())
        return [str(each) for each in files if os.path.lexists(each) and os.readlink(each) == str(folder.path)]

    def fork_and_tell(descriptor, fstat=os.fstat):
        if os.getpid() == pid and opened():
            kept.append(in_a_fork(opened))
        return fstat(descriptor)

    kept, pid = [], os.getpid()
    monkeypatch.setattr(os, "fstat", fork_and_tell)
    with folder.locked():
        monkeypatch.undo()
    # The child has only one descriptor of the folder, the one without a lock.
    assert set(map(len, kept)) == {1}


def test_too_many_locks_hide_the_mutex_holder_but_no_lease(folder, start, monkeypatch):
    start().ask("acquire", free=["GPU-0"])
    # As if /proc/locks listed thousands of locks before this one.
    monkeypatch.setattr(locks, "_MOST_PIECES", 0)
    with folder.locked(), replace(folder, patience_s=0.1).locked() as (_, problem):
        assert (problem.fault, problem.holder) == (Fault.MUTEX_HELD, None)
    assert len(holders(folder)) == 1


def test_ctrl_c_ends_the_wait_for_the_mutex_and_leaves_no_claim(folder, start):
    acquire_lease(Lease(folder, "a"), lambda *_: None)
    impatient, patient = start(), start()
    with folder.locked():
        for waiting in (impatient, patient):
            waiting.tell("acquire", gpus={"GPU-0": 1}, patience_s=20)
            until(lambda: is_open_in(waiting.pid, folder.path))  # noqa: B023
        impatient.kill(signal.SIGINT)
        assert impatient.hear() == {"error": "KeyboardInterrupt"}
        assert holders(folder) == ()
    assert patient.hear()["claims"] == {"GPU-0": 1}
    assert impatient.ask("acquire", gpus={"GPU-1": 1})["claims"] == {"GPU-1": 1}


def is_open_in(pid, file):
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            if link.stat().st_ino == file.stat().st_ino:
                return True
        except OSError:
            pass
    return False


# test_record.py tests other unreadable texts as plain bytes.
@pytest.mark.parametrize(
    "content", [b"", b"[" * 60000, lease_text({"GPU-0": 8}).ljust(100_000)], ids=["empty", "brackets", "long"]
)
def test_a_locked_lease_that_can_not_be_read_is_a_holder_without_claims(folder, locked, content):
    locked("job.1.2.00000000", content)
    (seen,) = holders(folder)
    assert (seen.claims, seen.pid, seen.script) == ({}, None, "")
    assert seen.uid == os.geteuid()
    acquire_lease(Lease(folder, "a"), take).release()


def test_files_with_other_names_are_ignored_and_kept(folder, path, locked):
    good = json.dumps(GOOD).encode()
    names = ["job", "job.1.2", "job.1.2.ABCDEF01", "job.1.2.abcdef012", "job.x.2.abcdef01", "job.1.2.abcdef01~"]
    names += ["wait.1.2.3", "wait.00000000001.2.abcdef01", "wait.1.2", "job.\u0661.2.abcdef01", "README", ".git"]
    for name in names:
        locked(name, good)
    (path / "jobs").mkdir()
    assert (holders(folder), waiters(folder)) == ((), ())
    acquire_lease(Lease(folder, "a"), take).release()
    assert len(list(path.iterdir())) == len(names) + 1


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(os.mkfifo, id="fifo"),
        pytest.param(os.mkdir, id="folder"),
        pytest.param(lambda place: Path(place).symlink_to("elsewhere"), id="link"),
    ],
)
def test_special_file_with_a_leases_name_is_ignored_and_kept(folder, path, locked, make):
    place = str(path / "job.1.2.00000000")
    locked("elsewhere", json.dumps(GOOD).encode())
    make(place)
    assert holders(folder) == ()
    acquire_lease(Lease(folder, "a"), take).release()
    assert os.path.lexists(place)


def test_many_long_texts_cost_a_claim_little_time(folder, locked):
    for number in range(100):
        locked(f"job.1.2.{number:08x}", b'{"a":"' + b"[]" * 32000)
    # CPU time, because other processes use the processors, too. Parsing in quadratic time would take hours.
    begin = time.process_time()
    acquire_lease(Lease(folder, "a"), take).release()
    assert len(holders(folder)) == 100
    assert time.process_time() - begin < 10


@needs_root
def test_long_files_of_one_user_hide_no_claim_of_another(folder, locked, path):
    # Several leases: whatever order the file system lists them in, some come after the flood.
    leases = [acquire_lease(Lease(folder, "a"), take) for _ in range(20)]
    # If all users shared one budget of bytes, files of so many sizes would use it up to its last bytes.
    sizes = [size for power in range(5, 16) for size in [2 << power] * 20]
    for number, size in enumerate(sizes):
        name = f"job.1.2.{number:08x}"
        locked(name, b'{"a":"' + b"x" * (size - 8) + b'"}')
        os.chown(str(path / name), ALICE, ALICE)
    mine = [holder for holder in holders(folder) if holder.uid == os.geteuid()]
    assert [holder.claims for holder in mine] == [{"GPU-0": 1}] * 20
    for lease in leases:
        lease.release()


def mount(*options):
    done = subprocess.run(["mount", *options], stderr=subprocess.PIPE, text=True, timeout=10, check=False)
    if done.returncode:
        pytest.skip(f"nothing can be mounted: {done.stderr.strip()}")


@needs_root
def test_full_file_system_is_reported_and_no_partial_lease_is_left(path):
    small = path / "small"
    small.mkdir()
    mount("-t", "tmpfs", "-o", "size=64k,mode=1777", "none", str(small))
    try:
        folder = Folder(small, FolderOrigin.ENVIRONMENT, 0)
        held = acquire_lease(Lease(folder, "a"), lambda *_: {"GPU-0": 1})
        with pytest.raises(OSError), (small / "filler").open("wb", buffering=0) as filler:
            while True:
                filler.write(b"x" * 4096)

        with pytest.raises(LeaseUnavailable) as caught:
            acquire_lease(Lease(folder, "a"), lambda *_: {"GPU-1": 1})
        problem = LeaseProblem(Fault.UNUSABLE, str(small), os.strerror(errno.ENOSPC), errno.ENOSPC)
        assert caught.value.problem == problem
        assert try_folder({LEASE_DIR: str(small)})[1] == problem
        assert [holder.claims for holder in holders(folder)] == [{"GPU-0": 1}]
        assert held.claims == {"GPU-0": 1}
        assert sorted(found.name for found in small.iterdir()) == ["filler", held.name]
        held.release()
    finally:
        subprocess.run(["umount", str(small)], timeout=10, check=True)


@needs_root
def test_read_only_file_system_is_reported(folder, path, start):
    for options in (["--bind"], ["-o", "remount,bind,ro"]):
        mount(*options, str(path), str(path))
    try:
        told = start().ask("acquire", gpus={"GPU-0": 1})
    finally:
        subprocess.run(["umount", "--lazy", str(path)], timeout=10, check=True)
    assert told["error"] == "LeaseUnavailable"
    assert (told["fault"], told["number"]) == ("UNUSABLE", errno.EROFS)
