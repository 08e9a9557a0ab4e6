"""Choice of the lease folder, and folders that are refused because they can't be trusted."""

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


def test_environment_variable_comes_before_the_host_folder(path, places):
    places["host"].mkdir()
    places["fallback"].mkdir()
    named = find_folder({"AUTOGPU_LEASE_DIR": str(path)}, **places)
    assert (named.path, named.origin) == (path, FolderOrigin.ENVIRONMENT)
    host = find_folder({"AUTOGPU_LEASE_DIR": ""}, **places)
    assert (host.path, host.origin, host.owner_uid) == (places["host"], FolderOrigin.HOST, os.geteuid())


def test_fallback_folder_is_made_for_all_users_whatever_the_umask(places):
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


def test_processes_that_make_the_folder_at_once_share_one_folder(places):
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
            id="owned-by-another-user",
            marks=needs_root,
        ),
    ],
)
def test_untrusted_host_folder_is_an_error_and_no_fallback_is_made(places, make, fault):
    make(places["host"])
    with pytest.raises(LeaseUnavailable) as caught:
        find_folder({}, **places)
    assert (caught.value.problem.fault, caught.value.problem.path) == (fault, str(places["host"]))
    assert not places["fallback"].exists()


@needs_root
def test_sticky_folder_may_belong_to_any_user(path, places):
    path.rename(places["host"])
    os.chown(str(places["host"]), BOB, BOB)
    assert find_folder({}, **places).owner_uid == BOB


@pytest.mark.parametrize("value", ["leases", "~/leases", "/does/not/exist/leases", "/proc/leases"])
def test_a_folder_that_can_not_be_made_is_unavailable(value):
    with pytest.raises(LeaseUnavailable):
        find_folder({"AUTOGPU_LEASE_DIR": value})


@pytest.mark.parametrize("make", [True, False])
def test_missing_parent_of_the_folder_is_reported(path, make):
    inside = path / "missing" / "leases"
    with pytest.raises(LeaseUnavailable) as raised:
        find_folder({LEASE_DIR: str(inside)}, make=make)
    assert not isinstance(raised.value, NoFolderYet)
    assert (raised.value.problem.fault, raised.value.problem.path) == (Fault.NO_PARENT, str(inside))


def test_folder_that_lost_its_sticky_bit_is_not_used(folder, path):
    path.chmod(0o777)
    with pytest.raises(LeaseUnavailable) as caught:
        acquire_lease(Lease(folder, "a"), lambda *_: {"GPU-0": 1})
    assert caught.value.problem.fault is Fault.NOT_STICKY


def test_folder_replaced_by_a_link_is_not_followed(folder, path):
    path.rename(path.parent / "moved")
    path.symlink_to("moved")
    with pytest.raises(LeaseUnavailable):
        acquire_lease(Lease(folder, "a"), lambda *_: {"GPU-0": 1})
    assert list((path.parent / "moved").iterdir()) == []


def test_vanished_folder_is_reported_as_missing(folder, path):
    def choose(holders, waiters):
        path.rmdir()
        return {"GPU-0": 1}

    # In the first attempt the folder vanishes during the choice. The later attempts find no folder.
    for attempt in (lambda: acquire_lease(Lease(folder, "a"), choose),) * 2 + (lambda: holders(folder),):
        with pytest.raises(LeaseUnavailable) as caught:
            attempt()
        assert (caught.value.problem.fault, caught.value.problem.number) == (Fault.UNUSABLE, errno.ENOENT)


def test_without_flock_imports_work_and_find_folder_reports_it():
    code = (
        # First import the standard modules that need fcntl or one of the names removed below.
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
