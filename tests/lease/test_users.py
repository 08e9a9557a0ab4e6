"""Two real users in one sticky folder, who can't change each other's files."""

import errno
import os

import pytest

from autogpu.doctor.checks import try_folder
from autogpu.lease import Fault
from autogpu.status.snapshot import read_leases
from tests.lease.conftest import ALICE, BOB, needs_root

# These tests run one after another: fs.protected_regular is one setting for the whole machine.
pytestmark = [needs_root, pytest.mark.xdist_group("fs.protected_regular")]


def test_stale_lease_of_another_user_stays_and_does_not_count(folder, start, path, protected_regular):
    alice, bob = start("--uid", str(ALICE)), start("--uid", str(BOB))
    alice.ask("acquire", gpus={"GPU-0": 1})
    alice.kill()
    assert bob.ask("acquire", free=["GPU-0"])["claims"] == {"GPU-0": 1}
    assert len(list(path.glob(f"job.{ALICE}.*"))) == 1
    start("--uid", str(ALICE)).ask("acquire", free=["GPU-1"])
    assert len(list(path.glob(f"job.{ALICE}.*"))) == 1


def test_claim_in_an_unwritable_folder_raises_lease_unavailable(start, path):
    path.chmod(0o755)
    alice = start("--uid", str(ALICE))
    told = alice.ask("acquire", gpus={"GPU-0": 1})
    assert told["error"] == "LeaseUnavailable"
    assert (told["fault"], told["number"]) == ("UNUSABLE", errno.EACCES)
    assert alice.ask("holders")["holders"] == []


def test_doctor_and_status_report_an_unwritable_folder(path):
    environ = {"AUTOGPU_LEASE_DIR": str(path)}
    assert (try_folder(environ)[1], read_leases(environ).obstacle) == (None, None)
    path.chmod(0o755)
    os.seteuid(ALICE)
    try:
        _, problem = try_folder(environ)
        read = read_leases(environ)
    finally:
        os.seteuid(0)
    assert (problem.fault, problem.number) == (Fault.UNUSABLE, errno.EACCES)
    assert (read.problem, "can't write to" in read.obstacle) == (None, True)
    assert list(path.iterdir()) == []


@pytest.mark.parametrize("name", ["no/parent", "sticky/leases"])
def test_doctor_reports_a_folder_that_the_first_claim_can_not_make(tmp_path, name):
    (tmp_path / "sticky").mkdir(mode=0o555)
    tmp_path.chmod(0o755)
    os.seteuid(ALICE)
    try:
        folder, problem = try_folder({"AUTOGPU_LEASE_DIR": str(tmp_path / name)})
    finally:
        os.seteuid(0)
    assert (folder, problem.fault in (Fault.NOT_REACHED, Fault.NO_PARENT)) == (None, True)


@pytest.mark.parametrize("is_shared", [False, True], ids=["exclusive", "shared"])
def test_the_holder_of_the_mutex_is_named_to_other_users(start, is_shared):
    alice, bob = start("--uid", str(ALICE)), start("--uid", str(BOB))
    bob.ask("acquire", gpus={})
    alice.ask("hold_mutex", is_shared=is_shared)
    told = bob.ask("acquire", gpus={"GPU-0": 1}, patience_s=0.1)
    # This checks only that a uid is given: /proc may show another uid for a process that changed its user.
    assert (told["problem"], told["holder"][0]) == ("MUTEX_HELD", alice.pid)
    assert told["holder"][1] is not None
