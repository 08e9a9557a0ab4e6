"""What a script that names GPUs by number gets, where the order is autogpu's."""

import pytest

from autogpu.policy import MemoryLimit
from autogpu.reporting.text import GIB
from autogpu.selection.decide import gpus_of_positions
from autogpu.selection.explain import BEST_EFFORT_OF_SIZE as CAP
from autogpu.selection.memory import within_context
from autogpu.selection.model import MemoryDemand, Verdict
from tests.support.selections import INHERITED, ME, case, claim, decided, fields
from tests.support.values import gpu

BUSY = gpu(1, pids=[7], used_gib=9, busy=90)
LESS_BUSY = gpu(2, pids=[7], used_gib=1, busy=90)
# The pool as the process counts it, idlest first when it began.
POOL = [gpu(3), gpu(2), gpu(1), gpu(0)]
ONE, FULL, ZERO = [gpu(0)], [gpu(0, used_gib=14, pids=[7])], gpu(0).uuid
FREE_BESIDE = {gpu(1).uuid: within_context(15 * GIB)}
CAPPED = {"claims": {ZERO: 0}, "caps": {ZERO: within_context(10 * GIB)}, "why_capped": CAP}
TWO_GIB = MemoryLimit(bytes=2 * GIB)
ALL = {"held": {index: claim(24, age_s=60.0) for index in range(4)}}
BEGUN = {"held": {0: claim(24)}}
MINE = {"held": {0: claim(24, uid=ME, age_s=60.0)}, "per_user": 1}
CPU, LEFT, TAKE = Verdict.CPU, Verdict.NOT_OUR_CHOICE, Verdict.TAKE
NAMED, MOVED = "position 2 of 4, named by the script", "; GPU 1 at that position is taken"
EIGHT = {"script_demand": MemoryDemand(bytes=8 * GIB, is_limit=True, or_best_effort=True)}
NEARLY_ALL = {"script_demand": MemoryDemand(percent=90, is_limit=True, or_best_effort=True)}


@pytest.mark.parametrize(
    ("named", "taken", "expected"),
    [
        pytest.param((2, 3), (3, 0), {2: 0, 3: 3}, id="one-of-two"),
        pytest.param((3, 0), (0, 3), {3: 3, 0: 0}, id="in-the-scripts-order"),
        pytest.param((0, 1, 2), (1, 3), {0: 3, 1: 1, 2: 1}, id="more-named-than-taken"),
    ],
)
def test_each_position_has_a_gpu(named, taken, expected):
    found = gpus_of_positions(named, taken)
    assert (found, list(found)) == (expected, list(named))


def by_position(*positions, **asked):
    return {"positions": positions, **asked}


@pytest.mark.parametrize(
    ("gpus", "asked", "expected"),
    [
        case("its-own", POOL, by_position(2), moved={2: 2}, claims={gpu(1).uuid: 24 * GIB}, verdict=TAKE, why=NAMED),
        case("leased", POOL, by_position(2, held={1: claim(24)}), moved={2: 0}, ordinals=(0,), why=NAMED + MOVED),
        case("busy", [*POOL[:2], BUSY, gpu(0)], by_position(2), moved={2: 0}, why=NAMED + MOVED),
        case("several", POOL, by_position(2, 0), ordinals=(2, 0), why="positions 2 and 0 of 4, named by the script"),
        case("several-keep-theirs", [gpu(3), LESS_BUSY, BUSY], by_position(0, 2), moved={0: 0, 2: 2}, caps=FREE_BESIDE),
        case("where-it-has-a-context", POOL, by_position(2, in_use=[2], held={1: claim(24)}), moved={2: 2}),
        case("beside-its-context", POOL, by_position(2, in_use=[0], held={1: claim(24)}), moved={2: 0}),
        case("without-sharing", [*POOL[:2], BUSY], by_position(0, 2, busy="cpu"), ordinals=(0, 1), moved={0: 0, 2: 1}),
        case("a-fifth-shares", POOL, by_position(1, **ALL), verdict=TAKE, caps={gpu(3).uuid: within_context(24 * GIB)}),
        case("the-fifth-stops", POOL, by_position(1, busy="error", **ALL), verdict=Verdict.REFUSE),
        case("the-fifth-goes-without", POOL, by_position(1, busy="cpu", **ALL), verdict=CPU),
        case("what-a-limit-exceeds", ONE, by_position(0, limit=TWO_GIB, **BEGUN), verdict=Verdict.WAIT),
        case("for-a-minute", ONE, by_position(0, limit=TWO_GIB, **ALL), claims={ZERO: int(2.5 * GIB)}, verdict=TAKE),
        case("where-nothing-helps", [gpu(0, compute_mode="prohibited")], by_position(0), verdict=LEFT),
        case("at-the-cap-ones-own", POOL, by_position(0, **MINE), claims={ZERO: 0}),
        # Not by position.
        case("a-list-names-certain-gpus", [BUSY, gpu(0)], {"chosen": [0], "visible_spec": INHERITED}, verdict=LEFT),
        case("a-second-name-is-no-reason-to-share", [BUSY, gpu(0)], {"named_count": 2}, ordinals=(1,), caps={}),
        # What the script allows itself is what is claimed.
        case("beside-them", ONE, {**EIGHT, "held": {0: claim(8)}}, verdict=TAKE, claims={ZERO: 8 * GIB}, caps={}),
        case("where-it-does-not-fit", FULL, NEARLY_ALL, **CAPPED),
        case("not-capped-alone", ONE, NEARLY_ALL, caps={}, why_capped=""),
    ],
)
def test_a_script_that_names_gpus_or_limits(gpus, asked, expected):
    assert fields(decided(*gpus, **asked), expected) == expected


@pytest.mark.parametrize(
    ("asked", "count", "why"),
    [
        pytest.param({"named_count": 2}, 2, "", id="named"),
        pytest.param({"asked_count": 3}, 3, "", id="asked-by-number"),
        pytest.param({"named_count": 2, "count_is_set": True}, 1, "select.count is 1", id="the-policy-says-one"),
        pytest.param(by_position(0, 1, per_user=1), 1, "limits.per_user allows 1", id="cap-for-positions"),
        pytest.param({"named_count": 9}, 4, "there are no more", id="more-than-there-are"),
    ],
)
def test_names_ask_for_as_many_gpus(asked, count, why):
    decision = decided(*POOL, **asked)
    assert (len(decision.claims), why in decision.why) == (count, True)
    others = f"{why}: the others are logical GPUs on {'it' if count == 1 else 'them'}"
    assert decision.why.endswith(others) == bool(why)
