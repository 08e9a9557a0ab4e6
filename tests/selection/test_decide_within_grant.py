"""Decisions of a process whose engine (Slurm, Ray, a launcher of ranks) has granted it GPUs or parts of GPUs."""

import pytest

from autogpu.caps import CONTEXT_BYTES, Cap, CapCause, within_context
from autogpu.engines.model import Denial, Grant, LocalRank
from autogpu.frameworks.memory import caps, ceilings
from autogpu.frozen import replace
from autogpu.policy import MemoryLimit, Policy
from autogpu.selection.decide import decide
from autogpu.selection.decision import Reason, Verdict
from autogpu.selection.model import MemoryDemand, VisibleSpec
from autogpu.text import GIB
from tests.support.selections import INHERITED, case, claim, decided, fields, request
from tests.support.values import gpu, inventory

ONE, TWO, BUSY = [gpu(0)], [gpu(0), gpu(1)], gpu(1, pids=[7], used_gib=16, busy=90)
ZERO, OTHER = gpu(0).uuid, gpu(1).uuid
CPU, TAKE = Verdict.CPU, Verdict.TAKE
PART = 12 * GIB - CONTEXT_BYTES
OF_LIMIT = Cap(4 * GIB, CapCause.LIMIT)
OF_RAY = Cap(PART, CapCause.GRANT, "Ray")
NONE = {"grant": Grant("Slurm", Denial.SLURM_GRANTED_NONE)}
HALF = {"grant": Grant("Ray", fraction=0.5, job="Ray.7")}
USED_BY_OTHERS = gpu(0, pids=[7], used_gib=20, busy=90)
CHIEF = {"grant": Grant("TF_CONFIG", Denial.COORDINATOR, "chief")}
# LISTED: each rank has its own list of GPUs. SHARING: two ranks share half a GPU. PLACED: ranks of the job have claims.
LISTED = {"visible_spec": INHERITED, "grant": Grant("Slurm", rank=LocalRank(1, 2, "Slurm", dividers=1))}
SHARING = {"visible_spec": INHERITED, "grant": Grant("Slurm", fraction=0.5, rank=LocalRank(1, 2, "Slurm"))}
PLACED = {"grant": Grant(rank=LocalRank(1, 2, "MPICH")), "promised": {ZERO: 24 * GIB, OTHER: 0}}


def of_job(age_s, job="Ray.7"):
    """Return a claim of the whole granted half, 12 GiB, by another process of the Ray job ``job``."""
    return replace(claim(12, age_s=age_s), engine_job=job)


CAPPED = {"claims": {OTHER: 0}, "cap_bytes": {OTHER: within_context(8 * GIB)}, "is_capped_by_others": True}
FOUR = [gpu(0, pids=[7], used_gib=9), *map(gpu, (1, 2, 3))]
ALL_BUT_THE_FIRST = {device.uuid: 24 * GIB * (device.index > 0) for device in FOUR}
TWO_EACH = {"grant": Grant(rank=LocalRank(1, 2, "torchrun")), "promised": ALL_BUT_THE_FIRST, "count": 2}


@pytest.mark.parametrize(
    ("gpus", "asked", "expected"),
    [
        case("engine-granted-no-gpu", ONE, NONE, verdict=CPU, reason=Reason.NOT_GRANTED),
        case("engine-granted-no-gpu-and-busy-error", ONE, {**NONE, "busy": "error"}, verdict=CPU),
        case("list-set-by-the-script", ONE, {**NONE, "visible_spec": VisibleSpec("0", is_scripts=True)}, verdict=TAKE),
        case("coordinator-task-uses-the-cpu", ONE, CHIEF, verdict=CPU, reason=Reason.NOT_GRANTED),
        case("coordinator-with-a-set-count", ONE, {**CHIEF, "count_is_set": True}, verdict=TAKE),
        case("coordinator-whose-script-has-chosen", ONE, {**CHIEF, "chosen": (0,)}, verdict=Verdict.NOT_OUR_CHOICE),
        case("rank-takes-idlest-of-list", [gpu(0, pids=[7], used_gib=9), gpu(1)], LISTED, ordinals=(1,), cap_bytes={}),
        case("rank-beside-other-jobs", [gpu(0), BUSY], PLACED, **CAPPED),
        # The GPU in use is the first one in the list.
        case("two-gpus-for-each-rank", FOUR, TWO_EACH, ordinals=(3, 0), of_ranks=(gpu(1).uuid, gpu(3).uuid)),
        case("two-ranks-share-a-half", ONE, SHARING, claims={ZERO: 6 * GIB}, cap_bytes={ZERO: 6 * GIB - CONTEXT_BYTES}),
        case("other-half-used", ONE, {**HALF, "held": {0: claim(12)}}, claims={ZERO: 12 * GIB}, cap_bytes={ZERO: PART}),
        case("half-beside-unmanaged-use", [USED_BY_OTHERS], HALF, claims={ZERO: 12 * GIB}, cap_bytes={ZERO: PART}),
        case("half-beside-a-whole-claim", ONE, {**HALF, "held": {0: claim(24)}}, claims={ZERO: 12 * GIB}),
        case("second-script-of-the-same-job", ONE, {**HALF, "held": {0: of_job(5)}}, verdict=Verdict.WAIT),
        case("script-of-another-job", ONE, {**HALF, "held": {0: of_job(5, job="Ray.8")}}, verdict=TAKE),
        case(
            "second-script-of-the-same-job-after-a-minute",
            [gpu(0, pids=[7], used_gib=4)],
            {**HALF, "held": {0: of_job(60)}},
            claims={ZERO: 0},
            cap_bytes={ZERO: within_context(8 * GIB)},
            is_capped_by_others=True,
        ),
        case("need-larger-than-granted-part", ONE, {**HALF, "need_bytes": 13 * GIB}, verdict=CPU),
        case(
            "engine-grants-an-excluded-gpu",
            [BUSY],
            {**LISTED, "inventory": inventory(gpu(0), BUSY), "exclude": ("1",)},
            reason=Reason.ONLY_ONE,
        ),
    ],
)
def test_process_stays_within_the_grant_of_its_engine(gpus, asked, expected):
    assert fields(decided(*gpus, **asked), expected) == expected


@pytest.mark.parametrize(
    ("policy", "claim_bytes", "cap"),
    [
        pytest.param({}, 12 * GIB, OF_RAY, id="no-setting"),
        pytest.param(
            {"limit": MemoryLimit(bytes=4 * GIB)}, 4 * GIB + CONTEXT_BYTES, Cap(4 * GIB, CapCause.LIMIT), id="low-limit"
        ),
        pytest.param({"limit": MemoryLimit(bytes=20 * GIB)}, 12 * GIB - 1, OF_RAY, id="high-limit"),
        pytest.param({"need_bytes": 4 * GIB}, 4 * GIB, OF_RAY, id="low-need"),
    ],
)
def test_policy_sizes_are_claimed_but_never_raise_the_engines_cap(policy, claim_bytes, cap):
    decision = decided(gpu(0), **policy, **HALF)
    assert decision.claims == {ZERO: claim_bytes}
    assert caps(Policy(**policy), decision) == {0: cap}


@pytest.mark.parametrize("said_gib", [2, 20])  # the script may allow itself more later
def test_script_limit_of_a_rank_is_cut_to_the_granted_part(said_gib):
    asked = request(gpu(0), script_demand=MemoryDemand(bytes=said_gib * GIB, or_best_effort=True), **SHARING)
    assert ceilings(decide(asked), asked)[0].bytes == PART
