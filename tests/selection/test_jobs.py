"""Jobs, their claims and awaited GPUs, as a process derives them from the leases and the queue of a host."""

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
    """Return the jobs of these holders; ``pids`` are the processes of a lease, keyed by its name."""
    return jobs_of(holders, Processes(pids), machine.devices, now_s=100.0)


MEMBERS = [holder(6, group="j", since_s=10.0), holder(8, name="b", group="j", since_s=99.0)]
OF_MEMBERS = {"age_s": 90.0, "newest_s": 1.0}
STRANGERS = [holder(6, group="j"), holder(8, name="b", group="j", uid=1001)]


@pytest.mark.parametrize(
    ("holders", "expected"),
    [
        pytest.param([holder()], [claim(6)], id="one-holder"),
        pytest.param(MEMBERS, [claim(8, pids=(11, 12), **OF_MEMBERS)], id="members-share-the-largest-claim"),
        pytest.param(MEMBERS[::-1], [claim(8, pids=(12, 11), **OF_MEMBERS)], id="newest-member-is-read-first"),
        pytest.param(STRANGERS, [claim(6), claim(8, pids=(12,), uid=1001)], id="same-group-of-two-users-is-two-jobs"),
        pytest.param([holder(4000)], [claim(24)], id="claim-larger-than-card-is-the-whole-gpu"),
        pytest.param([holder(is_mine=True)], [], id="own-lease-is-left-out"),
        pytest.param([holder(name="elsewhere")], [claim(6, pids=())], id="holder-in-another-container-has-no-pid"),
        pytest.param([holder(since_s=500.0)], [claim(6, age_s=60.0)], id="lease-from-the-future-is-a-minute-old"),
    ],
)
def test_holders_become_claims_of_their_jobs(holders, expected):
    assert list(claims_by_gpu(jobs(holders, a=(11,), b=(12,))).get(UUID, ())) == expected


def told(job, name):
    return {uuid: getattr(claim, name) for uuid, claim in job.claims.items()}


def test_job_has_its_oldest_process_and_all_claims_of_its_members():
    other = gpu(1).uuid
    first, second = holder(group="j"), holder(8, name="b", group="j", since_s=95.0)
    second = replace(second, pid=8, claims={other: GIB})
    (job,) = jobs([first, second], inventory(gpu(0), gpu(1)), a=(7, 11))
    assert (job.pid, job.pids_here, job.age_s, len(job.members)) == (7, (7, 11), 10.0, 2)
    assert told(job, "bytes") == {UUID: 6 * GIB, other: GIB}
    assert told(job, "age_s") == {UUID: 10.0, other: 5.0}


def test_claim_on_an_unreadable_gpu_counts_as_held():
    unknown = replace(holder(), claims={"GPU-gone": GIB})
    assert [claim.bytes for claim in claims_by_gpu(jobs([unknown], a=(1,)))["GPU-gone"]] == [0]


def used(**sizes):
    """Return four GPUs. Process 7, the lease holder, uses ``sizes`` in GiB, keyed by ``gpu<index>``."""
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
        pytest.param(used(), {0: 24}, {0: 24}, id="claim-without-use-stays"),
        pytest.param(used(gpu0=1, gpu1=5), {0: 24}, {0: 24, 1: 0}, id="further-gpu-in-use-gets-an-empty-claim"),
        pytest.param(used(gpu0=1, gpu2=2), {0: 24, 1: 6}, {0: 24, 2: 6}, id="claim-moves-to-the-gpu-in-use"),
        pytest.param(used(gpu1=1, gpu2=5, gpu3=2), {0: 6}, {1: 0, 2: 6, 3: 0}, id="claim-moves-to-the-most-used-gpu"),
        pytest.param(used(gpu1=1), {0: 0}, {1: 0}, id="best-effort-claim-moves"),
        pytest.param(
            [*used(gpu0=9, gpu1=1)[:2], BARE], {0: 24, 1: 24}, {0: 24, 1: 24}, id="bare-context-does-not-count-as-use"
        ),
        pytest.param([*used(gpu0=9)[:2], BARE], {0: 24, 1: 24}, {0: 24, 1: 24}, id="no-claim-moves-to-a-bare-context"),
        pytest.param([*used(gpu0=9)[:2], BARE], {2: 24}, {2: 24, 0: 0}, id="claim-stays-on-a-gpu-with-a-bare-context"),
        pytest.param([gpu(0), gpu(1, total_gib=11, pids=[7])], {0: 24}, {1: 11}, id="moved-claim-is-cut-to-the-card"),
        pytest.param(HIDDEN, {0: 24}, {0: 24, 1: 0}, id="claim-stays-if-the-driver-hides-processes"),
        pytest.param([CARD, INSTANCE], {1: 24}, {1: 24}, id="mig-card-lists-processes-of-its-instances"),
    ],
)
def test_claim_on_an_unused_gpu_moves_to_a_gpu_in_use_without_a_claim(devices, claims, expected):
    one = replace(holder(), claims={devices[index].uuid: gib * GIB for index, gib in claims.items()})
    (job,) = jobs([one], inventory(*devices), a=(7,))
    assert told(job, "bytes") == {devices[index].uuid: gib * GIB for index, gib in expected.items()}


def test_memory_in_use_by_a_jobs_processes_counts_once():
    """The memory is used by a program below ``run --hold`` that does not load autogpu's start-up hook."""
    machine = inventory(gpu(0, compute_processes=(Process(8, 4 * GIB),), used_gib=4))
    claims = claims_by_gpu(jobs([holder(5)], machine, a=(7, 8)))[UUID]
    (device,) = machine.devices
    assert (spare_bytes(device, None, claims), unmanaged_processes(device, claims)) == (19 * GIB, ())


HELD = {UUID: (claim(1, uid=1001),)}


@pytest.mark.parametrize(
    ("demand", "claims_on", "asked", "expected"),
    [
        pytest.param({}, {}, (UUID, True, 24), True, id="whole-gpu-request-on-a-free-gpu"),
        pytest.param({}, {}, (UUID, False, 24), False, id="whole-gpu-request-on-a-busy-gpu"),
        pytest.param({"bytes_per_gpu": 8 * GIB}, {}, (UUID, False, 8), True, id="enough-memory-on-a-busy-gpu"),
        pytest.param({"bytes_per_gpu": 8 * GIB}, {}, (UUID, True, 7), False, id="too-little-memory-on-a-free-gpu"),
        pytest.param({"bytes_per_gpu": 8 * GIB}, {}, (UUID, True, None), True, id="unknown-memory"),
        pytest.param({"uuids": ("GPU-else",)}, {}, (UUID, True, 24), False, id="request-for-another-gpu"),
        pytest.param({"uuids": ("GPU-else", UUID)}, {}, (UUID, True, 24), True, id="request-for-this-or-another-gpu"),
        pytest.param({"per_user": 1}, HELD, ("GPU-else", True, 24), False, id="user-at-the-cap-awaits-no-further-gpu"),
        pytest.param({"per_user": 1}, HELD, (UUID, True, 24), True, id="user-at-the-cap-awaits-a-gpu-held-already"),
        pytest.param({"per_user": 0}, HELD, ("GPU-else", True, 24), True, id="per-user-zero-is-no-cap"),
    ],
)
def test_gpu_is_awaited_if_a_waiter_could_use_it(demand, claims_on, asked, expected):
    waiter = Waiter("wait.1", 1001, False, 7, demand=Demand(**demand))
    uuid, is_free, room_gib = asked
    device, tier = replace(gpu(0), uuid=uuid), Tier.FREE if is_free else Tier.BUSY
    candidate = Candidate(device, tier, spare_bytes=room_gib and room_gib * GIB)
    assert awaited([candidate], [waiter], claims_on) == ({uuid} if expected else set())


@pytest.mark.parametrize(
    ("demand", "age_s", "free_gib", "expected"),
    [
        pytest.param({"joins": True}, 60.0, 6, True, id="waiter-that-joins"),
        pytest.param({"joins": True, "bytes_per_gpu": 7 * GIB}, 60.0, 6, False, id="waiter-whose-need-does-not-fit"),
        pytest.param({"joins": True, "uuids": ("GPU-else",)}, 60.0, 6, False, id="waiter-for-another-gpu"),
        pytest.param({}, 60.0, 6, False, id="waiter-for-a-whole-gpu"),
        pytest.param({"joins": True}, 59.0, 6, False, id="claim-younger-than-a-minute"),
        pytest.param({"joins": True}, 60.0, 5, False, id="less-than-a-quarter-is-free"),
        pytest.param({"joins": True, "last_runs": {UUID: 6 * GIB}}, 60.0, 6, True, id="last-runs-took-as-much"),
        pytest.param({"joins": True, "last_runs": {UUID: 7 * GIB}}, 60.0, 6, False, id="last-runs-took-more"),
        pytest.param({"joins": True, "last_runs": {"GPU-else": 7 * GIB}}, 60.0, 6, True, id="last-runs-on-another-gpu"),
    ],
)
def test_joinable_gpu_is_awaited_by_a_waiter_that_joins_and_fits(demand, age_s, free_gib, expected):
    waiter = Waiter("wait.1", 1001, False, 7, demand=Demand(**demand))
    here = (claim(24, age_s=age_s),)
    sizes = {"spare_bytes": 0, "free_bytes": free_gib * GIB}
    candidate = Candidate(gpu(0, pids=[11]), Tier.BUSY, here, is_best_effort=True, **sizes)
    assert bool(awaited([candidate], [waiter], {})) is expected


@pytest.mark.parametrize(("took_gib", "expected"), [(4, True), (5, False)])
def test_idle_lease_is_awaited_only_if_the_waiters_last_runs_fit(took_gib, expected):
    waiter = Waiter("wait.1", 1001, False, 7, demand=Demand(joins=True, last_runs={UUID: took_gib * GIB}))
    candidate = Candidate(gpu(0), Tier.IDLE_LEASE, (claim(24, age_s=7200.0),), free_bytes=4 * GIB)
    assert bool(awaited([candidate], [waiter], {})) is expected
