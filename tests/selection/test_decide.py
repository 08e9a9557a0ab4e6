"""Which GPUs a process takes, and the reason it is given."""

import pytest

from autogpu.devices.model import NO_READING
from autogpu.frozen import replace
from autogpu.policy import Policy
from autogpu.policy.kinds import MemoryLimit
from autogpu.selection.explain import AWAITED, BEST_EFFORT_OF_SIZE, NO_UUIDS
from autogpu.selection.grants import Grant
from autogpu.selection.memory import CONTEXT_BYTES, caps, within_context
from autogpu.selection.model import Verdict, VisibleSpec
from autogpu.selection.ranks import WORKERS, LocalRank
from autogpu.text import GIB
from tests.support.selections import INHERITED, ME, case, claim, decided, fields
from tests.support.values import gpu, inventory

ONE, TWO, THREE = ([gpu(index) for index in range(size)] for size in (1, 2, 3))
BUSY = gpu(0, pids=[7], used_gib=9, busy=90)
ON_BUSY = "shared: pid 7 on it without a claim, 90 % busy, 15.0 of 24.0 GiB free"
ONE_BUSY = [BUSY, *THREE[1:]]
SMALL = gpu(0, total_gib=8)
UUID = gpu(0).uuid
CPU, WAIT, REFUSE, TAKE = Verdict.CPU, Verdict.WAIT, Verdict.REFUSE, Verdict.TAKE
LEFT, NOT_OURS = Verdict.CANNOT_CHOOSE, Verdict.NOT_OUR_CHOICE
BY_SCRIPT = {"visible_spec": VisibleSpec("0", is_scripts=True)}
NAMED = {"chosen": [0]}
TWO_LARGE = {"busy": "wait", "need_bytes": 12 * GIB, "count": 2}
# Claims on GPU 0
SETTLED = {"age_s": 60.0}
ALL, MINE, LITTLE = (
    {"held": {0: each}} for each in (claim(24, **SETTLED), claim(24, uid=ME, **SETTLED), claim(4, uid=ME, **SETTLED))
)
CAP, CAP_OF_TWO = {"per_user": 1, **MINE}, {"per_user": 2, "count": 2, **MINE}
TOO_SMALL = (
    "no GPU is free (GPU 1: 12.0 GiB do not fit: everything is used or claimed; "
    "GPU 0: 12.0 GiB do not fit, it has 8.0 GiB)"
)
FEWER = f"{TOO_SMALL}; 2 are asked for, there are no more than 1"
IN_USE = "1 of 3, where another library of this process has a CUDA context"
ALONE = gpu(0, compute_mode="exclusive_process", pids=[7])
PLACE = {"numbers": [1], "wait_s": 0.0}
AT_THE_CAP = "you hold 1 GPU, the most that limits.per_user allows"
HELD = "claimed by train.py (pid 7), 0 % busy, 24.0 of 24.0 GiB free"
WHILE_IDLE = ", busy while GPU 1 and GPU 2 are idle"
TWO_ALLOWED = "select.count asks for 2, limits.per_user allows 2"


def rank(number, size, launcher="MPICH"):
    return {"grant": Grant(rank=LocalRank(number, size, launcher))}


@pytest.mark.parametrize(
    ("gpus", "asked", "expected"),
    [
        case("all-that-is-listed", [gpu(1)], {"devices": ("1",)}, why="the only one of select.devices"),
        case("the-idlest", [BUSY, gpu(1), gpu(2, busy=30)], {}, ordinals=(1,), why="the idlest of 3"),
        case("ordinals-count-in-the-process", [gpu(2), gpu(0), gpu(1, busy=9)], {}, ordinals=(0,)),
        case("two", THREE, {"count": 2}, ordinals=(1, 2), why="the 2 idlest of 3"),
        case("all", THREE, {"count": "all"}, ordinals=(0, 1, 2), why="all 3"),
        case("more", THREE, {"count": 5}, why="all 3; select.count asks for 5, there are no more"),
        case("none", THREE, {"count": 0}, ordinals=(), verdict=CPU, why="select.count is 0"),
        case("shared", [BUSY, gpu(1, pids=[8], used_gib=20)], {}, why=f"the least busy of 2 ({ON_BUSY})"),
        case("of-the-scripts", TWO, BY_SCRIPT, why="the idlest of 2 in the script's CUDA_VISIBLE_DEVICES"),
        case(
            "who-named-a-busy-one-is-told-of-idle-ones",
            [BUSY],
            {**BY_SCRIPT, "inventory": inventory(*ONE_BUSY)},
            why=f"the only one in the script's CUDA_VISIBLE_DEVICES ({ON_BUSY}){WHILE_IDLE}",
            remedy="to have the idlest instead: AUTOGPU_SCRIPT=override",
        ),
        case("an-index-where-none-is-wanted", THREE, {**NAMED, "count": 0}, ordinals=(), verdict=CPU),
        case("chosen-by-the-script", ONE_BUSY, NAMED, verdict=NOT_OURS, why=f"chosen by the script{WHILE_IDLE}"),
        case("what-no-other-was-promised", ONE, {"chosen": [0], "held": {0: claim(20)}}, claims={UUID: 4 * GIB}),
        case("no-readings", ONE, {"inventory": inventory(failure="mismatch")}, verdict=LEFT, why="mismatch"),
        case("no-answer-in-time", ONE, {"inventory": NO_READING}, verdict=LEFT, why="NVML timed out"),
        case("different-counts", ONE, {"gpu_count": 2}, verdict=LEFT, why=NO_UUIDS),
        case("where-it-has-a-context", THREE, {"in_use": [0]}, ordinals=(0,), why=IN_USE),
        case("also-if-that-is-busy", ONE_BUSY, {"in_use": [0]}, why=f"{IN_USE} ({ON_BUSY}){WHILE_IDLE}"),
        case("there-and-the-idlest", ONE_BUSY, {"in_use": [0], "count": 2}, ordinals=(0, 2)),
        case("a-wait-for-fewer", [SMALL, gpu(1)], {**TWO_LARGE, "held": {1: claim(24)}}, waits_for=1, why=FEWER),
        case("one-that-nobody-awaits", TWO, {"busy": "cpu", "awaited": [UUID]}, ordinals=(1,)),
        case("those-with-room-are-attainable", [SMALL, *THREE[1:]], {"need_bytes": 12 * GIB}, attainable=2),
        case("cap-reached", THREE, {**CAP, "busy": "cpu"}, why=AT_THE_CAP),
        case("cap-reached-on-my-own", TWO, CAP, ordinals=(0,), caps={UUID: within_context(24 * GIB)}),
        case("which-is-said", TWO, CAP, why=f"the least busy of 2 (shared: {HELD}); {AT_THE_CAP}"),
        case("cap-reached-and-a-place", [ALONE, gpu(1)], {**CAP, **PLACE}, verdict=CPU, why=AT_THE_CAP),
        case("cap-reached-and-a-card", [gpu(1)], {**CAP, "visible_spec": VisibleSpec("1")}, ordinals=(0,)),
        case("cap-not-reached", THREE, CAP_OF_TWO, ordinals=(2,), why=f"the idlest of 3; {TWO_ALLOWED}"),
        case("rank-0-of-2", [*ONE_BUSY, gpu(3)], rank(0, 2), ordinals=(0,), claims={UUID: 24 * GIB}, attainable=2),
        case("rank-1-of-2", [*ONE_BUSY, gpu(3)], rank(1, 2), ordinals=(2,)),
        case("rank-by-itself", ONE, {**rank(0, 2), "busy": "wait", **ALL}, verdict=TAKE, claims={UUID: 0}),
        case("workers-share-without-parts", ONE, rank(1, 2, WORKERS), caps={}, claims={UUID: 24 * GIB}),
    ],
)
def test_what_a_process_takes(gpus, asked, expected):
    assert fields(decided(*gpus, **asked), expected) == expected


def test_ranks_that_share_a_gpu_are_capped_within_their_claim():
    decision = decided(*ONE, **rank(1, 2))
    assert decision.caps == {UUID: 12 * GIB - CONTEXT_BYTES}
    found = caps(Policy(), decision)
    assert (found, found[0].cause) == ({0: 12 * GIB - CONTEXT_BYTES}, "ranks")
    # One that the policy sets is as large without the other rank.
    limit = {"limit": MemoryLimit(bytes=4 * GIB)}
    assert caps(Policy(**limit), decided(*ONE, **rank(1, 2), **limit))[0].cause == "limit"
    assert decision.why == "local rank 1 of 2 (MPICH), 2 ranks share it"


ALIKE = dict.fromkeys(("share", "wait", "cpu", "error"), TAKE)
NEVER = {**ALIKE, "share": CPU, "wait": CPU, "cpu": CPU, "error": REFUSE}
LATER, NOW = {**NEVER, "share": WAIT, "wait": WAIT}, {**NEVER, "share": TAKE, "wait": WAIT}
SOME, MORE = {**ALIKE, "wait": WAIT}, {**ALIKE, "share": WAIT, "wait": WAIT}


def outcome(rule, gpus, asked, verdicts, why):
    """A row: what becomes of the process by ``select.busy``, and why where it takes none."""
    return pytest.param(gpus, asked, verdicts, why, id=rule)


AWAITED_BY_ONE = f"no GPU is free (GPU 0: {AWAITED})"
TOO_LARGE = "no GPU is suitable (GPU 1: 30.0 GiB do not fit, it has 24.0 GiB; GPU 0: not among select.devices)"
LARGE, HUGE = {"need_bytes": 12 * GIB, "held": {1: claim(24)}}, {"need_bytes": 30 * GIB}
MOST = {"count": "all", "need_bytes": 20 * GIB, "held": {0: claim(10)}}
IDLE = {"held": {0: claim(24, age_s=7200.0)}}
NINE_AND_HALF, FIVE = within_context(10 * GIB), within_context(int(5.5 * GIB))


@pytest.mark.parametrize(
    ("gpus", "asked", "verdicts", "why"),
    [
        outcome("claimed", ONE, ALL, NOW, f"no GPU is free (GPU 0: {HELD})"),
        outcome("too-small", ONE, HUGE, NEVER, "no GPU is suitable (GPU 0: 30.0 GiB do not fit, it has 24.0 GiB)"),
        outcome("too-small-in-the-list", TWO, {"devices": ("1",), **HUGE}, NEVER, TOO_LARGE),
        outcome("too-little-memory-or-claimed", [SMALL, gpu(1)], LARGE, LATER, TOO_SMALL),
        outcome("awaited", ONE, {"awaited": [UUID]}, LATER, AWAITED_BY_ONE),
        outcome("awaited-to-be-joined", ONE, {"awaited": [UUID], **ALL}, LATER, AWAITED_BY_ONE),
        outcome("awaited-and-a-need", ONE, {"awaited": [UUID], "need_bytes": GIB}, LATER, AWAITED_BY_ONE),
        outcome("some-are-free", ONE_BUSY, {"count": 3}, SOME, "3 GPUs wanted, 2 are free: waiting for 1 more"),
        outcome("all-that-fit-are-waited-for", TWO, MOST, MORE, "2 GPUs wanted, 1 is free: waiting for 1 more"),
        outcome("an-idle-lease-is-shared", [gpu(0, pids=[7], used_gib=20)], IDLE, ALIKE, None),
    ],
)
def test_busy_says_what_becomes_of_a_process_without_enough_free_gpus(gpus, asked, verdicts, why):
    found = {busy: decided(*gpus, busy=busy, **asked) for busy in verdicts}
    assert {busy: decision.verdict for busy, decision in found.items()} == verdicts
    whys = {decision.why.partition("; it shares")[0] for decision in found.values() if decision.verdict is not TAKE}
    assert whys <= {why}


OLD, YOUNG, FULL = claim(24, **SETTLED), claim(24, age_s=59.0), gpu(0, used_gib=18.5, pids=[7])
UNSEEN = {"is_seen": False}
NOT_ANY_MORE = {"waited_s": 1800.0}
LESS, MORE_FREE = gpu(1, used_gib=10, pids=[7]), gpu(2, used_gib=6, pids=[7])
BY_SHELL = {"visible_spec": INHERITED}
USED, NEARLY_ALL = gpu(0, used_gib=5, pids=[7]), {"held": {0: claim(23.5, **SETTLED)}}
TOLD, JOINED, HIDING = claim(8, **SETTLED), claim(0, cap_gib=20), replace(gpu(0, used_gib=6), compute_processes=None)
BOTH_YOUNG, ONE_YOUNG = {"held": {0: YOUNG, 1: YOUNG}}, {"held": {1: OLD, 2: YOUNG}}
ONE_TOLD, GROWN = {"held": {1: OLD, 2: claim(8)}}, claim(24, age_s=60.0, newest_s=1.0)
CAPPED = {"claims": {UUID: 0}, "caps": {UUID: FIVE}, "why_capped": BEST_EFFORT_OF_SIZE}
ALONE = gpu(0, pids=[7], compute_mode="exclusive_process")


def named(numbers):
    return {"numbers": numbers}


@pytest.mark.parametrize(
    ("gpus", "asked", "expected"),
    [
        case("after-a-minute", ONE, {"held": {0: OLD}}, verdict=TAKE, claims={UUID: 0}),
        case("not-before", ONE, {"held": {0: YOUNG}}, verdict=WAIT),
        case("not-before-the-last-one-has-run-for-it", ONE, {"held": {0: (OLD, YOUNG)}}, verdict=WAIT),
        case("not-before-it-is-seen-there", ONE, {"held": {0: OLD}, "is_seen": False}, verdict=WAIT),
        case("which-no-one-has-to-be-who-said-how-much", ONE, {"held": {0: TOLD}, "is_seen": False}, verdict=TAKE),
        case("nor-where-the-driver-hides-processes", [HIDING], {"held": {0: OLD}}, verdict=TAKE),
        case("nor-in-a-container-which-lists-none", [gpu(0, used_gib=5)], {**UNSEEN, "held": {0: OLD}}, verdict=TAKE),
        case("but-not-one-that-uses-nothing", ONE, {**UNSEEN, "held": {0: OLD}}, verdict=WAIT),
        case("not-one-who-said-all-of-it", ONE, {"held": {0: claim(24 - 1 / GIB, **SETTLED)}}, verdict=WAIT),
        case("a-quarter-is-free", [gpu(0, used_gib=18, pids=[7])], {"held": {0: OLD}}, verdict=TAKE),
        case("less-is-not-enough", [FULL], {"held": {0: OLD}}, verdict=WAIT),
        case("what-was-promised-is-not-free", ONE, {"held": {0: claim(20, **SETTLED)}}, verdict=WAIT),
        case("what-was-promised-is-not-taken", ONE, {"held": {0: claim(14, **SETTLED)}}, caps={UUID: NINE_AND_HALF}),
        case("where-the-most-is-free", [LESS, MORE_FREE], {"held": dict.fromkeys((1, 2), OLD)}, ordinals=(1,)),
        case("unknown-memory", [replace(FULL, memory_used_bytes=None)], {"held": {0: OLD}}, verdict=TAKE),
        case("not-before-either", [replace(FULL, memory_used_bytes=None)], {"held": {0: YOUNG}}, verdict=WAIT),
        case("no-need-where-one-has-just-joined", ONE, {"need_bytes": 8 * GIB, "held": {0: JOINED}}, verdict=WAIT),
        case("a-minute-later", ONE, {"need_bytes": 8 * GIB, "held": {0: replace(JOINED, age_s=60.0)}}, verdict=TAKE),
        case("as-many-as-asked-for", [gpu(0), LESS], {"count": 2, "held": {1: OLD}}, ordinals=(0, 1)),
        case("a-member-that-comes-later-has-no-minute-of-its-own", ONE, {"held": {0: GROWN}}, verdict=TAKE),
        case("the-wait-has-an-end", [FULL], {**NOT_ANY_MORE, "held": {0: OLD}}, caps={UUID: FIVE}),
        case("so-that-no-two-are-told-the-same", ONE, {**NOT_ANY_MORE, "held": {0: JOINED}}, verdict=WAIT),
        case("which-may-be-now", [FULL], {"wait_s": 0.0, "held": {0: YOUNG}}, caps={UUID: FIVE}, claims={UUID: 0}),
        case("nor-for-those-who-said-how-much", ONE, {**NOT_ANY_MORE, "held": {0: (OLD, claim(1))}}, verdict=TAKE),
        case("at-least-a-gib", [USED], {**NOT_ANY_MORE, **NEARLY_ALL}, caps={UUID: GIB // 2}),
        case("then-where-all-is-promised", ONE, {"wait_s": 0.0, "held": {0: (OLD, claim(24, pid=8))}}, verdict=TAKE),
        case("where-all-has-settled", [LESS, MORE_FREE], {**NOT_ANY_MORE, **ONE_YOUNG}, ordinals=(0,)),
        case("a-young-one-has-all-it-was-told", [LESS, MORE_FREE], {"wait_s": 0.0, **ONE_YOUNG}, ordinals=(0,)),
        case("none-is-awaited", [gpu(0), LESS], {**NOT_ANY_MORE, "awaited": [UUID], "held": {1: OLD}}, ordinals=(1,)),
        case("a-need-as-well", ONE, {"need_bytes": 8 * GIB, "held": {0: OLD}}, verdict=TAKE, claims={UUID: 8 * GIB}),
        case("in-the-end-too", [FULL], {"need_bytes": 8 * GIB, "held": {0: OLD}, **NOT_ANY_MORE}, **CAPPED),
        case("on-the-gpu-that-the-script-lists-at-once", [FULL], {**BY_SCRIPT, "held": {0: YOUNG}}, verdict=TAKE),
        case("where-a-shell-lists-as-many-as-it-takes", [FULL], {**BY_SHELL, "held": {0: YOUNG}}, verdict=TAKE),
        case("also-by-its-names", [FULL, LESS], {**BY_SHELL, **BOTH_YOUNG, "named_count": 2}, verdict=TAKE),
        case("not-where-that-list-leaves-a-choice", [FULL, LESS], {**BY_SHELL, **BOTH_YOUNG}, verdict=WAIT),
        case("where-the-script-names-all-there-are", [FULL, LESS], {**named((0, 1)), "held": {0: YOUNG}}, verdict=TAKE),
        case("never-one-that-can-not-fit", ONE, {"need_bytes": 30 * GIB, "wait_s": 0.0}, verdict=CPU),
        case("an-idle-lease-at-once", [gpu(0, pids=[7], used_gib=20)], IDLE, verdict=TAKE),
    ],
)
def test_who_has_not_said_what_it_needs_joins_others_after_a_minute_where_a_quarter_is_free(gpus, asked, expected):
    assert fields(decided(*gpus, **asked), expected) == expected


@pytest.mark.parametrize(
    ("asked", "end"),
    [
        ({}, ", for the next 30 min only where enough of it is free"),
        ({"need_bytes": 8 * GIB, "waited_s": 720.0}, ", for the next 18 min only where enough of it is free"),
        ({"waited_s": 1800.0}, ""),
    ],
)
def test_who_waits_to_share_is_told_until_when(asked, end):
    shares = f"it shares a GPU once all jobs there have run for a minute{end}; to start now: AUTOGPU_WAIT=0"
    assert decided(*ONE, held={0: YOUNG}, **asked).why.partition("); ")[2] == shares
    mine = replace(YOUNG, uid=ME)
    assert decided(*TWO, held={0: mine}, per_user=1, **asked).why == f"{AT_THE_CAP}; {shares}"


@pytest.mark.parametrize(
    ("busy", "count", "why"),
    [
        ("share", 3, "all 3 (shared: GPU 0: "),
        ("cpu", 2, "the 2 idlest of 3; select.count asks for 3, 2 can be had now"),
    ],
)
def test_more_gpus_than_are_free(busy, count, why):
    decision = decided(*ONE_BUSY, count=3, busy=busy)
    assert (len(decision.ordinals), decision.why[: len(why)]) == (count, why)
