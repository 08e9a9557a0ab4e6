"""Which folder is the host's, and which is not to be trusted."""

import errno
import multiprocessing
import os
import stat
import subprocess
import sys

import pytest

from autogpu.lease import Fault, Lease, LeaseUnavailable, acquire_lease, find_folder
from autogpu.lease.folder import FolderOrigin
from autogpu.lease.model import NoFolderYet
from autogpu.variables import LEASE_DIR
from tests.lease.conftest import ALICE, BOB, holders, needs_root


@pytest.fixture
def places(path):
    return {"host": path.parent / "run", "fallback": path.parent / "autogpu.v1"}


def test_the_environment_names_it_first_and_then_the_one_that_the_administrator_made(path, places):
    places["host"].mkdir()
    places["fallback"].mkdir()
    named = find_folder({"AUTOGPU_LEASE_DIR": str(path)}, **places)
    assert (named.path, named.origin) == (path, FolderOrigin.ENVIRONMENT)
    host = find_folder({"AUTOGPU_LEASE_DIR": ""}, **places)
    assert (host.path, host.origin, host.owner_uid) == (places["host"], FolderOrigin.HOST, os.geteuid())


def test_else_one_is_made_that_all_users_can_use_whatever_the_umask(places):
    before = os.umask(0o077)
    try:
        folder = find_folder({}, **places)
    finally:
        os.umask(before)
    assert (folder.path, folder.origin) == (places["fallback"], FolderOrigin.FALLBACK)
    assert stat.S_IMODE(folder.path.stat().st_mode) == 0o1777
    assert sorted(found.name for found in folder.path.parent.iterdir()) == ["autogpu.v1", "leases"]
    assert find_folder({}, **places) == folder
    named = find_folder({"AUTOGPU_LEASE_DIR": str(places["host"].parent / "new")})
    assert stat.S_IMODE(named.path.stat().st_mode) == 0o1777


def test_many_who_make_it_at_once_get_one_folder(places):
    context = multiprocessing.get_context("fork")
    gate, inodes = context.Barrier(8), context.SimpleQueue()

    def make():
        gate.wait()
        folder = find_folder({}, **places)
        assert acquire_lease(Lease(folder, "a"), lambda *_: {"GPU-0": 1})
        inodes.put(folder.path.stat().st_ino)

    crowd = [context.Process(target=make) for _ in range(8)]
    for process in crowd:
        process.start()
    for process in crowd:
        process.join(30)
    assert [process.exitcode for process in crowd] == [0] * 8
    assert {inodes.get() for _ in crowd} == {places["fallback"].stat().st_ino}


@pytest.mark.parametrize(
    ("make", "fault"),
    [
        pytest.param(lambda place: place.write_text(""), Fault.NO_DIRECTORY, id="file"),
        pytest.param(lambda place: place.symlink_to("elsewhere"), Fault.SYMLINK, id="dangling-link"),
        pytest.param(lambda place: place.symlink_to("leases"), Fault.SYMLINK, id="link"),
        pytest.param(lambda place: (place.mkdir(), place.chmod(0o777)), Fault.NOT_STICKY, id="world-writable"),
        pytest.param(lambda place: (place.mkdir(), place.chmod(0o770)), Fault.NOT_STICKY, id="group-writable"),
        pytest.param(
            lambda place: (place.mkdir(), os.chown(str(place), ALICE, ALICE)),
            Fault.OTHERS,
            id="another-users",
            marks=needs_root,
        ),
    ],
)
def test_a_host_folder_that_can_not_be_trusted_is_not_passed_by(places, make, fault):
    make(places["host"])
    with pytest.raises(LeaseUnavailable) as caught:
        find_folder({}, **places)
    assert (caught.value.problem.fault, caught.value.problem.path) == (fault, str(places["host"]))
    assert not places["fallback"].exists()


@needs_root
def test_a_sticky_folder_may_be_any_users(path, places):
    path.rename(places["host"])
    os.chown(str(places["host"]), BOB, BOB)
    assert find_folder({}, **places).owner_uid == BOB


@pytest.mark.parametrize("value", ["leases", "~/leases", "/does/not/exist/leases", "/proc/leases"])
def test_a_folder_that_can_not_be_made_is_unavailable(value):
    with pytest.raises(LeaseUnavailable):
        find_folder({"AUTOGPU_LEASE_DIR": value})


@pytest.mark.parametrize("make", [True, False])
def test_a_folder_whose_parent_is_missing_is_told_what_to_make(path, make):
    inside = path / "missing" / "leases"
    with pytest.raises(LeaseUnavailable) as raised:
        find_folder({LEASE_DIR: str(inside)}, make=make)
    assert not isinstance(raised.value, NoFolderYet)
    assert (raised.value.problem.fault, raised.value.problem.path) == (Fault.NO_PARENT, str(inside))


def test_a_folder_that_is_trusted_no_longer_is_not_used(folder, path):
    path.chmod(0o777)
    with pytest.raises(LeaseUnavailable) as caught:
        acquire_lease(Lease(folder, "a"), lambda *_: {"GPU-0": 1})
    assert caught.value.problem.fault is Fault.NOT_STICKY


def test_a_folder_that_has_become_a_link_is_not_followed(folder, path):
    path.rename(path.parent / "moved")
    path.symlink_to("moved")
    with pytest.raises(LeaseUnavailable):
        acquire_lease(Lease(folder, "a"), lambda *_: {"GPU-0": 1})
    assert list((path.parent / "moved").iterdir()) == []


def test_a_folder_that_vanished_is_said_so(folder, path):
    def choose(holders, waiters):
        path.rmdir()
        return {"GPU-0": 1}

    # While one chooses, and before that.
    for attempt in (lambda: acquire_lease(Lease(folder, "a"), choose),) * 2 + (lambda: holders(folder),):
        with pytest.raises(LeaseUnavailable) as caught:
            attempt()
        assert (caught.value.problem.fault, caught.value.problem.number) == (Fault.UNUSABLE, errno.ENOENT)


def test_where_there_is_no_flock_everything_imports_and_claiming_says_so():
    code = (
        # Those of the standard library that have such a system in mind come first.
        "import dataclasses, json, os, pathlib, sys, threading\n"
        "sys.modules['fcntl'] = None\n"
        "for name in 'O_NOFOLLOW O_CLOEXEC O_NONBLOCK O_DIRECTORY register_at_fork geteuid'.split():\n"
        "    delattr(os, name)\n"
        "from autogpu import lease\n"
        "try: lease.find_folder({})\n"
        "except lease.LeaseUnavailable as error: print(error.problem.fault.name)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, timeout=30, check=True)
    assert done.stdout == b"NO_FLOCK\n"
