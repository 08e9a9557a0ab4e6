"""A GPU that is not well: when it is chosen all the same, and what is said of it."""

from __future__ import annotations

import pytest

from autogpu.policy import Policy
from autogpu.selection import explain
from autogpu.selection.health import health_problems, memory_faults
from autogpu.selection.model import Cause, SelectionRules
from autogpu.selection.ranking import rank, rules_for
from tests.support.selections import INHERITED, UNSET
from tests.support.values import gpu

FAILED = {"remapping_failed": True}
PENDING = {"remapping_pending": True}
RETIRED = {"retirement_pending": True}
ERRORS = {"uncorrected_errors": 2}
HOT = {"is_too_hot": True}
BUSY = {"pids": [7], "used_gib": 2}


ANYTHING = SelectionRules()


def order(*devices, rules=ANYTHING):
    return [candidate.device.index for candidate in rank(devices, rules).candidates]


@pytest.mark.parametrize("fault", [FAILED, PENDING, RETIRED, ERRORS, HOT], ids=str)
def test_it_comes_after_every_healthy_one_of_its_tier(fault):
    # The highest index is the first of equals.
    assert order(gpu(0), gpu(1, **fault)) == [0, 1]
    assert order(gpu(0, total_gib=8, busy=40), gpu(1, total_gib=80, **fault)) == [0, 1]
    # Nothing is known of its memory, and of no fault.
    assert order(gpu(0, total_gib=None), gpu(1, **fault)) == [0, 1]
    # A job of somebody else's is worse than a fault that may never show.
    assert order(gpu(0, **BUSY), gpu(1, **fault)) == [1, 0]
    assert order(gpu(0, **BUSY), gpu(1, **BUSY, **fault)) == [0, 1]


@pytest.mark.parametrize("fault", [FAILED, PENDING, RETIRED, ERRORS], ids=str)
def test_heat_passes_and_a_fault_stays(fault):
    assert order(gpu(0, **HOT), gpu(1, **fault)) == [0, 1]


@pytest.mark.parametrize("fault", [FAILED, PENDING, RETIRED, ERRORS], ids=str)
def test_the_policy_may_refuse_it(fault):
    rules = rules_for(Policy(faulty="never"), UNSET, None)
    ranking = rank([gpu(0, **fault), gpu(1, **HOT)], rules)
    (rejected,) = ranking.rejected
    assert [candidate.device.index for candidate in ranking.candidates] == [1]
    assert (rejected.device.index, rejected.cause) == (0, Cause.EXCLUDED_BY_POLICY)
    assert rejected.why == f"refused by select.faulty: {memory_faults(gpu(0, **fault))[0]}"


def test_who_names_the_gpu_has_it_unless_the_key_is_locked():
    never = Policy(faulty="never")
    locked = Policy(faulty="never", locked=frozenset(["select.faulty"]))
    assert order(gpu(0, **FAILED), rules=rules_for(never, INHERITED, None)) == [0]
    assert order(gpu(0, **FAILED), rules=rules_for(locked, INHERITED, None)) == []


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, ()),
        (FAILED, ("row remapping failed",)),
        (PENDING, ("row remapping pending until a reset",)),
        (RETIRED, ("page retirement pending until a reset",)),
        ({"uncorrected_errors": 1}, ("1 uncorrectable memory error since boot",)),
        (ERRORS, ("2 uncorrectable memory errors since boot",)),
        (HOT, ("slowed down by heat",)),
        ({**FAILED, **HOT}, ("row remapping failed", "slowed down by heat")),
    ],
    ids=str,
)
def test_each_is_named(fields, words):
    assert health_problems(gpu(0, **fields)) == words


def test_the_line_of_who_gets_one_says_it():
    def why(*devices, count=1):
        ranking = rank(devices, ANYTHING)
        return explain.taken(ranking, ranking.candidates[:count], UNSET, has_context=False)

    assert why(gpu(0), gpu(1, **FAILED)) == "the idlest of 2"
    assert why(gpu(0, **FAILED)) == "the only one (not healthy: row remapping failed)"
    assert why(gpu(0), gpu(1, **ERRORS), count=2) == (
        "all 2 (not healthy: GPU 1: 2 uncorrectable memory errors since boot)"
    )
    # Once, where others are on it as well.
    assert why(gpu(0, **BUSY, **HOT)).count("slowed down by heat") == 1
