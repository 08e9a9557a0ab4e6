"""What the leases of a host mean for a process that chooses."""

import pytest

from autogpu.devices.model import Process
from autogpu.frozen import replace
from autogpu.lease import Demand, Holder, Processes, Waiter
from autogpu.selection.jobs import awaited, claims_by_gpu, jobs_of, spare_bytes, unmanaged_processes
from autogpu.selection.model import Candidate, Claim, Tier
from autogpu.text import GIB
from tests.support.values import gpu, inventory

MACHINE = inventory(gpu(0))
UUID = gpu(0).uuid


def holder(gib=6, *, name="a", group="", uid=1000, since_s=90.0, is_mine=False):
    return Holder(name, uid, is_mine, 7, None, 1, since_s, "train.py", group, {UUID: int(gib * GIB)})


def claim(gib, *, pids=(11,), uid=1000, age_s=10.0, newest_s=None):
    return Claim(gib * GIB, pids, uid, "train.py", age_s, age_s if newest_s is None else newest_s)


def jobs(holders, machine=MACHINE, **pids):
    """The jobs of these holders, of which ``pids`` names the processes by the name of their lease."""
    return jobs_of(holders, Processes(pids), machine.devices, now_s=100.0)


MEMBERS = [holder(6, group="j", since_s=10.0), holder(8, name="b", group="j", since_s=99.0)]
OF_MEMBERS = {"age_s": 90.0, "newest_s": 1.0}
STRANGERS = [holder(6, group="j"), holder(8, name="b", group="j", uid=1001)]


@pytest.mark.parametrize(
    ("holders", "expected"),
    [
        pytest.param([holder()], [claim(6)], id="its-claim-its-process-and-its-age"),
        pytest.param(MEMBERS, [claim(8, pids=(11, 12), **OF_MEMBERS)], id="members-share-one-claim"),
        pytest.param(MEMBERS[::-1], [claim(8, pids=(12, 11), **OF_MEMBERS)], id="also-where-the-newest-is-read-first"),
        pytest.param(STRANGERS, [claim(6), claim(8, pids=(12,), uid=1001)], id="no-user-joins-the-job-of-another"),
        pytest.param([holder(4000)], [claim(24)], id="an-impossible-claim-is-the-whole-gpu"),
        pytest.param([holder(is_mine=True)], [], id="my-own-lease-is-no-other-job"),
        pytest.param([holder(name="elsewhere")], [claim(6, pids=())], id="in-another-container-without-a-pid"),
        pytest.param([holder(since_s=500.0)], [claim(6, age_s=60.0)], id="from-the-future-has-run-for-a-minute"),
    ],
)
def test_a_job_counts_with(holders, expected):
    assert list(claims_by_gpu(jobs(holders, a=(11,), b=(12,))).get(UUID, ())) == expected


def told(job, name):
    return {uuid: getattr(claim, name) for uuid, claim in job.claims.items()}


def test_a_job_has_the_oldest_of_its_processes_and_all_of_their_claims():
    other = gpu(1).uuid
    first, second = holder(group="j"), holder(8, name="b", group="j", since_s=95.0)
    second = replace(second, pid=8, claims={other: GIB})
    (job,) = jobs([first, second], inventory(gpu(0), gpu(1)), a=(7, 11))
    assert (job.pid, job.pids_here, job.age_s, len(job.members)) == (7, (7, 11), 10.0, 2)
    assert told(job, "bytes") == {UUID: 6 * GIB, other: GIB}
    assert told(job, "age_s") == {UUID: 10.0, other: 5.0}


def test_a_claim_on_a_gpu_that_cannot_be_read_counts_as_held():
    unknown = replace(holder(), claims={"GPU-gone": GIB})
    assert [claim.bytes for claim in claims_by_gpu(jobs([unknown], a=(1,)))["GPU-gone"]] == [0]


def used(**sizes):
    """Four GPUs with what the processes of a job use, in GiB by ``gpu<index>``; process 7 holds its lease."""
    return [
        gpu(index, pids=[7], used_gib=sizes[f"gpu{index}"]) if f"gpu{index}" in sizes else gpu(index)
        for index in range(4)
    ]


CARD, INSTANCE = gpu(0, pids=[7], mig_enabled=True), gpu(1, pids=[7], parent=gpu(0).uuid, instance=1)
BARE = gpu(2, compute_processes=(Process(7, GIB // 2, is_bare=True),), used_gib=0.5)
HIDDEN = [gpu(0, compute_processes=None), gpu(1, pids=[7])]


@pytest.mark.parametrize(
    ("devices", "claims", "expected"),
    [
        pytest.param(used(), {0: 24}, {0: 24}, id="not-used-yet"),
        pytest.param(used(gpu0=1, gpu1=5), {0: 24}, {0: 24, 1: 0}, id="one-more-is-used"),
        pytest.param(used(gpu0=1, gpu2=2), {0: 24, 1: 6}, {0: 24, 2: 6}, id="one-of-two-is-another"),
        pytest.param(used(gpu1=1, gpu2=5, gpu3=2), {0: 6}, {1: 0, 2: 6, 3: 0}, id="the-most-used-was-meant"),
        pytest.param(used(gpu1=1), {0: 0}, {1: 0}, id="a-best-effort-job"),
        pytest.param([*used(gpu0=9, gpu1=1)[:2], BARE], {0: 24, 1: 24}, {0: 24, 1: 24}, id="a-bare-context-is-no-use"),
        pytest.param([*used(gpu0=9)[:2], BARE], {0: 24, 1: 24}, {0: 24, 1: 24}, id="nor-before-all-are-used"),
        pytest.param([*used(gpu0=9)[:2], BARE], {2: 24}, {2: 24, 0: 0}, id="but-it-keeps-the-claim-there"),
        pytest.param([gpu(0), gpu(1, total_gib=11, pids=[7])], {0: 24}, {1: 11}, id="no-more-than-it-has"),
        pytest.param(HIDDEN, {0: 24}, {0: 24, 1: 0}, id="whether-it-is-used-the-driver-does-not-tell"),
        pytest.param([CARD, INSTANCE], {1: 24}, {1: 24}, id="a-card-lists-what-is-on-its-instances"),
    ],
)
def test_a_gpu_that_is_used_without_a_claim_stands_for_one_that_is_claimed_and_not_used(devices, claims, expected):
    one = replace(holder(), claims={devices[index].uuid: gib * GIB for index, gib in claims.items()})
    (job,) = jobs([one], inventory(*devices), a=(7,))
    assert told(job, "bytes") == {devices[index].uuid: gib * GIB for index, gib in expected.items()}


def test_what_its_processes_use_is_a_jobs_own_and_counts_once():
    """Below ``run --hold`` computes a program that loads no hook."""
    machine = inventory(gpu(0, compute_processes=(Process(8, 4 * GIB),), used_gib=4))
    claims = claims_by_gpu(jobs([holder(5)], machine, a=(7, 8)))[UUID]
    (device,) = machine.devices
    assert (spare_bytes(device, None, claims), unmanaged_processes(device, claims)) == (19 * GIB, ())


HELD = {UUID: (claim(1, uid=1001),)}


@pytest.mark.parametrize(
    ("demand", "claims_on", "asked", "expected"),
    [
        pytest.param({}, {}, (UUID, True, 24), True, id="a-whole-gpu-that-is-free"),
        pytest.param({}, {}, (UUID, False, 24), False, id="no-whole-gpu-that-is-not"),
        pytest.param({"bytes_per_gpu": 8 * GIB}, {}, (UUID, False, 8), True, id="enough-on-one"),
        pytest.param({"bytes_per_gpu": 8 * GIB}, {}, (UUID, True, 7), False, id="not-enough"),
        pytest.param({"bytes_per_gpu": 8 * GIB}, {}, (UUID, True, None), True, id="one-whose-memory-is-unknown"),
        pytest.param({"uuids": ("GPU-else",)}, {}, (UUID, True, 24), False, id="another-one"),
        pytest.param({"uuids": ("GPU-else", UUID)}, {}, (UUID, True, 24), True, id="one-of-two"),
        pytest.param({"per_user": 1}, HELD, ("GPU-else", True, 24), False, id="who-is-at-the-cap-awaits-none"),
        pytest.param({"per_user": 1}, HELD, (UUID, True, 24), True, id="but-what-it-has-already"),
        pytest.param({"per_user": 0}, HELD, ("GPU-else", True, 24), True, id="there-is-no-cap"),
    ],
)
def test_what_a_waiter_awaits(demand, claims_on, asked, expected):
    waiter = Waiter("wait.1", 1001, False, 7, demand=Demand(**demand))
    uuid, is_free, room_gib = asked
    device, tier = replace(gpu(0), uuid=uuid), Tier.FREE if is_free else Tier.BUSY
    candidate = Candidate(device, tier, spare_bytes=room_gib and room_gib * GIB)
    assert awaited([candidate], [waiter], claims_on) == ({uuid} if expected else set())


@pytest.mark.parametrize(
    ("demand", "age_s", "free_gib", "expected"),
    [
        pytest.param({"joins": True}, 60.0, 6, True, id="by-one-that-joins"),
        pytest.param({"joins": True, "bytes_per_gpu": 7 * GIB}, 60.0, 6, False, id="by-none-that-does-not"),
        pytest.param({"joins": True, "uuids": ("GPU-else",)}, 60.0, 6, False, id="by-none-that-wants-another"),
        pytest.param({}, 60.0, 6, False, id="by-none-that-wants-it-whole"),
        pytest.param({"joins": True}, 59.0, 6, False, id="not-before-a-minute-has-passed"),
        pytest.param({"joins": True}, 60.0, 5, False, id="not-below-a-quarter"),
        pytest.param({"joins": True, "last_runs": {UUID: 6 * GIB}}, 60.0, 6, True, id="last-runs-took-as-much"),
        pytest.param({"joins": True, "last_runs": {UUID: 7 * GIB}}, 60.0, 6, False, id="last-runs-took-more"),
        pytest.param({"joins": True, "last_runs": {"GPU-else": 7 * GIB}}, 60.0, 6, True, id="on-another-model"),
    ],
)
def test_a_gpu_that_can_be_joined_is_awaited(demand, age_s, free_gib, expected):
    waiter = Waiter("wait.1", 1001, False, 7, demand=Demand(**demand))
    here = (claim(24, age_s=age_s),)
    sizes = {"spare_bytes": 0, "free_bytes": free_gib * GIB}
    candidate = Candidate(gpu(0, pids=[11]), Tier.BUSY, here, is_best_effort=True, **sizes)
    assert bool(awaited([candidate], [waiter], {})) is expected


@pytest.mark.parametrize(("took_gib", "expected"), [(4, True), (5, False)])
def test_gpu_of_an_idle_lease_is_awaited_only_by_a_job_that_fits_there(took_gib, expected):
    waiter = Waiter("wait.1", 1001, False, 7, demand=Demand(joins=True, last_runs={UUID: took_gib * GIB}))
    candidate = Candidate(gpu(0), Tier.IDLE_LEASE, (claim(24, age_s=7200.0),), free_bytes=4 * GIB)
    assert bool(awaited([candidate], [waiter], {})) is expected
