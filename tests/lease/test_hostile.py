"""What other users plant, lock or flood costs their own claims; what can't be told from here is alive."""

import errno
import fcntl
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from autogpu import process, users
from autogpu.lease import LeaseUnavailable
from tests.lease.choosers import promised
from tests.lease.conftest import ALICE, BOB, holders, needs_root, until, waiters
from tests.lease.test_broken import mount


@pytest.fixture(params=["plain", "overlay"])
def on_any(request, path):
    """The lease folder, also on an overlay file system, as containers have it."""
    if request.param == "plain":
        yield path
        return
    layers = [path.parent / name for name in ("lower", "upper", "work")]
    for layer in layers:
        layer.mkdir()
        layer.chmod(0o1777)
    options = ",".join(f"{option}={layer}" for option, layer in zip(("lowerdir", "upperdir", "workdir"), layers))
    mount("-t", "overlay", "-o", options, "overlay", str(path))
    yield path
    subprocess.run(["umount", "--lazy", str(path)], timeout=10, check=True)


@needs_root
def test_a_dead_jobs_lease_is_not_kept_by_who_waited_for_its_lock(on_any, folder, start):
    alice, bob, waiting = start("--uid", str(ALICE)), start("--uid", str(BOB)), start("--uid", str(ALICE))
    alice.ask("acquire", free=["GPU-0"])
    waiting.wait_in_line(free=["GPU-0"])
    for each in (*holders(folder), *waiters(folder)):
        bob.ask("wait_for_lock", name=each.name)
    # Nor does a ticket stand for who waited for its lock.
    waiting.kill()
    until(lambda: waiters(folder) == ())
    alice.kill()
    until(lambda: holders(folder) == ())
    assert start().ask("acquire", free=["GPU-0"])["claims"] == {"GPU-0": 1}


LAST_PID = Path("/proc/sys/kernel/ns_last_pid")


@needs_root
@pytest.mark.xdist_group("pids")
@pytest.mark.skipif(not os.access(str(LAST_PID), os.W_OK), reason="no process can be given a certain pid here")
def test_a_dead_jobs_lease_is_not_kept_by_another_users_process_that_has_got_its_pid(on_any, folder, start):
    alice = start("--uid", str(ALICE))
    alice.ask("acquire", free=["GPU-0"])
    (lease,) = holders(folder)
    alice.kill()
    reading, writing = os.pipe()
    for _ in range(1000):
        LAST_PID.write_text(str(lease.pid - 1))
        child = os.fork()
        if child == 0:
            if os.getpid() != lease.pid:
                os._exit(0)
            os.setuid(BOB)
            descriptor = os.open(str(on_any / lease.name), os.O_RDONLY)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            fcntl.lockf(descriptor, fcntl.LOCK_SH)
            os.write(writing, b".")
            signal.pause()
        if child == lease.pid:
            break
        os.waitpid(child, 0)
    try:
        assert child == lease.pid, "the pid is in use"
        assert os.read(reading, 1) == b"."
        assert holders(folder) == ()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(reading)
        os.close(writing)


@needs_root
@pytest.mark.thorough
def test_planted_names_keep_no_user_from_the_queue(folder, start):
    alice, bob, holder = start("--uid", str(ALICE)), start("--uid", str(BOB)), start()
    holder.ask("acquire", free=["GPU-0"])
    names = [f"wait.{place:010d}.{BOB}.{bob.pid}" for place in range(1, 1000)]
    alice.ask("plant", names=[*names, *(f".{name}" for name in names)])
    bob.wait_in_line(free=["GPU-0"])
    holder.kill()
    assert bob.result() == {"claims": {"GPU-0": 1}}


@needs_root
@pytest.mark.thorough
def test_a_flood_of_files_hides_no_claim_of_another_user(folder, start):
    alice, bob = start("--uid", str(ALICE)), start("--uid", str(BOB))
    # Before and after, since a file system lists them in whatever order; by users, since root would tidy up.
    claims = {"gpus": {"GPU-0": 1}}
    before = [bob.ask("acquire", **claims)["claims"] for _ in range(5)]
    alice.ask("plant", names=[f"job.1.2.{number:08x}" for number in range(6000)])
    alice.ask("plant", names=[f"anything{number}" for number in range(6000)])
    after = [bob.ask("acquire", **claims)["claims"] for _ in range(5)]
    assert before == after == [{"GPU-0": 1}] * 5
    assert promised(holders(folder)) == {"GPU-0": 10}
    assert bob.ask("acquire", free=["GPU-0", "GPU-1"])["claims"] == {"GPU-1": 1}


@needs_root
@pytest.mark.thorough
def test_names_that_others_give_to_a_lease_are_not_at_its_owners_expense(folder, path, start):
    alice = start("--uid", str(ALICE))
    for _ in range(5):
        alice.ask("acquire", gpus={"GPU-0": 1})
    first, *_ = holders(folder)
    for number in range(5000):
        os.link(str(path / first.name), str(path / f"job.9.9.{number:08x}"))
    assert promised(holders(folder)) == {"GPU-0": 5}


@needs_root
@pytest.mark.parametrize("options", [[], ["--mount-proc"]], ids=["the-parents-proc", "its-own-proc"])
def test_claims_of_another_pid_namespace_are_alive_whichever_proc_is_mounted(folder, start, options):
    prefix = ("unshare", "--pid", "--fork", "--kill-child", *options)
    try:
        inside = start(prefix=prefix)
    except AssertionError as error:
        pytest.skip(f"no pid namespace can be made: {error}")
    assert inside.ask("acquire", free=["GPU-0"])["claims"] == {"GPU-0": 1}
    (seen,) = holders(folder)
    assert (seen.claims, seen.pid, seen.pid_here) == ({"GPU-0": 1}, 1, None)
    assert seen.pid_namespace not in (None, process.pid_namespace())
    # Seen from inside as well, where /proc may count pids as another namespace does.
    assert [holder["claims"] for holder in inside.ask("holders")["holders"]] == [{"GPU-0": 1}]
    assert start().ask("acquire", free=["GPU-0"])["claims"] is None


# How many files are opened to see who holds what.
LOOK = """
import os, sys
from pathlib import Path
from autogpu.lease import Folder, snapshot
opened, really_open = [], os.open
os.open = lambda name, *options, **more: opened.append(name) or really_open(name, *options, **more)
print(len(snapshot(Folder(Path(sys.argv[1]), "", 0)).holders), len(opened) - 1)
"""


@needs_root
@pytest.mark.thorough
def test_in_a_user_namespace_a_flood_is_that_of_one_user_of_whom_the_newest_files_are_read(path, start):
    alice, bob = start("--uid", str(ALICE)), start("--uid", str(BOB))
    alice.ask("plant", names=[f"wait.{number:010d}.2.{number:08x}" for number in range(20000)])
    for _ in range(5):
        bob.ask("acquire", gpus={"GPU-0": 1})
    command = ["unshare", "--user", sys.executable, "-c", LOOK, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode and "unshare" in done.stderr:
        pytest.skip(f"no user namespace can be made: {done.stderr.strip()}")
    assert (done.stdout, done.stderr) == ("5 4096\n", "")


FIRST_SUBORDINATE = 200000


@needs_root
@pytest.mark.thorough
@pytest.mark.parametrize("are_known", [True, False], ids=["of-one-user", "of-unknown-users"])
def test_a_user_with_many_uids_costs_no_more_than_one_and_holds_as_one(folder, path, start, monkeypatch, are_known):
    ids = path.parent / "subuid"
    ids.write_text(f"# name:first:count\nnobody-at-all:1:x\n{ALICE}:{FIRST_SUBORDINATE}:65536\n" * are_known)
    monkeypatch.setattr(users, "SUBORDINATE_IDS", ids)
    monkeypatch.setattr(users, "_subordinate_ids", None)
    monkeypatch.setattr(users, "_users", {})
    bob = start("--uid", str(BOB))
    for _ in range(5):
        bob.ask("acquire", gpus={"GPU-0": 1})
    for number in range(32):
        start("--uid", str(FIRST_SUBORDINATE + number)).ask(
            "plant", names=[f"job.{number}.2.{file:08x}" for file in range(number * 1000, number * 1000 + 300)]
        )
    held = start("--uid", str(FIRST_SUBORDINATE)).ask("acquire", gpus={"GPU-1": 1})
    assert held["claims"] == {"GPU-1": 1}
    opened, really_open = [], os.open
    with monkeypatch.context() as counted:
        counted.setattr(os, "open", lambda name, *how, **more: opened.append(name) or really_open(name, *how, **more))
        seen = holders(folder)
    owners = [holder.uid for holder in seen]
    assert (owners.count(BOB), owners.count(ALICE if are_known else FIRST_SUBORDINATE), len(owners)) == (5, 1, 6)
    assert len(opened) <= (4096 if are_known else 8192) + 10


@needs_root
def test_ten_thousand_unknown_users_hide_no_claim(folder, path, start):
    bob = start("--uid", str(BOB))
    for _ in range(5):
        bob.ask("acquire", gpus={"GPU-0": 1})
    for number in range(10_000):
        file = path / f"job.{number}.2.{number:08x}"
        file.touch()
        os.chown(file, FIRST_SUBORDINATE + number, -1)
    assert [holder.claims for holder in holders(folder)] == [{"GPU-0": 1}] * 5


def test_a_process_that_may_open_no_more_files_takes_nobody_for_dead(folder, start):
    start().ask("acquire", free=["GPU-0"])
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 256), hard))
    kept = []
    try:
        with pytest.raises(OSError, match="Too many"):
            while True:
                kept.append(os.open("/dev/null", os.O_RDONLY))
        os.close(kept.pop())  # for the folder
        with pytest.raises(LeaseUnavailable) as caught:
            holders(folder)
        assert caught.value.problem.number == errno.EMFILE
    finally:
        for descriptor in kept:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert len(holders(folder)) == 1


@needs_root
def test_who_plants_places_before_others_is_served_after_them(folder, start):
    """Whatever numbers stand in the names; as another user, who can have no earlier time on any file."""
    alice, holder = start("--uid", str(ALICE)), start()
    holder.ask("acquire", free=["GPU-0"])
    line = [start("--uid", str(uid)) for uid in (3000, 2000, 1000)]
    for worker in line:
        worker.wait_in_line(free=["GPU-0"])
    for name in ("wait.0000000000.0.00000000", "wait.9999999999.0.00000000"):
        alice.ask("plant_ticket", name=name)
    assert [waiter.pid for waiter in waiters(folder)] == [*(worker.pid for worker in line), alice.pid, alice.pid]
    for before, worker in zip([holder, *line], line):
        before.kill()
        assert worker.result() == {"claims": {"GPU-0": 1}}
