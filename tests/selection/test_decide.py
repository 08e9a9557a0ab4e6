"""The GPUs that a process takes, decided on plain values. ``tests/reporting`` tests the messages."""

import pytest

from autogpu.caps import CONTEXT_BYTES, Cap, CapCause, within_context
from autogpu.devices.model import NO_READING, ComputeMode
from autogpu.engines.model import WORKERS, Grant, LocalRank
from autogpu.frameworks.memory import caps
from autogpu.frozen import replace
from autogpu.policy import Policy
from autogpu.policy.kinds import MemoryLimit
from autogpu.selection.decision import RankSlice, Reason, Shortfall, Verdict
from autogpu.selection.model import LastRuns, Obstacle, VisibleSpec
from autogpu.text import GIB
from tests.support.selections import INHERITED, ME, case, claim, decided, fields
from tests.support.values import gpu, inventory

CPU, WAIT, REFUSE, TAKE = Verdict.CPU, Verdict.WAIT, Verdict.REFUSE, Verdict.TAKE
CANNOT_CHOOSE = Verdict.CANNOT_CHOOSE

ONE = [gpu(0)]
TWO = [gpu(0), gpu(1)]
THREE = [gpu(0), gpu(1), gpu(2)]
BUSY = gpu(0, pids=[7], used_gib=9, busy=90)
BUSY_1 = gpu(1, pids=[8], used_gib=9, busy=90)
ONE_BUSY = [BUSY, *THREE[1:]]
SMALL = gpu(0, total_gib=8)
EXCLUSIVE = gpu(0, compute_mode=ComputeMode.EXCLUSIVE_PROCESS, pids=[7])
UUID = gpu(0).uuid
BY_SCRIPT = {"visible_spec": VisibleSpec("0", is_scripts=True)}
BY_SHELL = {"visible_spec": INHERITED}
# Claims on GPU 0
YOUNG = claim(24, age_s=59.0)
OLD = claim(24, age_s=60.0)
MINE = {"held": {0: replace(OLD, uid=ME)}}
CLAIMED = {"held": {0: OLD}}
AT_CAP = {"per_user": 1, **MINE}
TWO_LARGE = {"busy": "wait", "need_bytes": 12 * GIB, "count": 2}


def rank(number, size, launcher="MPICH"):
    return {"grant": Grant(rank=LocalRank(number, size, launcher))}


def idle(*indices):
    return tuple(gpu(index) for index in indices)


@pytest.mark.parametrize(
    ("gpus", "asked", "expected"),
    [
        case("only-gpu-of-select-devices", [gpu(1)], {"devices": ("1",)}, reason=Reason.ONLY_ONE),
        case("idlest-gpu", [BUSY, gpu(1), gpu(2, busy=30)], {}, ordinals=(1,), reason=Reason.IDLEST),
        case("ordinals-count-the-visible-gpus", [gpu(2), gpu(0), gpu(1, busy=9)], {}, ordinals=(0,)),
        case("two-idlest-gpus", THREE, {"count": 2}, ordinals=(1, 2), reason=Reason.IDLEST),
        case("count-all", THREE, {"count": "all"}, ordinals=(0, 1, 2), reason=Reason.ALL, shortfall=None),
        case("count-above-pool", THREE, {"count": 5}, reason=Reason.ALL, shortfall=Shortfall.NO_MORE),
        case("count-zero", THREE, {"count": 0}, ordinals=(), verdict=CPU, reason=Reason.COUNT_IS_ZERO),
        case("least-busy-gpu", [BUSY, gpu(1, pids=[8], used_gib=20)], {}, reason=Reason.LEAST_BUSY),
        case("list-set-by-the-script", TWO, BY_SCRIPT, reason=Reason.IDLEST),
        case(
            "busy-gpu-in-the-scripts-list",
            [BUSY],
            {**BY_SCRIPT, "inventory": inventory(*ONE_BUSY)},
            reason=Reason.ONLY_ONE,
            idle_instead=idle(1, 2),
        ),
        case("count-zero-beats-a-chosen-ordinal", THREE, {"chosen": [0], "count": 0}, ordinals=(), verdict=CPU),
        case(
            "script-has-chosen-a-busy-gpu",
            ONE_BUSY,
            {"chosen": [0]},
            verdict=Verdict.NOT_OUR_CHOICE,
            reason=Reason.CHOSEN_BY_SCRIPT,
            idle_instead=idle(1, 2),
        ),
        case("script-has-chosen-a-claimed-gpu", ONE, {"chosen": [0], "held": {0: claim(20)}}, claims={UUID: 4 * GIB}),
        case(
            "driver-fails",
            ONE,
            {"inventory": inventory(failure="mismatch")},
            verdict=CANNOT_CHOOSE,
            reason=Reason.DRIVER_FAILURE,
        ),
        case("no-reading", ONE, {"inventory": NO_READING}, verdict=CANNOT_CHOOSE, reason=Reason.DRIVER_FAILURE),
        case("gpu-counts-differ", ONE, {"gpu_count": 2}, verdict=CANNOT_CHOOSE, reason=Reason.COUNTS_DIFFER),
        case("context-on-a-free-gpu", THREE, {"in_use": [0]}, ordinals=(0,), reason=Reason.HAS_CONTEXT),
        case("context-on-a-busy-gpu", ONE_BUSY, {"in_use": [0]}, ordinals=(0,), idle_instead=idle(1, 2)),
        case("context-and-one-more-gpu", ONE_BUSY, {"in_use": [0], "count": 2}, ordinals=(0, 2)),
        case(
            "waits-only-for-gpus-with-enough-memory",
            [SMALL, gpu(1)],
            {**TWO_LARGE, "held": {1: claim(24)}},
            waits_for=1,
            attainable=1,
            reason=Reason.NONE_FREE,
        ),
        case("gpu-that-a-waiter-could-use-is-left", TWO, {"busy": "cpu", "awaited": [UUID]}, ordinals=(1,)),
        case("only-gpus-with-enough-memory-attainable", [SMALL, *THREE[1:]], {"need_bytes": 12 * GIB}, attainable=2),
        case("user-at-the-cap", THREE, {**AT_CAP, "busy": "cpu"}, verdict=CPU, reason=Reason.PER_USER_CAP),
        case(
            "user-at-the-cap-shares-an-own-gpu",
            TWO,
            AT_CAP,
            ordinals=(0,),
            cap_bytes={UUID: within_context(24 * GIB)},
            reason=Reason.LEAST_BUSY,
            is_at_cap=True,
        ),
        case(
            "user-at-the-cap-chooses-by-number",
            [EXCLUSIVE, gpu(1)],
            {**AT_CAP, "numbers": (1,), "wait_s": 0.0},
            verdict=CPU,
            reason=Reason.PER_USER_CAP,
        ),
        case("user-at-the-cap-with-one-listed", [gpu(1)], {**AT_CAP, "visible_spec": VisibleSpec("1")}, ordinals=(0,)),
        case(
            "user-one-below-the-cap",
            THREE,
            {"per_user": 2, "count": 2, **MINE},
            ordinals=(2,),
            shortfall=Shortfall.PER_USER_CAP,
            is_at_cap=False,
        ),
        case("rank-0-of-2", [*ONE_BUSY, gpu(3)], rank(0, 2), ordinals=(0,), claims={UUID: 24 * GIB}, attainable=2),
        case("rank-1-of-2", [*ONE_BUSY, gpu(3)], rank(1, 2), ordinals=(2,)),
        case("rank-beside-a-whole-claim", ONE, {**rank(0, 2), "busy": "wait", **CLAIMED}, claims={UUID: 0}),
        case("workers-share-one-whole-claim", ONE, rank(1, 2, WORKERS), cap_bytes={}, claims={UUID: 24 * GIB}),
    ],
)
def test_decision_follows_from_request_readings_and_claims(gpus, asked, expected):
    assert fields(decided(*gpus, **asked), expected) == expected


def test_ranks_that_share_a_gpu_are_capped_within_their_claim():
    decision = decided(*ONE, **rank(1, 2))
    part = Cap(12 * GIB - CONTEXT_BYTES, CapCause.RANKS)
    assert decision.caps == {UUID: part}
    assert caps(Policy(), decision) == {0: part}
    assert decision.slice == RankSlice(LocalRank(1, 2, "MPICH"), ranks=2, sharers=2)
    # A limit below the rank's part is the cause of the cap: it would be as low without the other rank.
    limit = MemoryLimit(bytes=4 * GIB)
    assert caps(Policy(limit=limit), decided(*ONE, **rank(1, 2), limit=limit))[0].cause is CapCause.LIMIT


ALWAYS_TAKEN = dict.fromkeys(("share", "wait", "cpu", "error"), TAKE)
NEVER_TAKEN = {"share": CPU, "wait": CPU, "cpu": CPU, "error": REFUSE}
WAITED_FOR = {**NEVER_TAKEN, "share": WAIT, "wait": WAIT}
SHARED_NOW = {**WAITED_FOR, "share": TAKE}
FEWER_TAKEN = {**ALWAYS_TAKEN, "wait": WAIT}
FEWER_WITHOUT_A_WAIT = {**ALWAYS_TAKEN, "share": WAIT, "wait": WAIT}

IDLE_LEASE = {"held": {0: claim(24, age_s=7200.0)}}
AWAITED = {"awaited": [UUID]}
RANK = Grant(rank=LocalRank(0, 2, "MPICH"))


def outcome(rule, gpus, asked, verdicts, reason):
    """Return a row: the verdict for each value of ``select.busy``, and the reason if no GPU is taken."""
    return pytest.param(gpus, asked, verdicts, reason, id=rule)


@pytest.mark.parametrize(
    ("gpus", "asked", "verdicts", "reason"),
    [
        outcome("gpu-is-claimed", ONE, CLAIMED, SHARED_NOW, Reason.NONE_FREE),
        outcome("need-larger-than-card", ONE, {"need_bytes": 30 * GIB}, NEVER_TAKEN, Reason.NONE_FREE),
        outcome(
            "need-larger-than-listed-card",
            TWO,
            {"devices": ("1",), "need_bytes": 30 * GIB},
            NEVER_TAKEN,
            Reason.NONE_FREE,
        ),
        outcome(
            "need-larger-than-free-memory",
            [SMALL, gpu(1)],
            {"need_bytes": 12 * GIB, "held": {1: claim(24)}},
            WAITED_FOR,
            Reason.NONE_FREE,
        ),
        outcome(
            "rank-without-a-suitable-gpu", ONE, {"need_bytes": 30 * GIB, "grant": RANK}, NEVER_TAKEN, Reason.NONE_FREE
        ),
        outcome("rank-with-only-excluded-gpus", ONE, {"exclude": ("0",), "grant": RANK}, NEVER_TAKEN, Reason.NONE_FREE),
        outcome("gpu-is-awaited", ONE, AWAITED, WAITED_FOR, Reason.NONE_FREE),
        outcome("claimed-gpu-is-awaited", ONE, {**AWAITED, **CLAIMED}, WAITED_FOR, Reason.NONE_FREE),
        outcome("need-on-an-awaited-gpu", ONE, {**AWAITED, "need_bytes": GIB}, WAITED_FOR, Reason.NONE_FREE),
        outcome("fewer-gpus-free-than-requested", ONE_BUSY, {"count": 3}, FEWER_TAKEN, Reason.TOO_FEW_FREE),
        outcome(
            "count-all-with-a-need",
            TWO,
            {"count": "all", "need_bytes": 20 * GIB, "held": {0: claim(10)}},
            FEWER_WITHOUT_A_WAIT,
            Reason.TOO_FEW_FREE,
        ),
        outcome("gpu-of-an-idle-lease", [gpu(0, pids=[7], used_gib=20)], IDLE_LEASE, ALWAYS_TAKEN, None),
    ],
)
def test_if_too_few_gpus_are_free_the_verdict_depends_on_select_busy(gpus, asked, verdicts, reason):
    found = {busy: decided(*gpus, busy=busy, **asked) for busy in verdicts}
    assert {busy: decision.verdict for busy, decision in found.items()} == verdicts
    assert {decision.reason for decision in found.values() if decision.verdict is not TAKE} <= {reason}


def test_process_that_waits_for_more_gpus_counts_the_free_ones():
    decision = decided(*ONE_BUSY, count=3, busy="wait")
    assert (decision.waits_for, decision.free) == (3, 2)


def test_taken_gpu_that_is_awaited_keeps_its_place_in_the_ranking():
    decision = decided(gpu(0), BUSY_1, count=2, wait_s=0.0, **AWAITED)
    assert [device.index for device in decision.devices] == [0, 1]
    assert [candidate.is_awaited for candidate in decision.taken] == [True, False]


def test_waiting_process_keeps_the_obstacles_of_rejected_gpus():
    decision = decided(SMALL, gpu(1), need_bytes=12 * GIB, held={1: claim(24)})
    found = {each.device.index: each.obstacle for each in decision.ranking.rejected}
    assert found == {0: Obstacle.NEED_ABOVE_TOTAL, 1: Obstacle.NEED_ABOVE_FREE}


FULL = gpu(0, used_gib=18.5, pids=[7])
LESS_FREE = gpu(1, used_gib=10, pids=[7])
MORE_FREE = gpu(2, used_gib=6, pids=[7])
NO_USE_READ = replace(FULL, memory_used_bytes=None)
HIDES_PROCESSES = replace(gpu(0, used_gib=6), compute_processes=None)
UNSEEN = {"is_seen": False}
AFTER_WAIT = {"waited_s": 1800.0}
WITHOUT_WAIT = {"wait_s": 0.0}
EIGHT = {"need_bytes": 8 * GIB}
STATED = claim(8, age_s=60.0)
JOINED = claim(0, cap_gib=20)
GROWN = claim(24, age_s=60.0, newest_s=1.0)
TEN_FREE = within_context(10 * GIB)
FIVE_FREE = within_context(int(5.5 * GIB))
HALF_OF_FIVE = within_context(int(5.5 * GIB) // 2)


def held(*claims, on=0):
    return {"held": {on: claims}}


@pytest.mark.parametrize(
    ("gpus", "asked", "expected"),
    [
        case("joins-a-job-after-a-minute", ONE, held(OLD), verdict=TAKE, claims={UUID: 0}),
        case("waits-before-the-minute-is-over", ONE, held(YOUNG), verdict=WAIT),
        case("waits-for-the-youngest-job", ONE, held(OLD, YOUNG), verdict=WAIT),
        case("waits-until-the-driver-lists-the-job", ONE, {**held(OLD), **UNSEEN}, verdict=WAIT),
        case("job-with-a-need-may-be-unlisted", ONE, {**held(STATED), **UNSEEN}, verdict=TAKE),
        case("driver-hides-processes", [HIDES_PROCESSES], held(OLD), verdict=TAKE),
        case("driver-hides-processes-in-a-container", [gpu(0, used_gib=5)], {**UNSEEN, **held(OLD)}, verdict=TAKE),
        case("job-that-uses-nothing-yet", ONE, {**UNSEEN, **held(OLD)}, verdict=WAIT),
        case("beside-a-need-of-nearly-all-memory", ONE, held(claim(24 - 1 / GIB, age_s=60.0)), verdict=WAIT),
        case("joins-if-a-quarter-is-free", [gpu(0, used_gib=18, pids=[7])], held(OLD), verdict=TAKE),
        case("waits-if-less-than-a-quarter-is-free", [FULL], held(OLD), verdict=WAIT),
        case("reserved-memory-is-not-free", ONE, held(claim(20, age_s=60.0)), verdict=WAIT),
        case("cap-excludes-reserved-memory", ONE, held(claim(14, age_s=60.0)), cap_bytes={UUID: TEN_FREE}),
        case("most-free-memory-first", [LESS_FREE, MORE_FREE], {"held": {1: OLD, 2: OLD}}, ordinals=(1,)),
        case("unknown-memory-after-a-minute", [NO_USE_READ], held(OLD), verdict=TAKE),
        case("unknown-memory-before-a-minute", [NO_USE_READ], held(YOUNG), verdict=WAIT),
        case("need-beside-a-young-best-effort-job", ONE, {**EIGHT, **held(JOINED)}, verdict=WAIT),
        case("need-beside-an-old-best-effort-job", ONE, {**EIGHT, **held(replace(JOINED, age_s=60.0))}, verdict=TAKE),
        case("one-free-and-one-shared-gpu", [gpu(0), LESS_FREE], {"count": 2, "held": {1: OLD}}, ordinals=(0, 1)),
        case("new-member-of-an-old-job", ONE, held(GROWN), verdict=TAKE),
        case("end-of-the-wait-takes-the-free-memory", [FULL], {**AFTER_WAIT, **held(OLD)}, cap_bytes={UUID: FIVE_FREE}),
        case("end-of-the-wait-beside-a-young-best-effort-job", ONE, {**AFTER_WAIT, **held(JOINED)}, verdict=WAIT),
        case(
            "no-wait-takes-half-of-the-free-memory",
            [FULL],
            {**WITHOUT_WAIT, **held(YOUNG)},
            cap_bytes={UUID: HALF_OF_FIVE},
            claims={UUID: 0},
        ),
        case(
            "no-wait-beside-two-young-jobs",
            [gpu(0)],
            {**WITHOUT_WAIT, "held": {0: (YOUNG, claim(0))}},
            cap_bytes={UUID: within_context(8 * GIB)},
        ),
        case(
            "no-wait-takes-the-gpu-with-fewer-jobs",
            [gpu(0), gpu(1)],
            {**WITHOUT_WAIT, "held": {0: YOUNG, 1: (YOUNG, claim(0))}},
            ordinals=(0,),
        ),
        case("end-of-the-wait-beside-a-young-need", ONE, {**AFTER_WAIT, **held(OLD, claim(1))}, verdict=TAKE),
        case(
            "end-of-the-wait-uses-a-reserved-gib",
            [gpu(0, used_gib=5, pids=[7])],
            {**AFTER_WAIT, **held(claim(23.5, age_s=60.0))},
            cap_bytes={UUID: GIB // 2},
        ),
        case("no-wait-and-all-reserved", ONE, {**WITHOUT_WAIT, **held(OLD, claim(24, pid=8))}, verdict=TAKE),
        case(
            "end-of-the-wait-avoids-young-jobs",
            [LESS_FREE, MORE_FREE],
            {**AFTER_WAIT, "held": {1: OLD, 2: YOUNG}},
            ordinals=(0,),
        ),
        case(
            "no-wait-avoids-young-jobs",
            [LESS_FREE, MORE_FREE],
            {**WITHOUT_WAIT, "held": {1: OLD, 2: YOUNG}},
            ordinals=(0,),
        ),
        case(
            "end-of-the-wait-leaves-awaited-gpus",
            [gpu(0), LESS_FREE],
            {**AFTER_WAIT, **AWAITED, "held": {1: OLD}},
            ordinals=(1,),
        ),
        case("need-beside-an-old-whole-claim", ONE, {**EIGHT, **held(OLD)}, verdict=TAKE, claims={UUID: 8 * GIB}),
        case(
            "unmet-need-at-the-end-of-the-wait",
            [FULL],
            {**EIGHT, **held(OLD), **AFTER_WAIT},
            claims={UUID: 0},
            cap_bytes={UUID: FIVE_FREE},
            is_capped_by_others=True,
        ),
        case("script-lists-the-gpu", [FULL], {**BY_SCRIPT, **held(YOUNG)}, verdict=TAKE),
        case("shell-lists-one-gpu", [FULL], {**BY_SHELL, **held(YOUNG)}, verdict=TAKE),
        case(
            "shell-list-and-as-many-device-names",
            [FULL, LESS_FREE],
            {**BY_SHELL, "held": {0: YOUNG, 1: YOUNG}, "named_count": 2},
            verdict=TAKE,
        ),
        case("shell-lists-more-gpus", [FULL, LESS_FREE], {**BY_SHELL, "held": {0: YOUNG, 1: YOUNG}}, verdict=WAIT),
        case(
            "shell-list-with-a-number-and-a-larger-count",
            [FULL, LESS_FREE],
            {**BY_SHELL, "held": {0: YOUNG, 1: YOUNG}, "numbers": (1,), "count": 2, "count_is_set": True},
            verdict=WAIT,
        ),
        case("unknown-memory-is-best-effort", [NO_USE_READ], held(OLD), cap_bytes={}, is_capped_by_others=True),
        case("script-numbers-every-gpu", [FULL, LESS_FREE], {"numbers": (0, 1), **held(YOUNG)}, verdict=TAKE),
        case("need-larger-than-card", ONE, {"need_bytes": 30 * GIB, **WITHOUT_WAIT}, verdict=CPU),
        case("idle-lease-is-shared-at-once", [gpu(0, pids=[7], used_gib=20)], IDLE_LEASE, verdict=TAKE),
    ],
)
def test_process_without_a_free_gpu_joins_others_or_waits(gpus, asked, expected):
    assert fields(decided(*gpus, **asked), expected) == expected


def after_runs(gib, **asked):
    return {"last_runs": {gpu(0).name: LastRuns("train.py", int(gib * GIB))}, **asked}


OTHER_MODEL = gpu(3, name="NVIDIA A100", used_gib=12, pids=[7])
IDLE_NOTEBOOK = gpu(0, pids=[7], used_gib=20)


@pytest.mark.parametrize(
    ("gpus", "asked", "expected"),
    [
        case("joins-if-as-much-is-free", [LESS_FREE], after_runs(14, held={1: OLD}), verdict=TAKE),
        case("waits-if-less-is-free", [LESS_FREE], after_runs(14.1, held={1: OLD}), verdict=WAIT, waits_for=1),
        case("only-one-has-enough-free", [LESS_FREE, MORE_FREE], after_runs(16, held={1: OLD, 2: OLD}), ordinals=(1,)),
        case("quarter-must-be-free-as-well", [FULL], after_runs(1, **held(OLD)), verdict=WAIT),
        case("unknown-memory-is-joined", [NO_USE_READ], after_runs(20, **held(OLD)), verdict=TAKE),
        case("reserved-memory-is-not-free", ONE, after_runs(11, **held(claim(14, age_s=60.0))), verdict=WAIT),
        case("other-models-last-runs", [LESS_FREE, OTHER_MODEL], after_runs(20, held={1: OLD, 3: OLD}), ordinals=(1,)),
        case("free-gpu-ignores-last-runs", [gpu(0, used_gib=1)], after_runs(24), verdict=TAKE),
        case("end-of-wait-ignores-last-runs", [LESS_FREE], after_runs(20, held={1: OLD}, **AFTER_WAIT), verdict=TAKE),
        case("no-wait-ignores-last-runs", [LESS_FREE], after_runs(20, held={1: OLD}, **WITHOUT_WAIT), verdict=TAKE),
        case("scripts-list-ignores-last-runs", [LESS_FREE], after_runs(20, held={1: OLD}, **BY_SCRIPT), verdict=TAKE),
        case("need-comes-first", [LESS_FREE], after_runs(20, held={1: OLD}, **EIGHT), claims={LESS_FREE.uuid: 8 * GIB}),
        case("limit-comes-first", [LESS_FREE], after_runs(20, held={1: OLD}, limit=MemoryLimit(4 * GIB)), verdict=TAKE),
        case("idle-lease-with-room", [IDLE_NOTEBOOK], after_runs(4, **IDLE_LEASE), verdict=TAKE),
        case("idle-lease-without-room", [IDLE_NOTEBOOK], after_runs(5, **IDLE_LEASE), verdict=WAIT),
        case("busy-wait-takes-an-idle-lease", [IDLE_NOTEBOOK], after_runs(5, busy="wait", **IDLE_LEASE), verdict=TAKE),
        case("idle-lease-and-no-wait", [IDLE_NOTEBOOK], after_runs(5, **WITHOUT_WAIT, **IDLE_LEASE), verdict=TAKE),
        case("idle-lease-after-the-wait", [IDLE_NOTEBOOK], after_runs(5, **AFTER_WAIT, **IDLE_LEASE), verdict=TAKE),
    ],
)
def test_job_joins_a_gpu_only_if_the_memory_of_its_last_runs_is_free(gpus, asked, expected):
    assert fields(decided(*gpus, **asked), expected) == expected


@pytest.mark.parametrize(("busy", "count", "shortfall"), [("share", 3, None), ("cpu", 2, Shortfall.BUSY)])
def test_select_busy_shares_or_leaves_gpus_beyond_the_free_ones(busy, count, shortfall):
    decision = decided(*ONE_BUSY, count=3, busy=busy)
    assert (len(decision.ordinals), decision.shortfall) == (count, shortfall)
