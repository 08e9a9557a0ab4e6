"""Hostile users plant files, take locks and flood the folder: this affects no claim but their own."""

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
    """Return the lease folder, once as it is and once on an overlay file system, as in containers."""
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
def test_waiting_for_a_leases_lock_does_not_keep_a_dead_job_alive(on_any, folder, start):
    alice, bob, waiting = start("--uid", str(ALICE)), start("--uid", str(BOB)), start("--uid", str(ALICE))
    alice.ask("acquire", free=["GPU-0"])
    waiting.wait_in_line(free=["GPU-0"])
    for each in (*holders(folder), *waiters(folder)):
        bob.ask("wait_for_lock", name=each.name)
    # A ticket ends with its process, too, although bob has waited for its lock.
    waiting.kill()
    until(lambda: waiters(folder) == ())
    alice.kill()
    until(lambda: holders(folder) == ())
    assert start().ask("acquire", free=["GPU-0"])["claims"] == {"GPU-0": 1}


LAST_PID = Path("/proc/sys/kernel/ns_last_pid")


@needs_root
@pytest.mark.xdist_group("pids")
@pytest.mark.skipif(not os.access(str(LAST_PID), os.W_OK), reason="no process can be given a certain pid here")
def test_reused_pid_of_another_user_does_not_keep_a_dead_job_alive(on_any, folder, start):
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
    # Bob claims before and after the flood, because a file system may list files in any order. All files belong to
    # ordinary users, because root would remove the stale ones.
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
def test_hard_links_to_a_lease_hide_no_claim_of_its_owner(folder, path, start):
    alice = start("--uid", str(ALICE))
    for _ in range(5):
        alice.ask("acquire", gpus={"GPU-0": 1})
    first, *_ = holders(folder)
    for number in range(5000):
        os.link(str(path / first.name), str(path / f"job.9.9.{number:08x}"))
    assert promised(holders(folder)) == {"GPU-0": 5}


@needs_root
@pytest.mark.parametrize(
    "options", [[], ["--mount-proc"]], ids=["proc-of-the-parent-namespace", "proc-of-the-own-namespace"]
)
def test_claim_of_another_pid_namespace_is_alive_whatever_proc_shows(folder, start, options):
    prefix = ("unshare", "--pid", "--fork", "--kill-child", *options)
    try:
        inside = start(prefix=prefix)
    except AssertionError as error:
        pytest.skip(f"no pid namespace can be made: {error}")
    assert inside.ask("acquire", free=["GPU-0"])["claims"] == {"GPU-0": 1}
    (seen,) = holders(folder)
    assert (seen.claims, seen.pid, seen.pid_here) == ({"GPU-0": 1}, 1, None)
    assert seen.pid_namespace not in (None, process.pid_namespace())
    # The claim is visible inside, too, even if /proc there shows the pids of the parent namespace.
    assert [holder["claims"] for holder in inside.ask("holders")["holders"]] == [{"GPU-0": 1}]
    assert start().ask("acquire", free=["GPU-0"])["claims"] is None


# Prints the number of holders, and how many files were opened to find them.
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
def test_in_a_user_namespace_only_the_newest_4096_files_are_read(path, start):
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
@pytest.mark.parametrize("are_known", [True, False], ids=["uids-in-subuid-file", "uids-of-unknown-users"])
def test_flood_from_many_uids_hides_no_claim_and_few_files_are_opened(folder, path, start, monkeypatch, are_known):
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


def test_reader_without_free_descriptors_does_not_take_leases_for_dead(folder, start):
    start().ask("acquire", free=["GPU-0"])
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 256), hard))
    kept = []
    try:
        with pytest.raises(OSError, match="Too many"):
            while True:
                kept.append(os.open("/dev/null", os.O_RDONLY))
        os.close(kept.pop())  # the folder needs one descriptor
        with pytest.raises(LeaseUnavailable) as caught:
            holders(folder)
        assert caught.value.problem.number == errno.EMFILE
    finally:
        for descriptor in kept:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert len(holders(folder)) == 1


@needs_root
def test_planted_ticket_is_served_after_earlier_waiters(folder, start):
    """The numbers in the names do not count. No user can give a file an earlier ctime."""
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
