"""If a user makes a file that others can't open, read or stat, no claim of another user is affected."""

import contextlib
import ctypes
import errno
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from autogpu.doctor.checks import unreadable_files
from autogpu.lease import acquire_lease, locks, snapshot
from autogpu.lease.leases import Lease
from autogpu.lease.mounts import Mounts, mounts_of
from autogpu.status.snapshot import read_leases
from autogpu.variables import LEASE_DIR
from tests.lease.choosers import free
from tests.lease.conftest import ALICE, BOB, TIMEOUT_S, holders, needs_root
from tests.lease.test_broken import mount

NAME = f"job.{ALICE}.1.aaaaaaaa"

# Files that a user can make in a sticky folder and others can't read. PROGRAM runs one of these lines.
PLANTS = {
    # open(2) fails with EAGAIN until the holder gives up its kernel lease, for at most 45 s.
    "kernel-lease": "fcntl.fcntl(os.open(name, os.O_RDWR | os.O_CREAT, 0o644), fcntl.F_SETLEASE, fcntl.F_WRLCK)",
    "no-permission": "os.close(os.open(name, os.O_RDWR | os.O_CREAT, 0o000))",
    "access-list": "os.close(os.open(name, os.O_RDWR | os.O_CREAT, 0o644)); os.setxattr(name, ACL_NAME, ACL)",
    "pipe": "os.mkfifo(name)",
    "folder": "os.mkdir(name)",
    "link": "os.symlink('/etc/passwd', name)",
    "socket": "socket.socket(socket.AF_UNIX).bind(name)",
    "device": "os.mknod(name, stat.S_IFCHR | 0o644, 0)",
}

# Version 2; the owner may read and write, BOB may not, others may read.
ACL = "02000000" + "01000600ffffffff" + "02000000" + BOB.to_bytes(4, "little").hex() + "04000400ffffffff"
ACL += "10000400ffffffff" + "20000400ffffffff"

PROGRAM = f"""
import fcntl, os, signal, socket, stat, sys
signal.signal(signal.SIGIO, signal.SIG_IGN)
os.setuid({ALICE})
os.chdir(sys.argv[1])
name, ACL_NAME, ACL = {NAME!r}, "system.posix_acl_access", bytes.fromhex({ACL!r})
exec(sys.argv[2])
print(flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def planted(path, program):
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", PROGRAM, str(path), program], **pipes) as alices:
        if not alices.stdout.readline():
            pytest.skip(alices.communicate(timeout=TIMEOUT_S)[1].decode().strip().rpartition("\n")[2])
        yield
        alices.communicate(timeout=TIMEOUT_S)


@needs_root
@pytest.mark.parametrize("kind", PLANTS)
def test_file_that_nobody_can_read_hides_no_claim_of_others(path, start, kind):
    holder, asker = start("--uid", str(BOB)), start("--uid", str(BOB))
    assert holder.ask("acquire", free=["GPU-0"])["claims"] == {"GPU-0": 1}
    with planted(path, PLANTS[kind]):
        told = asker.ask("acquire", free=["GPU-0", "GPU-1"])
        assert (told["claims"], told["problem"]) == ({"GPU-1": 1}, None)
        seen = asker.ask("unreadable")["unreadable"]
        assert [(name, uid) for name, uid, _ in seen] == [(NAME, ALICE)]


@needs_root
def test_status_and_doctor_name_an_unreadable_file_and_its_owner(folder, path):
    with planted(path, PLANTS["kernel-lease"]):
        (of_status,) = read_leases({LEASE_DIR: str(path)}).leases.unreadable
        (of_doctor,) = unreadable_files(folder)
    for found in (of_status, of_doctor):
        assert (found.name, found.uid, found.error.errno) == (NAME, ALICE, errno.EAGAIN)


@contextlib.contextmanager
def silent_fuse(target):
    """Mount a FUSE file system whose server never answers: each call on it waits."""
    libc = ctypes.CDLL(None, use_errno=True)
    device = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={device},rootmode=100644,user_id={ALICE},group_id={ALICE},allow_other".encode()
    try:
        if libc.mount(b"fuse", os.fsencode(target), b"fuse", 0, options):
            pytest.skip(f"FUSE can't be mounted here: {os.strerror(ctypes.get_errno())}")
        yield
    finally:
        libc.umount2(os.fsencode(target), 2)  # MNT_DETACH
        os.close(device)


@needs_root
@pytest.mark.skipif(not os.access("/dev/fuse", os.R_OK | os.W_OK), reason="this kernel has no FUSE")
def test_file_system_that_never_answers_keeps_nobody_waiting(folder, path, start):
    holder, asker = start("--uid", str(BOB)), start("--uid", str(BOB))
    holder.ask("acquire", free=["GPU-0"])
    (path / NAME).touch()
    with silent_fuse(path / NAME):
        begun_s = time.monotonic()
        assert asker.ask("acquire", free=["GPU-0", "GPU-1"])["claims"] == {"GPU-1": 1}
        assert time.monotonic() - begun_s < TIMEOUT_S / 2
        assert [(file.name, file.uid) for file in snapshot(folder).unreadable] == [(NAME, None)]


@needs_root
def test_mounts_of_reads_the_file_system_and_the_mounts_in_a_folder(tmp_path):
    """The kernel's list of mounts escapes blanks in paths. A mount in ``a b c`` is not a mount in ``a b``."""
    places = [tmp_path / name for name in ("a b", "a b c")]
    for place in places:
        place.mkdir()
        (place / "file").touch()
        mount("--bind", str(place / "file"), str(place / "file"))
    try:
        with locks.Descriptor(os.open, str(places[0]), os.O_RDONLY) as opened:
            found = mounts_of(opened.number)
    finally:
        for place in places:
            subprocess.run(["umount", str(place / "file")], timeout=60, check=True)
    assert found.inside == {"file"}
    assert found.file_system in Path("/proc/filesystems").read_text().split()


@pytest.mark.parametrize("name", ["fuse", "fuse.sshfs", "fuseblk"])
def test_fuse_is_recognised_by_the_file_system_type(name):
    assert Mounts(name).is_fuse
    assert not Mounts("tmpfs").is_fuse


def test_stale_file_of_another_user_stays(folder, path):
    """The file may belong to a live process that uses the folder through FUSE. Its lock is not visible here."""
    if os.geteuid() != 0:
        pytest.skip("only root could remove it")
    for uid, name in ((0, "job.0.1.aaaaaaaa"), (BOB, f"job.{BOB}.1.aaaaaaaa")):
        (path / name).write_text(json.dumps({"v": 1, "pid": 1, "gpus": {}, "group": ""}))
        os.chown(path / name, uid, uid)
    acquire_lease(Lease(folder, "a"), free(["GPU-0"], 1)).release()
    assert holders(folder) == ()
    assert [file.name for file in path.iterdir()] == [f"job.{BOB}.1.aaaaaaaa"]
