"""What the leases of a host mean for a process that chooses."""

from __future__ import annotations

import pytest

from autogpu.frozen import replace
from autogpu.lease import Demand, Holder, Waiter
from autogpu.reporting.text import GIB
from autogpu.selection.jobs import claims_by_gpu, is_awaited_by, jobs_of
from autogpu.selection.model import Claim
from tests.support.values import gpu, inventory

MACHINE = inventory(gpu(0))
UUID = gpu(0).uuid


def holder(gib=6, *, name="a", group="", uid=1000, since_s=90.0, is_mine=False):
    return Holder(name, uid, is_mine, True, 7, None, 1, since_s, "train.py", group, {UUID: int(gib * GIB)})


def claim(gib, *, pids=(11,), uid=1000, age_s=10.0):
    return Claim(gib * GIB, pids, uid, "train.py", age_s)


MEMBERS = [holder(6, group="j", since_s=10.0), holder(8, name="b", group="j", since_s=99.0)]
STRANGERS = [holder(6, group="j"), holder(8, name="b", group="j", uid=1001)]


@pytest.mark.parametrize(
    ("holders", "expected"),
    [
        pytest.param([holder()], [claim(6)], id="its-claim-its-process-and-its-age"),
        pytest.param(
            MEMBERS, [claim(8, pids=(11, 12), age_s=1.0)], id="members-share-one-claim-as-young-as-the-newest"
        ),
        pytest.param(STRANGERS, [claim(6), claim(8, pids=(12,), uid=1001)], id="no-user-joins-the-job-of-another"),
        pytest.param([holder(4000)], [claim(24)], id="an-impossible-claim-is-the-whole-gpu"),
        pytest.param([holder(is_mine=True)], [], id="my-own-lease-is-no-other-job"),
        pytest.param([holder(name="elsewhere")], [claim(6, pids=())], id="in-another-container-without-a-pid"),
        pytest.param([holder(since_s=500.0)], [claim(6, age_s=0.0)], id="from-the-future-is-new"),
        pytest.param([holder(since_s=None)], [claim(6, age_s=0.0)], id="without-a-time-is-new"),
    ],
)
def test_a_job_counts_with(holders, expected):
    pids = {each.name: None if each.name == "elsewhere" else number for number, each in enumerate(holders, start=11)}
    assert list(claims_by_gpu(jobs_of(holders, pids, MACHINE, now_s=100.0)).get(UUID, ())) == expected


def test_a_job_has_the_oldest_of_its_processes_and_all_of_their_claims():
    other = gpu(1).uuid
    first, second = holder(group="j"), holder(8, name="b", group="j", since_s=95.0)
    second = replace(second, pid=8, claims={other: GIB})
    (job,) = jobs_of([first, second], {"a": 11, "b": None}, inventory(gpu(0), gpu(1)), now_s=100.0)
    assert (job.pid, job.pids_here, job.age_s, job.processes) == (7, (11,), 10.0, 2)
    assert job.claims == {UUID: 6 * GIB, other: GIB}


def test_a_claim_on_a_gpu_that_cannot_be_read_counts_as_held():
    unknown = replace(holder(), claims={"GPU-gone": GIB})
    assert [claim.bytes for claim in claims_by_gpu(jobs_of([unknown], {"a": 1}, MACHINE, 100.0))["GPU-gone"]] == [0]


HELD = {UUID: (claim(1, uid=1001),)}


@pytest.mark.parametrize(
    ("demand", "claims_on", "per_user", "asked", "expected"),
    [
        pytest.param({}, {}, 0, (UUID, True, 24), True, id="a-whole-gpu-that-is-free"),
        pytest.param({}, {}, 0, (UUID, False, 24), False, id="no-whole-gpu-that-is-not"),
        pytest.param({"bytes_per_gpu": 8 * GIB}, {}, 0, (UUID, False, 8), True, id="room-on-one"),
        pytest.param({"bytes_per_gpu": 8 * GIB}, {}, 0, (UUID, True, 7), False, id="no-room"),
        pytest.param({"uuids": ("GPU-else",)}, {}, 0, (UUID, True, 24), False, id="another-one"),
        pytest.param({}, HELD, 1, ("GPU-else", True, 24), False, id="who-is-at-the-cap-awaits-none"),
        pytest.param({}, HELD, 2, ("GPU-else", True, 24), True, id="who-is-below-it-does"),
        pytest.param({}, {}, 1, ("GPU-else", True, 24), True, id="who-holds-none-does"),
    ],
)
def test_what_a_waiter_awaits(demand, claims_on, per_user, asked, expected):
    waiter = Waiter("wait.1", 1, 1001, False, True, 0.0, 7, None, 1, 90.0, "train.py", Demand(**demand))
    uuid, is_free, room_gib = asked
    assert is_awaited_by([waiter], claims_on, per_user)(uuid, is_free, room_gib * GIB) is expected
