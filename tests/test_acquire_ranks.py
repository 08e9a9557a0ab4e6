"""Tests how the ranks of one job acquire GPUs. The first rank reserves for all ranks, or each rank chooses alone."""

import pytest

from autogpu.engines.model import Grant, LocalRank
from autogpu.lease import GaveUp
from autogpu.selection.decision import RankSlice, Verdict
from autogpu.text import GIB
from tests.support.acquiring import BUSY, JOB, TWO, WAITS, asking, beside, bytes_on, child_of, leases, rank_of
from tests.support.selections import fields
from tests.support.values import gpu


@pytest.mark.parametrize("busy", ["wait", "share", "error", "cpu"])
def test_first_rank_reserves_the_idlest_gpus_for_all_ranks(acquired, busy):
    first = acquired(rank_of(0, BUSY, gpu(1), gpu(2), busy=busy))
    # Rank 1 has not started yet, but rank 0 has already reserved a GPU for it.
    assert set(first.lease.claims) == set(bytes_on(TWO))
    assert (first.decision.ordinals, first.decision.claims) == ((1,), bytes_on({1: 24}))


def test_gpus_reserved_for_ranks_are_not_given_to_another_job(acquired, other):
    first = other(TWO, **JOB)
    with pytest.raises(GaveUp):
        acquired(rank_of(0, BUSY, gpu(1), gpu(2), job="launcher.8.1"))
    second = acquired(rank_of(1, BUSY, gpu(1), gpu(2)))
    assert (second.decision.ordinals, second.decision.claims) == ((2,), bytes_on({2: 24}))
    # Rank 1 keeps the reservation for both ranks. So rank 0 can end first, start again, and get the same GPU.
    assert second.lease.claims == bytes_on(TWO)
    first.end()
    assert acquired(rank_of(0, BUSY, gpu(1), gpu(2))).decision.claims == bytes_on({1: 24})


@pytest.mark.parametrize(("others_gib", "is_capped"), [(24, True), (8, True), (0, False)])
def test_rank_is_capped_on_a_gpu_that_another_job_reserved(acquired, other, others_gib, is_capped):
    rank = LocalRank(1, 2, "Open MPI")  # autogpu does not know the rank's job, so the rank chooses alone
    other({1: others_gib})
    late, granted = (acquired(asking(gpu(0), gpu(1), grant=Grant(by, rank=rank))).decision for by in ("", "Slurm"))
    assert (late.ordinals, late.is_capped_by_others, gpu(1).uuid in late.caps) == ((1,), is_capped, is_capped)
    assert late.claims == bytes_on({1: 0 if is_capped else 24})
    assert granted.caps == {}, "an engine granted it"


def test_rank_reserves_the_gpus_it_sees_if_its_job_reserved_only_others(acquired, other):
    other({0: 24}, **JOB)
    assert acquired(rank_of(0, gpu(2), gpu(3))).lease.claims.keys() == set(bytes_on({2: 24, 3: 24}))


POOL = (BUSY, gpu(1), gpu(2, pids=[8], used_gib=20, busy=90), gpu(3), gpu(4), gpu(5))


@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["in-order", "second-rank-first"])
@pytest.mark.parametrize(
    ("named", "expected"),
    [
        pytest.param([(0, 1), (2, 3)], [{0: 1, 1: 3}, {2: 4, 3: 5}], id="two-each"),
        pytest.param([(0, 2), (1, 3)], [{0: 1, 2: 4}, {1: 3, 3: 5}], id="every-second-gpu"),
        pytest.param([(0,), (2,)], [{0: 4}, {2: 5}], id="first-of-two-each"),
    ],
)
def test_gpu_number_of_a_rank_is_an_index_into_its_jobs_gpus(acquired, order, named, expected):
    found = {rank: acquired(rank_of(rank, *POOL, numbers=named[rank])).decision.moved for rank in order}
    assert [found[0], found[1]] == expected


@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["in-order", "second-rank-first"])
def test_rank_naming_one_gpu_and_rank_naming_three_claim_different_gpus(acquired, order):
    named, idle = [(0,), (1, 2, 3)], [gpu(index) for index in range(4)]
    taken = {rank: acquired(rank_of(rank, *idle, numbers=named[rank])).decision for rank in order}
    assert taken[0].claims.keys().isdisjoint(taken[1].claims)
    # autogpu maps each GPU number that a rank names to a GPU, even if no free GPU is left.
    assert [tuple(taken[rank].moved) for rank in (0, 1)] == named


@pytest.mark.parametrize(
    ("stated", "each_gib", "together_gib"),
    [
        pytest.param({}, 12, 24, id="no-need"),
        pytest.param({"need_bytes": 6 * GIB}, 6, 12, id="stated-need"),
        pytest.param({"need_bytes": 20 * GIB}, 20, 24, id="needs-larger-than-card"),
    ],
)
def test_lease_of_a_rank_on_a_shared_gpu_covers_all_ranks_there(acquired, stated, each_gib, together_gib):
    ranks = [acquired(rank_of(place, gpu(1), **stated)) for place in (0, 1)]
    assert [rank.decision.claims for rank in ranks] == [bytes_on({1: each_gib})] * 2
    # Any rank may be the last to end. So the lease of each rank covers all ranks on the GPU.
    assert [rank.lease.claims for rank in ranks] == [bytes_on({1: together_gib})] * 2


def test_rank_that_names_all_gpus_does_not_wait_until_they_are_free(acquired):
    looks, asked = [], rank_of(0, BUSY, gpu(1), busy="share", wait_s=1.0, numbers=(0, 1))
    named = acquired(asked, on_wait=lambda queue, decision: looks.append(decision)).decision
    assert (named.verdict, named.ordinals, looks) == (Verdict.TAKE, (0, 1), [])


SECOND, COMPUTES = {"ordinals": (1,)}, {"used": (2,)}
SHARED = {"claims": bytes_on({1: 12}), "slice": RankSlice(LocalRank(1, 2, "Open MPI", job=JOB["group"]), 2, 2)}
CAPPED = {"claims": bytes_on({1: 0}), "cap_bytes": bytes_on({1: 19.5})}


@pytest.mark.parametrize(
    ("held", "options", "rank", "reserved", "expected"),
    [
        pytest.param(TWO, JOB, rank_of(0, BUSY, gpu(1), gpu(2)), {1, 2}, SECOND, id="child-of-a-rank"),
        pytest.param(TWO, {}, rank_of(1, gpu(1), gpu(2)), set(), SECOND, id="below-a-hold"),
        pytest.param({2: 24}, COMPUTES, rank_of(0, BUSY, gpu(1), gpu(2), gpu(3)), {1, 3}, SECOND, id="parent-computes"),
        pytest.param({2: 24}, {}, rank_of(0, BUSY, gpu(1), gpu(2)), {1, 2}, SECOND, id="parent-computes-nothing"),
        pytest.param({1: 24}, {}, rank_of(1, gpu(1)), set(), SHARED, id="more-ranks-than-held-gpus"),
        pytest.param({1: 0, 2: 24}, {}, rank_of(0, gpu(1, used_gib=4), gpu(2)), set(), CAPPED, id="parents-cap"),
    ],
)
def test_ranks_started_by_a_job_share_its_claim_or_reserve_own_gpus(
    acquired, other, tmp_path, held, options, rank, reserved, expected
):
    used = options.get("used", ())
    job = other(held, **{name: value for name, value in options.items() if name != "used"})
    below = acquired(beside(rank, job, *used), **child_of(tmp_path))
    assert (set() if below.is_parents else set(below.lease.claims)) == {gpu(index).uuid for index in reserved}
    assert fields(below.decision, expected) == expected


def test_ranks_hold_no_gpu_while_they_wait_for_one_gpu_each(acquired, tmp_path):
    seen = []
    with pytest.raises(GaveUp):
        acquired(rank_of(0, BUSY, gpu(1)), on_wait=lambda queue, decision: seen.append(decision))
    assert [(each.verdict, each.waits_for, each.free) for each in seen] == [(Verdict.WAIT, 2, 1)]
    assert leases(tmp_path).holders == ()


@pytest.mark.parametrize(("busy", "verdict"), [("cpu", Verdict.CPU), ("error", Verdict.REFUSE)])
def test_ranks_follow_select_busy_if_too_few_gpus_are_free(acquired, tmp_path, busy, verdict):
    asked = rank_of(0, BUSY, gpu(1, pids=[8], used_gib=20, busy=90), busy=busy)
    assert acquired(asked).decision.verdict is verdict
    assert leases(tmp_path).holders == ()


@pytest.mark.parametrize(
    "grant",
    [
        pytest.param(Grant("Slurm", rank=LocalRank(0, 2, "Slurm", job=JOB["group"])), id="granted-by-an-engine"),
        pytest.param(Grant(rank=LocalRank(0, 2, "MPICH", dividers=1, job=JOB["group"])), id="own-gpus"),
        pytest.param(Grant(rank=LocalRank(0, 2, "Open MPI")), id="unknown-job"),
    ],
)
def test_rank_with_granted_or_own_gpus_or_unknown_job_chooses_alone(acquired, grant):
    result = acquired(asking(BUSY, gpu(1), **WAITS, grant=grant))
    assert (result.decision.verdict, result.lease.claims) == (Verdict.TAKE, result.decision.claims)
