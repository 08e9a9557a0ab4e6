"""Decisions inside what an engine granted."""

import pytest

from autogpu.policy import MemoryLimit, Policy
from autogpu.selection.decide import decide
from autogpu.selection.explain import BEST_EFFORT
from autogpu.selection.grants import Grant
from autogpu.selection.memory import CONTEXT_BYTES, caps, ceilings, within_context
from autogpu.selection.model import MemoryDemand, Verdict, VisibleSpec
from autogpu.selection.ranks import LocalRank
from autogpu.text import GIB
from tests.support.selections import INHERITED, case, claim, decided, fields, request
from tests.support.values import gpu, inventory

ONE, TWO, BUSY = [gpu(0)], [gpu(0), gpu(1)], gpu(1, pids=[7], used_gib=16, busy=90)
ZERO, OTHER = gpu(0).uuid, gpu(1).uuid
CPU, TAKE = Verdict.CPU, Verdict.TAKE
PART = 12 * GIB - CONTEXT_BYTES
NONE = {"grant": Grant("Slurm", "Slurm granted no GPU here", "ask for one", is_none=True)}
HALF = {"grant": Grant("Ray", fraction=0.5)}
CHIEF = {"grant": Grant("TF_CONFIG", "a chief", "AUTOGPU_COUNT=1", needs_none=True)}
# Ranks of an engine: one of which each has a list of its own, one that shares a half, one that its job has placed.
LISTED = {"visible_spec": INHERITED, "grant": Grant("Slurm", rank=LocalRank(1, 2, "Slurm", dividers=1))}
SHARING = {"visible_spec": INHERITED, "grant": Grant("Slurm", fraction=0.5, rank=LocalRank(1, 2, "Slurm"))}
PLACED = {"grant": Grant(rank=LocalRank(1, 2, "MPICH")), "promised": {ZERO: 24 * GIB, OTHER: 0}}

CAPPED = {"claims": {OTHER: 0}, "caps": {OTHER: within_context(8 * GIB)}, "why_capped": BEST_EFFORT}
FOUR = [gpu(0, pids=[7], used_gib=9), *map(gpu, (1, 2, 3))]
ALL_BUT_THE_FIRST = {device.uuid: 24 * GIB * (device.index > 0) for device in FOUR}
TWO_EACH = {"grant": Grant(rank=LocalRank(1, 2, "torchrun")), "promised": ALL_BUT_THE_FIRST, "count": 2}


@pytest.mark.parametrize(
    ("gpus", "asked", "expected"),
    [
        case("none", ONE, NONE, verdict=CPU, why="Slurm granted no GPU here; ask for one"),
        case("none-is-no-error", ONE, {**NONE, "busy": "error"}, verdict=CPU),
        case("the-scripts-own-list", ONE, {**NONE, "visible_spec": VisibleSpec("0", is_scripts=True)}, verdict=TAKE),
        case("a-task-that-coordinates", ONE, CHIEF, verdict=CPU, why="a chief; AUTOGPU_COUNT=1"),
        case("a-coordinator-by-the-users-count", ONE, {**CHIEF, "count_is_set": True}, verdict=TAKE),
        case("a-coordinator-that-has-chosen", ONE, {**CHIEF, "chosen": (0,)}, verdict=Verdict.NOT_OUR_CHOICE),
        case("the-idlest-of-a-ranks-own", [gpu(0, pids=[7], used_gib=9), gpu(1)], LISTED, ordinals=(1,), caps={}),
        case("a-rank-beside", [gpu(0), BUSY], PLACED, **CAPPED),
        # Also where the one that is used stands first.
        case("two-for-each-rank", FOUR, TWO_EACH, ordinals=(3, 0), of_ranks=(gpu(1).uuid, gpu(3).uuid)),
        case("ranks-share-a-part", ONE, SHARING, claims={ZERO: 6 * GIB}, caps={ZERO: 6 * GIB - CONTEXT_BYTES}),
        case("the-other-half", ONE, {**HALF, "held": {0: claim(12)}}, claims={ZERO: 12 * GIB}, caps={ZERO: PART}),
        case("without-a-wait", ONE, {**HALF, "held": {0: claim(24)}}, verdict=TAKE, claims={ZERO: 0}),
        case(
            "no-other-gpu-is-recommended-and-lists-of-the-policy-have-no-effect",
            [BUSY],
            {**LISTED, "inventory": inventory(gpu(0), BUSY), "exclude": ("1",)},
            why="the only one granted by Slurm (shared: pid 7 on it without a claim, 90 % busy, "
            "8.0 of 24.0 GiB free), select.exclude does not apply to what Slurm granted",
        ),
    ],
)
def test_what_a_process_takes_of_a_grant(gpus, asked, expected):
    assert fields(decided(*gpus, **asked), expected) == expected


@pytest.mark.parametrize(
    ("policy", "claim_bytes", "cap_bytes", "cause"),
    [
        pytest.param({}, 12 * GIB, PART, "grant Ray", id="nothing-said"),
        pytest.param({"limit": MemoryLimit(bytes=4 * GIB)}, 4 * GIB + CONTEXT_BYTES, 4 * GIB, "limit", id="smaller"),
        pytest.param({"limit": MemoryLimit(bytes=20 * GIB)}, 20 * GIB + CONTEXT_BYTES, PART, "grant Ray", id="larger"),
        pytest.param({"need_bytes": 4 * GIB}, 4 * GIB, PART, "grant Ray", id="need"),
    ],
)
def test_the_policys_own_numbers_are_claimed_and_never_lift_the_cap(policy, claim_bytes, cap_bytes, cause):
    decision = decided(gpu(0), **policy, **HALF)
    found = caps(Policy(**policy), decision)
    assert (decision.claims, found, found[0].cause) == ({ZERO: claim_bytes}, {0: cap_bytes}, cause)
    assert decision.why == "the only one granted by Ray, 50 % of it"


@pytest.mark.parametrize("said_gib", [2, 20])  # it may say more later
def test_what_the_script_of_a_rank_allows_itself_is_cut_to_the_part(said_gib):
    asked = request(gpu(0), script_demand=MemoryDemand(bytes=said_gib * GIB, or_best_effort=True), **SHARING)
    assert ceilings(decide(asked), asked) == {0: PART}
