"""What the leases of a host mean for a process that chooses."""

from __future__ import annotations

from autogpu.frozen import replace
from autogpu.lease import Demand, Holder, Waiter
from autogpu.reporting.text import GIB
from autogpu.selection.jobs import claims_by_gpu, is_awaited_by, jobs_of
from autogpu.selection.model import Claim
from tests.support.values import gpu, inventory

MACHINE = inventory(gpu(0))
UUID = gpu(0).uuid


def holder(name, gib, *, group="", uid=1000, since_s=90.0, is_mine=False):
    return Holder(name, uid, is_mine, True, 7, None, 1, since_s, "train.py", group, {UUID: int(gib * GIB)})


def claims(*holders, pids=None):
    pids = pids or {each.name: number for number, each in enumerate(holders, start=11)}
    return list(claims_by_gpu(jobs_of(holders, pids, MACHINE, now_s=100.0)).get(UUID, ()))


def test_a_job_counts_with_its_claim_its_process_and_its_age():
    assert claims(holder("a", 6)) == [Claim(6 * GIB, (11,), 1000, "train.py", 10.0)]


def test_the_members_of_a_job_share_one_claim():
    assert claims(holder("a", 6, group="j"), holder("b", 8, group="j")) == [
        Claim(8 * GIB, (11, 12), 1000, "train.py", 10.0)
    ]


def test_a_user_can_not_join_the_job_of_another_user():
    assert [claim.bytes for claim in claims(holder("a", 6, group="j"), holder("b", 8, group="j", uid=1001))] == [
        6 * GIB,
        8 * GIB,
    ]


def test_an_impossible_claim_counts_as_the_whole_gpu():
    assert claims(holder("a", 4000))[0].bytes == 24 * GIB


def test_my_own_lease_is_no_other_job():
    assert claims(holder("a", 6, is_mine=True)) == []


def test_a_holder_in_another_container_counts_without_a_pid():
    assert claims(holder("a", 6), pids={"a": None})[0].pids == ()


def test_a_claim_from_the_future_is_new():
    assert claims(holder("a", 6, since_s=500.0))[0].age_s == 0.0


def test_a_job_has_the_oldest_of_its_processes_and_all_of_their_claims():
    other = gpu(1).uuid
    first, second = holder("a", 6, group="j"), holder("b", 8, group="j", since_s=95.0)
    second = replace(second, pid=8, claims={other: GIB})
    (job,) = jobs_of([first, second], {"a": 11, "b": None}, inventory(gpu(0), gpu(1)), now_s=100.0)
    assert (job.pid, job.pids_here, job.age_s, job.processes) == (7, (11,), 10.0, 2)
    assert job.claims == {UUID: 6 * GIB, other: GIB}


def test_a_claim_on_a_gpu_that_cannot_be_read_counts_as_held():
    unknown = replace(holder("a", 6), claims={"GPU-gone": GIB})
    assert [claim.bytes for claim in claims_by_gpu(jobs_of([unknown], {"a": 1}, MACHINE, 100.0))["GPU-gone"]] == [0]


def waiter(uid=1001, **demand):
    return Waiter("wait.1", 1, uid, False, True, 0.0, 7, None, 1, 90.0, "train.py", Demand(**demand))


def test_a_waiter_for_a_whole_gpu_awaits_a_free_one():
    is_awaited = is_awaited_by([waiter()], {})
    assert is_awaited(UUID, True, 24 * GIB)
    assert not is_awaited(UUID, False, 24 * GIB)


def test_a_waiter_for_some_memory_awaits_what_has_room_for_it():
    is_awaited = is_awaited_by([waiter(bytes_per_gpu=8 * GIB)], {})
    assert is_awaited(UUID, False, 8 * GIB)
    assert not is_awaited(UUID, True, 7 * GIB)
    assert not is_awaited_by([waiter(uuids=("GPU-else",))], {})(UUID, True, 24 * GIB)


def test_a_waiter_that_may_have_no_further_gpu_keeps_none_from_others():
    held = {UUID: (Claim(GIB, (7,), 1001, "train.py", 1.0),)}
    assert not is_awaited_by([waiter()], held, per_user=1)("GPU-else", True, 24 * GIB)
    assert is_awaited_by([waiter()], held, per_user=2)("GPU-else", True, 24 * GIB)
    assert is_awaited_by([waiter(uid=1002)], held, per_user=1)("GPU-else", True, 24 * GIB)


def test_a_job_is_as_idle_as_its_newest_process():
    (claim,) = claims(holder("a", 6, group="j", since_s=10.0), holder("b", 6, group="j", since_s=99.0))
    assert claim.age_s == 1.0
