"""Scripts that choose GPUs by number: each number stands for a GPU that is taken, the first for the idlest."""

import sys

import pytest

from autogpu.caps import within_context
from autogpu.devices.model import ComputeMode
from autogpu.policy import MemoryLimit
from autogpu.selection.decide import gpus_of_numbers
from autogpu.selection.decision import Decision, Reason, Shortfall, Verdict
from autogpu.selection.model import MemoryDemand, VisibleSpec, Wanted, WantedBy, wanted_gpus
from autogpu.text import GIB
from tests.support.selections import INHERITED, ME, case, claim, decided, fields
from tests.support.values import gpu, instance

BUSY = gpu(1, pids=[7], used_gib=9, busy=90)
LESS_BUSY = gpu(2, pids=[7], used_gib=1, busy=90)
# The pool in the order of CUDA ordinals. It was sorted when the process started, idlest GPU first.
POOL = [gpu(3), gpu(2), gpu(1), gpu(0)]
ONE, FULL, ZERO = [gpu(0)], [gpu(0, used_gib=14, pids=[7])], gpu(0).uuid
FREE_BESIDE = {gpu(2).uuid: within_context(23 * GIB)}
CAPPED = {"claims": {ZERO: 0}, "cap_bytes": {ZERO: within_context(10 * GIB)}, "is_capped_by_others": True}
TWO_GIB = MemoryLimit(bytes=2 * GIB)
ALL = {"held": {index: claim(24, age_s=60.0) for index in range(4)}}
BEGUN = {"held": {0: claim(24)}}
BEGUN_1 = {"held": {1: claim(24)}}
MINE = {"held": {0: claim(24, uid=ME, age_s=60.0)}, "per_user": 1}
CPU, LEFT, TAKE = Verdict.CPU, Verdict.NOT_OUR_CHOICE, Verdict.TAKE
MIXED = [gpu(3, total_gib=11), gpu(2), gpu(1), gpu(0)]
HELD_BUT_1, HELD_BUT_3 = ({index: claim(24) for index in range(4) if index != free} for free in (1, 3))
YOUNG = {"held": {index: claim(24) for index in range(4)}}
PLACES = {"keeps_places": True}
PLACE_IN_USE = {**PLACES, "held": {1: claim(24)}}
BY_SCRIPT = {"visible_spec": VisibleSpec("3,2", is_scripts=True)}
EIGHT = {"script_demand": MemoryDemand(bytes=8 * GIB, is_limit=True, or_best_effort=True)}
NEARLY_ALL = {"script_demand": MemoryDemand(percent=90, is_limit=True, or_best_effort=True)}


@pytest.mark.parametrize(
    ("numbers", "taken", "kept", "expected"),
    [
        pytest.param((3,), (1,), (), {3: 1}, id="one-number"),
        pytest.param((2, 0), (0, 1), (), {2: 0, 0: 1}, id="two-numbers-in-the-scripts-order"),
        pytest.param((0, 1, 2), (1, 3), (), {0: 1, 1: 3, 2: 1}, id="more-numbers-than-taken-gpus"),
        pytest.param((2, 3), (3, 0), (3,), {2: 0, 3: 3}, id="one-number-keeps-its-gpu"),
    ],
)
def test_each_number_of_the_script_stands_for_a_taken_gpu(numbers, taken, kept, expected):
    found = gpus_of_numbers(numbers, taken, kept)
    assert (found, list(found)) == (expected, list(numbers))


@pytest.mark.parametrize(
    ("moved", "expected"),
    [
        pytest.param({0: 0}, {}, id="first-gpu-is-the-idlest"),
        pytest.param({3: 0}, {3: 0, 0: 1, 1: 2, 2: 3}, id="last-gpu-is-the-idlest"),
        pytest.param({2: 0, 0: 1}, {2: 0, 0: 1, 1: 2, 3: 3}, id="two-numbers"),
        pytest.param({0: 3, 1: 3}, {0: 3, 1: 3, 2: 0, 3: 1}, id="two-numbers-on-one-gpu"),
    ],
)
def test_numbers_not_used_yet_stand_for_the_other_gpus(moved, expected):
    assert Decision(TAKE, Reason.IDLEST, moved=moved, visible=tuple(POOL)).numbering == expected


def by_number(*numbers, **asked):
    return {"numbers": numbers, **asked}


@pytest.mark.parametrize(
    ("gpus", "asked", "expected"),
    [
        case("idlest", POOL, by_number(2), moved={2: 0}, ordinals=(0,), claims={gpu(3).uuid: 24 * GIB}, verdict=TAKE),
        case("number-that-moved-has-the-reason-idlest", POOL, by_number(2), reason=Reason.IDLEST),
        case("number-that-stayed-has-the-reason-idlest", POOL, by_number(0), moved={0: 0}, reason=Reason.IDLEST),
        case("idlest-two", POOL, by_number(2, 0), ordinals=(0, 1), moved={2: 0, 0: 1}, reason=Reason.IDLEST),
        case("one-number-stands-for-one-of-the-largest-cards", MIXED, by_number(3), moved={3: 1}, ordinals=(1,)),
        case("two-numbers-stand-for-the-largest-cards", MIXED, by_number(0, 3), moved={0: 1, 3: 2}, ordinals=(1, 2)),
        case("number-avoids-a-claimed-gpu", POOL, by_number(0, held={3: claim(24)}), moved={0: 1}),
        case("number-stands-for-the-only-free-gpu", POOL, by_number(3, held=HELD_BUT_1), moved={3: 2}),
        case(
            "second-number-stands-for-the-least-busy-gpu",
            [gpu(3), LESS_BUSY, BUSY],
            by_number(0, 2),
            moved={0: 0, 2: 1},
            cap_bytes=FREE_BESIDE,
        ),
        case(
            "number-of-a-gpu-with-a-context-stays",
            POOL,
            by_number(2, in_use=[2], held={1: claim(24)}),
            moved={2: 2},
            reason=Reason.HAS_CONTEXT,
        ),
        case("another-number-avoids-the-gpu-with-a-context", POOL, by_number(2, in_use=[0]), moved={2: 1}),
        case(
            "gpu-with-an-own-context-before-a-busy-gpu", POOL, by_number(2, in_use=[0], held=HELD_BUT_3), moved={2: 0}
        ),
        case("kept-number-stays-if-free", POOL, by_number(2, **PLACES), moved={2: 2}, reason=Reason.NUMBERED),
        case("kept-number-in-use-moves", POOL, by_number(2, **PLACE_IN_USE), moved={2: 0}, reason=Reason.IDLEST),
        case(
            "one-kept-number-moves-and-one-stays",
            POOL,
            by_number(1, 2, held={2: claim(24)}, **PLACES),
            moved={1: 0, 2: 2},
        ),
        case(
            "busy-cpu-takes-only-free-gpus",
            [*POOL[:2], BUSY],
            by_number(0, 2, busy="cpu"),
            ordinals=(0, 1),
            moved={0: 0, 2: 1},
        ),
        case(
            "fifth-job-on-four-gpus-shares",
            POOL,
            by_number(1, **ALL),
            verdict=TAKE,
            cap_bytes={gpu(3).uuid: within_context(24 * GIB)},
        ),
        case("fifth-job-on-four-gpus-waits", POOL, by_number(1, **YOUNG), verdict=Verdict.WAIT),
        case("fifth-job-on-four-gpus-is-refused", POOL, by_number(1, busy="error", **ALL), verdict=Verdict.REFUSE),
        case("fifth-job-on-four-gpus-uses-the-cpu", POOL, by_number(1, busy="cpu", **ALL), verdict=CPU),
        case("limit-waits-beside-a-young-whole-claim", ONE, by_number(0, limit=TWO_GIB, **BEGUN), verdict=Verdict.WAIT),
        case(
            "limit-joins-an-old-whole-claim",
            ONE,
            by_number(0, limit=TWO_GIB, **ALL),
            claims={ZERO: int(2.5 * GIB)},
            verdict=TAKE,
        ),
        case("no-gpu-is-suitable", [gpu(0, compute_mode=ComputeMode.PROHIBITED)], by_number(0), verdict=CPU),
        case("user-at-the-cap-shares-an-own-gpu", POOL, by_number(0, **MINE), claims={ZERO: 0}),
        case("number-within-the-scripts-list", POOL[:2], by_number(1, **BY_SCRIPT), moved={1: 0}, reason=Reason.IDLEST),
        case("two-numbers-on-one-instance", [instance(0, 1), instance(0, 0)], by_number(0, 1), moved={0: 0, 1: 0}),
        # Scripts that use no number.
        case("choice-in-inherited-list-kept", [BUSY, gpu(0)], {"chosen": [0], "visible_spec": INHERITED}, verdict=LEFT),
        case("second-device-name-is-no-reason-to-share", [BUSY, gpu(0)], {"named_count": 2}, ordinals=(1,), caps={}),
        # The script's own memory limit is claimed.
        case("limit-that-fits", ONE, {**EIGHT, "held": {0: claim(8)}}, verdict=TAKE, claims={ZERO: 8 * GIB}, caps={}),
        case("limit-that-does-not-fit-is-best-effort", FULL, NEARLY_ALL, **CAPPED),
        case("limit-alone-on-a-gpu-is-not-capped", ONE, NEARLY_ALL, caps={}, is_capped_by_others=False),
    ],
)
def test_numbers_names_and_limits_of_a_script_decide_the_taken_gpus(gpus, asked, expected):
    assert fields(decided(*gpus, **asked), expected) == expected


@pytest.mark.parametrize(
    ("asked", "count", "shortfall"),
    [
        pytest.param({"named_count": 2}, 2, None, id="two-device-names"),
        pytest.param({"asked_count": 3}, 3, None, id="three-gpus-requested-by-the-script"),
        pytest.param({"named_count": 2, "count_is_set": True}, 1, Shortfall.SELECT_COUNT, id="set-count-beats-names"),
        pytest.param(by_number(0, 1, per_user=1), 1, Shortfall.PER_USER_CAP, id="per-user-cap-beats-numbers"),
        pytest.param({"named_count": 9}, 4, Shortfall.NO_MORE, id="more-device-names-than-gpus"),
    ],
)
def test_script_gets_as_many_gpus_as_it_names_or_requests(asked, count, shortfall):
    decision = decided(*POOL, **asked)
    assert (len(decision.claims), decision.shortfall) == (count, shortfall)


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        pytest.param({}, Wanted(1, 1), id="default"),
        pytest.param({"is_set": True}, Wanted(1, 1, WantedBy.POLICY), id="count-set-by-the-policy"),
        pytest.param({"count": "all"}, Wanted(sys.maxsize, sys.maxsize), id="count-all"),
        pytest.param({"named": 2}, Wanted(2, 1, WantedBy.SCRIPT, named=2), id="device-names"),
        pytest.param({"named": 2, "is_set": True}, Wanted(1, 1, WantedBy.POLICY, named=2), id="set-count-beats-names"),
        pytest.param({"asked": 3, "named": 2}, Wanted(3, 1, WantedBy.SCRIPT, named=2), id="request-larger-than-names"),
        pytest.param({"numbers": (2, 0), "is_set": True}, Wanted(2, 2, WantedBy.SCRIPT, named=2), id="numbers-first"),
    ],
)
def test_count_of_wanted_gpus_comes_from_numbers_policy_or_names(asked, expected):
    assert wanted_gpus(**{"count": 1, "is_set": False, **asked}) == expected
