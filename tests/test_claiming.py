"""What the leases of a host mean for a process that chooses."""

from __future__ import annotations

import pytest

from autogpu.claiming import leases_of, script_name
from autogpu.lease import Holder
from autogpu.selection import GIB, Claim
from tests.values import gpu, inventory

MACHINE = inventory(gpu(0))
UUID = gpu(0).uuid


def holder(name, gib, *, group="", uid=1000, since_s=90.0, is_mine=False):
    return Holder(name, uid, is_mine, True, 7, None, 1, since_s, "train.py", group, {UUID: int(gib * GIB)})


def claims(*holders, pids=None):
    pids = pids or {each.name: number for number, each in enumerate(holders, start=11)}
    return leases_of(holders, pids, MACHINE, now_s=100.0).get(UUID, [])


def test_a_job_counts_with_its_claim_its_process_and_its_age():
    assert claims(holder("a", 6)) == [Claim(6 * GIB, (11,), 1000, "train.py", 10.0)]


def test_the_members_of_a_job_share_one_promise():
    assert claims(holder("a", 6, group="j"), holder("b", 8, group="j")) == [
        Claim(8 * GIB, (11, 12), 1000, "train.py", 10.0)
    ]


def test_nobody_can_join_the_job_of_another_user():
    assert [claim.bytes for claim in claims(holder("a", 6, group="j"), holder("b", 8, group="j", uid=1001))] == [
        6 * GIB,
        8 * GIB,
    ]


def test_an_impossible_claim_counts_as_the_whole_gpu():
    assert claims(holder("a", 4000))[0].bytes == 24 * GIB


def test_my_own_lease_is_not_somebody_elses():
    assert claims(holder("a", 6, is_mine=True)) == []


def test_a_holder_in_another_container_counts_without_a_pid():
    assert claims(holder("a", 6), pids={"a": None})[0].pids == ()


def test_a_claim_from_the_future_is_new():
    assert claims(holder("a", 6, since_s=500.0))[0].age_s == 0.0


@pytest.mark.parametrize(
    ("argv", "expected"),
    [(["/home/me/train.py", "--key", "secret"], "train.py"), (["-c"], "python"), ([], "python")],
)
def test_only_the_scripts_name_is_told(argv, expected):
    assert script_name(argv).startswith(expected)
