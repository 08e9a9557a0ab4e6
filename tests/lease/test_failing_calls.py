"""A system call that fails in a claim, wait or snapshot raises only LeaseUnavailable and leaves no claim or file."""

import errno
import fcntl
import functools
import itertools
import os
import shutil
import sys
from contextlib import suppress

import pytest

from autogpu.lease import (
    Demand,
    Fault,
    Lease,
    LeaseProblem,
    LeaseUnavailable,
    acquire_lease,
    find_folder,
    locks,
    queue,
    snapshot,
)
from autogpu.variables import LEASE_DIR
from tests.lease.choosers import wait_for_claims
from tests.lease.conftest import holders, waiters
from tests.lease.interrupts import OURS, open_files

CALLS = [(os, name) for name in dir(os) if name in {
    "open", "fstat", "stat", "lstat", "scandir", "listdir", "unlink", "rename", "link", "mkdir", "rmdir", "close",
    "fchmod", "utime", "read", "write", "readlink", "dup", "set_inheritable",
}]  # fmt: skip
CALLS += [(fcntl, "flock"), (fcntl, "fcntl")]


class Refusing:
    """Replacements for the system calls that the lease package makes, directly or through pathlib.

    Call number ``refused_at`` and all calls named in ``refused`` fail.
    """

    def __init__(self, monkeypatch, number, refused=()):
        self.refused_at, self.made, self._number, self._refused = None, 0, number, refused
        for module, name in CALLS:
            monkeypatch.setattr(module, name, functools.partial(self._call, getattr(module, name), name))

    def _call(self, call, name, *arguments, **options):
        if not is_ours(sys._getframe(1)):
            return call(*arguments, **options)
        self.made += 1
        if self.made == self.refused_at or name in self._refused:
            self.refused = name, sys._getframe(1).f_code.co_name, sys._getframe(1).f_lineno
            if name == "close":  # Linux closes the descriptor although close(2) fails
                call(*arguments, **options)
            raise OSError(self._number, os.strerror(self._number))
        return call(*arguments, **options)


def is_ours(frame):
    for _ in range(4):
        if frame is None or frame.f_code.co_filename == __file__:
            return False
        if frame.f_code.co_filename.startswith(OURS):
            return True
        frame = frame.f_back
    return False


def claim(folder, environ):
    acquire_lease(Lease(find_folder(environ), "a.py"), lambda *_: {"GPU-0": 1}).release()


def wait(folder, environ):
    looks = iter([None, None])
    demand, choose = Demand(), lambda *_: next(looks, {"GPU-0": 1})
    wait_for_claims(Lease(folder, "a.py"), choose, demand=demand, timeout_s=20).release()


def look(folder, environ):
    snapshot(find_folder(environ, make=False))


def make(folder, environ):
    shutil.rmtree(str(folder.path))
    try:
        claim(folder, environ)
    finally:
        folder.path.mkdir(exist_ok=True)
        folder.path.chmod(0o1777)


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ESTALE, errno.EACCES], ids=errno.errorcode.get)
@pytest.mark.parametrize("what", [claim, look, make, pytest.param(wait, marks=pytest.mark.slow)])
def test_failing_call_raises_only_lease_unavailable_and_leaves_no_claim(folder, path, monkeypatch, what, number):
    monkeypatch.setattr(queue, "LOOK_S", 0.001)
    environ = {LEASE_DIR: str(path)}
    what(folder, environ)
    before = open_files()
    for refused_at in itertools.count(1):
        with monkeypatch.context() as patched:
            refusing = Refusing(patched, number)
            refusing.refused_at = refused_at
            with suppress(LeaseUnavailable):
                what(folder, environ)
        assert open_files() <= before, refusing.refused
        assert (holders(folder), waiters(folder)) == ((), ()), refused_at
        if refusing.made < refused_at:
            break
    assert refused_at > 5


@pytest.mark.parametrize(
    "number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ESTALE], ids=errno.errorcode.get
)
def test_file_system_without_locks_is_reported_and_no_file_is_left(folder, monkeypatch, number):
    with monkeypatch.context() as patched:
        Refusing(patched, number, refused=("flock", "fcntl"))
        with pytest.raises(LeaseUnavailable) as caught:
            acquire_lease(Lease(folder, "a.py"), lambda *_: {"GPU-0": 1})
    assert caught.value.problem == LeaseProblem(Fault.UNUSABLE, str(folder.path), os.strerror(number), number)
    assert list(folder.path.iterdir()) == []


@pytest.mark.parametrize("number", [None, errno.EINVAL], ids=["lock-granted-but-invisible", "lock-command-unknown"])
def test_file_system_that_hides_locks_from_others_is_unusable(folder, monkeypatch, number):
    """FUSE, old NFS and the mount option ``nolock`` grant every lock, or hide the locks of a client from other clients.

    gVisor refuses the fcntl command that takes these locks.
    """
    free = locks._FLOCK.pack(fcntl.F_UNLCK, 0, 0, 0, 0)

    def on_such(descriptor, command, argument=0):
        if command == locks._OWN and number:
            raise OSError(number, os.strerror(number))
        return free if command in (locks._OWN, locks._GET_OWNER) else fcntl_itself(descriptor, command, argument)

    fcntl_itself = fcntl.fcntl
    with monkeypatch.context() as patched:
        patched.setattr(fcntl, "fcntl", on_such)
        with pytest.raises(LeaseUnavailable) as caught:
            acquire_lease(Lease(folder, "a.py"), lambda *_: {"GPU-0": 1})
    assert (caught.value.problem.fault, caught.value.problem.number) == (Fault.UNUSABLE, number or errno.ENOLCK)
    assert list(folder.path.iterdir()) == []
