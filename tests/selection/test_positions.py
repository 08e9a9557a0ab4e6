"""What a script that names GPUs by number gets, where the order is autogpu's."""

from __future__ import annotations

import pytest

from autogpu.policy import MemoryLimit, Policy
from autogpu.reporting.text import GIB
from autogpu.selection import explain
from autogpu.selection.model import MemoryDemand, Verdict
from autogpu.selection.positions import place
from tests.support.selections import INHERITED, ME, claim, claimed, decided
from tests.support.values import gpu

BUSY = {"pids": [7], "used_gib": 9, "busy": 90}
# The pool as the process counts it, idlest first when it began.
POOL = [gpu(3), gpu(2), gpu(1), gpu(0)]


@pytest.mark.parametrize(
    ("named", "taken", "expected"),
    [
        pytest.param((2,), (2,), {2: 2}, id="its-own"),
        pytest.param((2,), (0,), {2: 0}, id="another"),
        pytest.param((2, 3), (3, 0), {2: 0, 3: 3}, id="one-of-two"),
        pytest.param((3, 0), (0, 3), {3: 3, 0: 0}, id="in-the-scripts-order"),
        pytest.param((0, 1, 2), (1, 3), {0: 3, 1: 1, 2: 1}, id="more-named-than-taken"),
    ],
)
def test_each_position_has_a_gpu(named, taken, expected):
    found = place(named, taken)
    assert found == expected
    assert list(found) == list(named)


def by_position(*positions, devices=POOL, **options):
    return decided(*devices, chosen=positions, chosen_by_position=True, **options)


def test_a_position_is_its_own_gpu_while_that_is_free():
    decision = by_position(2)
    assert (decision.verdict, decision.ordinals, decision.moved) == (Verdict.TAKE, (2,), {2: 2})
    assert decision.why == "position 2 of 4, named by the script"
    assert decision.claims == {gpu(1).uuid: 24 * GIB}


@pytest.mark.parametrize("taken", [{"claims_on": claimed((1, claim(24)))}, {"busy": True}], ids=["leased", "busy"])
def test_a_position_that_is_taken_is_the_idlest_free_gpu(taken):
    devices = [gpu(3), gpu(2), gpu(1, **BUSY), gpu(0)] if taken.pop("busy", False) else POOL
    decision = by_position(2, devices=devices, **taken)
    assert (decision.ordinals, decision.moved) == ((0,), {2: 0})
    assert decision.why == "position 2 of 4, named by the script; GPU 1 at that position is taken"


def test_siblings_that_name_one_position_each_never_meet_while_a_gpu_is_free():
    claims_on = {}
    for position in (2, 2, 0, 1):
        decision = by_position(position, claims_on=claims_on)
        (uuid,) = decision.claims
        assert uuid not in claims_on
        claims_on[uuid] = (claim(24),)
    assert set(claims_on) == {device.uuid for device in POOL}


def test_the_fifth_of_four_shares_as_the_policy_says():
    claims_on = claimed(*((index, claim(24)) for index in range(4)))
    shared = by_position(1, claims_on=claims_on)
    assert shared.verdict is Verdict.TAKE
    assert set(shared.shares.values()) == {12 * GIB}
    assert by_position(1, claims_on=claims_on, policy=Policy(busy="wait")).verdict is Verdict.WAIT
    assert by_position(1, claims_on=claims_on, policy=Policy(busy="error")).verdict is Verdict.REFUSE
    assert by_position(1, claims_on=claims_on, policy=Policy(busy="cpu")).verdict is Verdict.CPU


def test_several_positions_are_several_gpus_in_their_order():
    decision = by_position(2, 0)
    assert (decision.ordinals, decision.moved) == ((2, 0), {2: 2, 0: 0})
    assert decision.why == "positions 2 and 0 of 4, named by the script"


def test_several_positions_keep_their_own_where_none_is_free():
    busy = {"pids": [7], "busy": 90}
    decision = by_position(0, 2, devices=[gpu(3), gpu(2, used_gib=1, **busy), gpu(1, used_gib=9, **busy)])
    assert (decision.ordinals, decision.moved) == ((0, 2), {0: 0, 2: 2})
    assert list(decision.shares) == [2]
    alone = by_position(0, 2, devices=[gpu(3), gpu(2), gpu(1, **BUSY)], policy=Policy(busy="cpu", count=1))
    assert (alone.ordinals, alone.moved) == ((0, 1), {0: 0, 2: 1})


def test_a_script_that_names_what_a_limit_does_not_fit_on_gets_it_all_the_same():
    policy = Policy(limit=MemoryLimit(bytes=2 * GIB))
    decision = by_position(0, devices=[gpu(0)], policy=policy, claims_on=claimed((0, claim(24))))
    assert (decision.verdict, decision.claims) == (Verdict.NOT_OUR_CHOICE, {gpu(0).uuid: 0})


def test_a_cap_on_a_user_holds_for_positions_too():
    decision = by_position(0, 1, policy=Policy(per_user=1))
    assert len(decision.claims) == 1
    assert "the script names 2, limits.per_user allows 1: the others are logical GPUs on it" in decision.why
    mine = claimed((0, claim(24, uid=ME)))
    assert list(by_position(0, policy=Policy(per_user=1), claims_on=mine).claims) == [gpu(0).uuid]
    assert by_position(0, policy=Policy(per_user=1, busy="cpu"), claims_on=mine).verdict is Verdict.CPU


def test_a_list_names_certain_gpus():
    decision = decided(gpu(0, **BUSY), gpu(1), chosen=[0], spec=INHERITED)
    assert (decision.verdict, list(decision.claims)) == (Verdict.NOT_OUR_CHOICE, [gpu(0).uuid])


# Device names: how many GPUs, but not which.


@pytest.mark.parametrize(
    ("options", "count", "why"),
    [
        ({"named_count": 2}, 2, ""),
        ({"asked_count": 3}, 3, ""),
        ({"named_count": 2, "count_is_set": True}, 1, "select.count is 1"),
        ({"named_count": 2, "policy": Policy(count=3), "count_is_set": True}, 3, ""),
        ({"named_count": 2, "policy": Policy(per_user=1)}, 1, "limits.per_user allows 1"),
        ({"named_count": 9}, 4, "there are no more"),
    ],
)
def test_names_ask_for_as_many_gpus(options, count, why):
    decision = decided(*POOL, **options)
    assert len(decision.ordinals) == count
    assert why in decision.why
    assert bool(why) == ("logical GPU" in decision.why)


def test_a_second_name_is_no_reason_to_share():
    decision = decided(gpu(0, **BUSY), gpu(1), named_count=2)
    assert (decision.ordinals, decision.shares) == ((1,), {})


# What the script itself limits


def test_what_the_script_allows_itself_is_what_is_claimed():
    demand = MemoryDemand(bytes=8 * GIB, is_limit=True, or_best_effort=True)
    policy = Policy(need_bytes=2 * GIB)
    assert decided(gpu(0), script_demand=demand, policy=policy).claims == {gpu(0).uuid: 8 * GIB}
    second = decided(gpu(0), script_demand=demand, claims_on=claimed((0, claim(8))))
    assert (second.verdict, second.claims, second.shares) == (Verdict.TAKE, {gpu(0).uuid: 8 * GIB}, {})


def test_a_script_that_allows_itself_too_much_is_capped_beside_others():
    demand = MemoryDemand(percent=90, is_limit=True, or_best_effort=True)
    decision = decided(gpu(0, used_gib=14, pids=[7]), script_demand=demand)
    assert (decision.claims, decision.shares) == ({gpu(0).uuid: 0}, {0: 5 * GIB})
    assert decision.cap == explain.BEST_EFFORT_BY_SCRIPT
    alone = decided(gpu(0), script_demand=demand)
    assert alone.shares == {}
