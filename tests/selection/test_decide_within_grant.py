"""Decisions inside what an engine granted."""

from __future__ import annotations

import pytest

from autogpu.policy import MemoryLimit, Policy
from autogpu.reporting.text import GIB
from autogpu.selection.explain import BEST_EFFORT, BEST_EFFORT_OF_PART
from autogpu.selection.grants import Grant
from autogpu.selection.memory import CONTEXT_BYTES, caps
from autogpu.selection.model import MemoryDemand, Verdict, VisibleSpec
from autogpu.selection.ranks import LocalRank
from tests.support.selections import INHERITED, claim, claimed, decided
from tests.support.values import gpu, inventory

PART = 12 * GIB - CONTEXT_BYTES
NONE = Grant("Slurm", "Slurm granted no GPU here", "ask for one", is_none=True)
HALF = Grant("Ray", fraction=0.5)
CHIEF = Grant("TF_CONFIG", "a chief", "AUTOGPU_COUNT=1", needs_none=True)


@pytest.mark.parametrize("busy", ["share", "wait", "error"])
def test_where_nothing_was_granted_the_process_goes_on_without_and_is_never_stopped(busy):
    decision = decided(gpu(0), policy=Policy(busy=busy), grant=NONE)
    assert (decision.verdict, decision.why) == (Verdict.CPU, "Slurm granted no GPU here; ask for one")
    assert decided(gpu(0), grant=NONE, chosen=(0,)).verdict is Verdict.CPU


def test_what_the_script_itself_lists_is_its_word_also_without_a_grant():
    assert decided(gpu(0), spec=VisibleSpec("0", "script"), grant=NONE).verdict is Verdict.TAKE


def test_of_several_gpus_of_its_own_a_rank_takes_the_idlest():
    own = Grant(rank=LocalRank(1, 2, "TF_CONFIG", place=0, sharers=1))
    assert decided(gpu(0, pids=[7], used_gib=9, busy=90), gpu(1), spec=INHERITED, grant=own).ordinals == (1,)


def test_a_rank_of_a_best_effort_job_is_one_itself():
    grant, busy = Grant(rank=LocalRank(1, 2, "MPICH")), gpu(1, pids=[7], used_gib=16, busy=90)
    decision = decided(gpu(0), busy, grant=grant, promised={gpu(0).uuid: 24 * GIB, busy.uuid: 0})
    assert (decision.claims, decision.shares) == ({busy.uuid: 0}, {1: 4 * GIB})
    assert decision.cap == BEST_EFFORT


def test_a_task_that_coordinates_takes_none_unless_the_user_or_the_script_says_so():
    assert decided(gpu(0), grant=CHIEF).verdict is Verdict.CPU
    assert decided(gpu(0), grant=CHIEF, count_is_set=True).verdict is Verdict.TAKE
    assert decided(gpu(0), grant=CHIEF, chosen=(0,)).verdict is Verdict.NOT_OUR_CHOICE


@pytest.mark.parametrize("first", [0, 12], ids=["alone", "beside the other half"])
def test_half_a_gpu_is_half_of_its_memory_whoever_comes_first(first):
    others = claimed((0, claim(first))) if first else {}
    decision = decided(gpu(0), spec=INHERITED, grant=HALF, claims_on=others)
    assert decision.claims == {gpu(0).uuid: 12 * GIB}
    assert decision.granted == caps(Policy(), decision) == {0: 12 * GIB - CONTEXT_BYTES}
    assert "50 % of it granted by Ray" in decision.why


def test_half_a_gpu_whose_memory_others_use_is_a_best_effort_job():
    decision = decided(gpu(0, used_gib=16, pids=[7], busy=90), grant=HALF)
    assert (decision.claims, decision.shares) == ({gpu(0).uuid: 0}, {0: 4 * GIB})
    assert decision.cap == BEST_EFFORT_OF_PART


@pytest.mark.parametrize(
    ("policy", "claim_bytes", "cap_bytes"),
    [
        (Policy(limit=MemoryLimit(bytes=4 * GIB)), 4 * GIB + CONTEXT_BYTES, 4 * GIB),
        (Policy(limit=MemoryLimit(bytes=20 * GIB)), 20 * GIB + CONTEXT_BYTES, PART),
        (Policy(need_bytes=4 * GIB), 4 * GIB, PART),
    ],
    ids=["smaller-limit", "larger-limit", "need"],
)
def test_the_policys_own_numbers_are_claimed_and_never_lift_the_cap(policy, claim_bytes, cap_bytes):
    decision = decided(gpu(0), policy=policy, grant=HALF)
    assert decision.claims == {gpu(0).uuid: claim_bytes}
    assert caps(policy, decision) == {0: cap_bytes}
    assert "50 % of it granted by Ray" in decision.why


def test_what_the_script_allows_itself_is_cut_to_the_part():
    decision = decided(gpu(0), grant=HALF, script_demand=MemoryDemand(bytes=20 * GIB, or_best_effort=True))
    assert decision.ceilings == {0: PART}


def test_in_a_grant_no_other_gpu_is_recommended_and_lists_of_the_policy_have_no_effect():
    busy = gpu(1, pids=[7], used_gib=9, busy=90)
    policy = Policy(exclude=("1",))
    machine, spec = inventory(gpu(0), busy), VisibleSpec("1", "inherited")
    decision = decided(visible=[busy], machine=machine, spec=spec, grant=Grant("Slurm"), policy=policy)
    assert (decision.claims.keys(), "idle" in decision.why) == ({busy.uuid}, False)
    assert "select.exclude does not apply to what Slurm granted" in decision.why


def test_ranks_share_the_part():
    grant = Grant("Slurm", fraction=0.5, rank=LocalRank(1, 2, "Slurm"))
    decision = decided(gpu(0), spec=INHERITED, grant=grant)
    assert decision.claims == {gpu(0).uuid: 6 * GIB}
    assert decision.shares == {0: 6 * GIB - CONTEXT_BYTES}


def test_a_rank_with_gpus_of_its_own_has_all_of_them():
    own = Grant("Slurm", rank=LocalRank(1, 2, "Slurm", place=0, sharers=1))
    assert decided(gpu(2), spec=INHERITED, grant=own).claims == {gpu(2).uuid: 24 * GIB}
    two = decided(gpu(2), gpu(3), policy=Policy(count="all"), spec=INHERITED, grant=own)
    assert (two.ordinals, two.shares) == ((0, 1), {})
