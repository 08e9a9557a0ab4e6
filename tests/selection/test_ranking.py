"""The ranking of GPUs, and the obstacles for which GPUs are rejected."""

import pytest

from autogpu.devices.model import ComputeMode, Process, UnreadableDevice
from autogpu.frozen import replace
from autogpu.policy import Policy
from autogpu.selection.model import MemoryDemand, Obstacle, Rejection
from autogpu.selection.ranking import matches, ranking_of, unmatched_lists
from autogpu.text import GIB
from tests.support.selections import INHERITED, UNSET, claim
from tests.support.values import gpu, inventory

# A job whose stated need is the whole GPU claims this, in GiB: one byte less than a job without a stated need.
STATED = 24 - 1 / GIB
BIG_BUSY = gpu(0, total_gib=80, used_gib=10, pids=[7], busy=90)
EXCLUSIVE = gpu(compute_mode=ComputeMode.EXCLUSIVE_PROCESS)


def ranked(*devices, claims=(), demand=None, **policy):
    """Rank these GPUs under the fields of a policy; ``claims`` are on GPU 0."""
    demand = None if demand is None else MemoryDemand(**demand)
    return ranking_of(devices, Policy(**policy), UNSET, None, demand, {gpu(0).uuid: claims})


@pytest.mark.parametrize(
    ("devices", "expected"),
    [
        pytest.param([BIG_BUSY, gpu(1, total_gib=8)], [1, 0], id="idle-small-gpu-before-a-busy-large-one"),
        pytest.param([gpu(0, total_gib=24), gpu(1, total_gib=11)], [0, 1], id="more-memory-first"),
        pytest.param([gpu(0, busy=3), gpu(1, busy=0)], [1, 0], id="less-utilization-first"),
        pytest.param([gpu(0), gpu(1), gpu(2)], [2, 1, 0], id="highest-index-first-among-equals"),
        pytest.param(
            [gpu(0, used_gib=0.3), gpu(1, used_gib=0.2, busy=40)], [0, 1], id="spare-memory-counts-in-whole-gib"
        ),
        pytest.param([gpu(0), gpu(1, total_gib=None)], [0, 1], id="unknown-memory-is-last-in-its-tier"),
        pytest.param(
            [gpu(0, busy=40), gpu(1, total_gib=80, busy=None)], [0, 1], id="unknown-utilization-is-last-in-its-tier"
        ),
        pytest.param([gpu(0, pids=[7], used_gib=1), gpu(1, busy=None)], [1, 0], id="unknown-use-before-known-busy-gpu"),
        pytest.param([gpu(0, pids=[7], used_gib=20), gpu(1, pids=[8], used_gib=4)], [1, 0], id="most-spare-when-busy"),
        pytest.param([EXCLUSIVE], [0], id="exclusive-gpu-without-a-process"),
    ],
)
def test_gpus_are_ranked_by_tier_memory_and_utilization(devices, expected):
    assert [candidate.device.index for candidate in ranked(*devices).candidates] == expected


FOUR = [gpu(number) for number in range(4)]


@pytest.mark.parametrize(
    ("devices", "prefer", "expected"),
    [
        pytest.param(FOUR, ["0", "1", "3", "2"], [0, 1, 3, 2], id="preferred-gpus-in-list-order"),
        pytest.param(FOUR, ["1"], [1, 3, 2, 0], id="other-gpus-keep-their-order"),
        pytest.param(FOUR, ["0-1"], [1, 0, 3, 2], id="gpus-of-one-entry-keep-their-order"),
        pytest.param(FOUR, ["2", "0-3"], [2, 3, 1, 0], id="first-matching-entry-counts"),
        pytest.param([gpu(0, pids=[7], used_gib=1), gpu(1)], ["0"], [1, 0], id="better-tier-before-a-preferred-gpu"),
        pytest.param([gpu(0, busy=30), gpu(1)], ["0"], [1, 0], id="idler-gpu-before-a-preferred-gpu"),
    ],
)
def test_preferred_gpus_come_first_among_equals(devices, prefer, expected):
    ranking = ranked(*devices, prefer=tuple(prefer))
    assert [candidate.device.index for candidate in ranking.candidates] == expected


EXCLUSIVE_IN_USE = gpu(compute_mode=ComputeMode.EXCLUSIVE_PROCESS, pids=[7], used_gib=0.1)
EXCLUSIVE_WITH_CONTEXT = replace(EXCLUSIVE_IN_USE, compute_processes=(Process(7, GIB // 2, is_bare=True),))
THREE_JOBS = [claim(8, pid=pid) for pid in range(3)]
JOINS = {"bytes": 23 * GIB, "may_join": True}
EIGHT, THIRTY = {"bytes": 8 * GIB}, {"bytes": 30 * GIB}
SETTLED_WHOLE = [claim(24, age_s=60.0)]


def no(obstacle, device, rules=None, claims=(), name="", **sizes_gib):
    """Return a row: a GPU with its obstacle, and the sizes of the rejection in GiB."""
    sizes = {name: int(gib * GIB) for name, gib in sizes_gib.items()}
    return pytest.param(device, rules or {}, claims, Rejection(device, obstacle, **sizes), id=name or obstacle.name)


@pytest.mark.parametrize(
    ("device", "rules", "claims", "expected"),
    [
        no(Obstacle.NOT_AMONG_DEVICES, gpu(3), {"devices": ("0-2",)}),
        no(Obstacle.EXCLUDED, gpu(3), {"exclude": ("3",)}),
        no(Obstacle.MIG_WITHOUT_INSTANCE, gpu(mig_enabled=True)),
        no(Obstacle.PROHIBITED, gpu(compute_mode=ComputeMode.PROHIBITED)),
        no(Obstacle.EXCLUSIVE, EXCLUSIVE_IN_USE),
        no(Obstacle.EXCLUSIVE, EXCLUSIVE_WITH_CONTEXT, name="exclusive-and-a-bare-context"),
        no(Obstacle.EXCLUSIVE, EXCLUSIVE, claims=[claim(1)], name="exclusive-and-claimed"),
        no(Obstacle.NEED_ABOVE_TOTAL, gpu(), {"demand": THIRTY}, wanted_bytes=30, available_bytes=24),
        no(
            Obstacle.NEED_ABOVE_FREE,
            gpu(),
            {"demand": {**THIRTY, "is_limit": True}},
            [claim(1)],
            name="limit-beside-a-claim",
            wanted_bytes=STATED,
            available_bytes=23,
        ),
        no(
            Obstacle.NEED_ABOVE_FREE,
            gpu(pids=[7], used_gib=4),
            {"demand": JOINS},
            SETTLED_WHOLE,
            name="join-beside-a-whole-claim",
            wanted_bytes=23,
            available_bytes=20,
        ),
    ],
)
def test_gpu_that_can_not_be_taken_is_rejected_with_its_obstacle(device, rules, claims, expected):
    ranking = ranked(device, claims=claims, **rules)
    assert (ranking.candidates, ranking.rejected) == ((), (expected,))


@pytest.mark.parametrize(
    ("device", "demand", "claims", "claim_gib", "is_best_effort"),
    [
        pytest.param(gpu(), {"bytes": 8 * GIB}, THREE_JOBS[:2], 8, False, id="claims-that-fit-together"),
        pytest.param(gpu(used_gib=0.5), {**THIRTY, "is_limit": True}, [], STATED, False, id="limit-above-card"),
        pytest.param(gpu(), {}, [claim(24)], 0, True, id="unknown-need-beside-a-whole-claim"),
    ],
)
def test_candidate_has_the_bytes_that_it_would_claim(device, demand, claims, claim_gib, is_best_effort):
    (candidate,) = ranked(device, claims=claims, demand=demand).candidates
    assert (candidate.claim_bytes, candidate.is_best_effort) == (claim_gib * GIB, is_best_effort)


@pytest.mark.parametrize(
    ("entry", "indices"),
    [
        ("2", [2]),
        ("10", [10]),
        ("1-2", [1, 2]),
        ("GPU-0000000a", [10]),
        ("gpu-0000000A", [10]),
        ("*titan*", [0, 1, 2, 10]),
        ("NVIDIA TITAN RTX", [0, 1, 2, 10]),
        ("TITAN", []),
        ("", []),
    ],
)
def test_entry_matches_by_index_range_uuid_or_name(entry, indices):
    assert [i for i in (0, 1, 2, 10) if matches(gpu(i), [entry])] == indices


def test_users_list_overrides_exclude_unless_exclude_is_locked():
    free, locked = Policy(exclude=("0",)), Policy(exclude=("0",), locked=frozenset({"select.exclude"}))
    cases = ((free, UNSET), (free, INHERITED), (locked, INHERITED))
    assert [len(ranking_of([gpu(0)], *each).rejected) for each in cases] == [1, 0, 1]


LOST = (UnreadableDevice(2, "lost"),)


@pytest.mark.parametrize(
    ("lists", "lost", "expected"),
    [
        pytest.param({"devices": ("7", "*A100*")}, (), [("select.devices", ("7", "*A100*"))], id="no-entry-matches"),
        pytest.param({"exclude": ("0", "9")}, (), [("select.exclude", ("9",))], id="one-entry-does-not-match"),
        pytest.param({"devices": ("0-1", "*TITAN*"), "exclude": ("0",)}, (), [], id="all-entries-match"),
        pytest.param({"devices": ("1", "2")}, LOST, [], id="entry-may-match-a-lost-gpu"),
        pytest.param({"devices": ("8", "9")}, LOST, [("select.devices", ("8", "9"))], id="no-match-despite-lost-gpu"),
    ],
)
def test_list_entries_that_match_no_gpu_are_found(lists, lost, expected):
    def found(*gpus):
        return [(each.key, each.entries) for each in unmatched_lists(Policy(**lists), machine(*gpus), UNSET)]

    def machine(*gpus):
        return inventory(*gpus, unreadable=lost)

    assert found(gpu(0), gpu(1)) == expected
    assert found() == [], "there is nothing to match"
