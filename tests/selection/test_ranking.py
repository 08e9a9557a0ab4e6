"""Which GPU is best, and why not the others."""

import pytest

from autogpu import policy
from autogpu.devices.model import Process, UnreadableDevice
from autogpu.frozen import replace
from autogpu.policy import Policy
from autogpu.selection.model import Cause, MemoryDemand, Rejection
from autogpu.selection.ranking import matches, ranking_of, unmatched_lists
from autogpu.text import GIB
from tests.support.selections import INHERITED, UNSET, claim
from tests.support.values import gpu, inventory

UNSUITABLE, UNUSABLE, IN_USE, EXCLUDED = Cause.UNSUITABLE, Cause.UNUSABLE, Cause.IN_USE, Cause.EXCLUDED_BY_POLICY
# All of a GPU, for a job that has said so.
STATED = 24 - 1 / GIB
BIG_BUSY = gpu(0, total_gib=80, used_gib=10, pids=[7], busy=90)
EXCLUSIVE = gpu(compute_mode="exclusive_process")


def ranked(*devices, claims=(), demand=None, **policy):
    """With these claims on GPU 0."""
    demand = None if demand is None else MemoryDemand(**demand)
    return ranking_of(devices, Policy(**policy), UNSET, None, demand, {gpu(0).uuid: claims})


@pytest.mark.parametrize(
    ("devices", "expected"),
    [
        pytest.param([BIG_BUSY, gpu(1, total_gib=8)], [1, 0], id="an-idle-small-gpu-beats-a-busy-big-one"),
        pytest.param([gpu(0, total_gib=24), gpu(1, total_gib=11)], [0, 1], id="more-room-first"),
        pytest.param([gpu(0, busy=3), gpu(1, busy=0)], [1, 0], id="less-utilization-first"),
        pytest.param([gpu(0), gpu(1), gpu(2)], [2, 1, 0], id="tie-goes-to-the-highest-index"),
        pytest.param([gpu(0, used_gib=0.3), gpu(1, used_gib=0.2, busy=40)], [0, 1], id="less-than-a-gib-is-no-room"),
        pytest.param([gpu(0), gpu(1, total_gib=None)], [0, 1], id="unknown-memory-is-last-in-its-tier"),
        pytest.param([gpu(0, busy=40), gpu(1, busy=None)], [0, 1], id="unknown-utilization-is-last-in-its-tier"),
        pytest.param([gpu(0, pids=[7], used_gib=1), gpu(1, busy=None)], [1, 0], id="unknown-but-free-beats-busy"),
        pytest.param([gpu(0, pids=[7], used_gib=20), gpu(1, pids=[8], used_gib=4)], [1, 0], id="the-roomiest-of-busy"),
        pytest.param([EXCLUSIVE], [0], id="an-exclusive-gpu-without-a-process"),
    ],
)
def test_order(devices, expected):
    assert [candidate.device.index for candidate in ranked(*devices).candidates] == expected


FOUR = [gpu(number) for number in range(4)]


@pytest.mark.parametrize(
    ("devices", "prefer", "expected"),
    [
        pytest.param(FOUR, ["0", "1", "3", "2"], [0, 1, 3, 2], id="in-its-order"),
        pytest.param(FOUR, ["1"], [1, 3, 2, 0], id="the-others-as-without"),
        pytest.param(FOUR, ["0-1"], [1, 0, 3, 2], id="in-one-entry-as-without"),
        pytest.param(FOUR, ["2", "0-3"], [2, 3, 1, 0], id="by-the-first-entry-that-means-it"),
        pytest.param([gpu(0, pids=[7], used_gib=1), gpu(1)], ["0"], [1, 0], id="not-before-a-better-tier"),
        pytest.param([gpu(0, busy=30), gpu(1)], ["0"], [1, 0], id="not-before-an-idler-one"),
    ],
)
def test_the_preferred_of_equals_come_first(devices, prefer, expected):
    ranking = ranked(*devices, prefer=tuple(prefer))
    assert [candidate.device.index for candidate in ranking.candidates] == expected


EXCLUSIVE_IN_USE = gpu(compute_mode="exclusive_process", pids=[7], used_gib=0.1)
EXCLUSIVE_WITH_CONTEXT = replace(EXCLUSIVE_IN_USE, compute_processes=(Process(7, GIB // 2, is_bare=True),))
TAKEN = "its compute mode is EXCLUSIVE and a process has it"
THREE_JOBS = [claim(8, pid=pid) for pid in range(3)]
JOINS = {"bytes": 23 * GIB, "may_join": True}
EIGHT, THIRTY = {"bytes": 8 * GIB}, {"bytes": 30 * GIB}
ONE_CLAIMED = "24.0 GiB do not fit, 23.0 GiB are left"
SETTLED_WHOLE, UNUSED = [claim(24, age_s=60.0)], "23.0 GiB do not fit, 20.0 GiB are left"
ALL_CLAIMED = "8.0 GiB do not fit: everything is used or claimed"


def no(rule, cause, device, why, rules=None, claims=()):
    """A row: why a GPU is no candidate."""
    return pytest.param(device, rules or {}, claims, why, cause, id=rule)


@pytest.mark.parametrize(
    ("device", "rules", "claims", "why", "cause"),
    [
        no("not-listed", EXCLUDED, gpu(3), "not among select.devices", {"devices": ("0-2",)}),
        no("excluded", EXCLUDED, gpu(3), "excluded by select.exclude", {"exclude": ("3",)}),
        no("mig", UNUSABLE, gpu(mig_enabled=True), "in MIG mode, and has no instance here"),
        no("prohibited", UNUSABLE, gpu(compute_mode="prohibited"), "its compute mode is PROHIBITED"),
        no("exclusive-and-used", IN_USE, EXCLUSIVE_IN_USE, TAKEN),
        no("exclusive-and-a-bare-context", IN_USE, EXCLUSIVE_WITH_CONTEXT, TAKEN),
        no("exclusive-and-claimed", IN_USE, EXCLUSIVE, TAKEN, claims=[claim(1)]),
        no("never-fits", UNSUITABLE, gpu(), "30.0 GiB do not fit, it has 24.0 GiB", {"demand": THIRTY}),
        no("limit-beside-a-claim", IN_USE, gpu(), ONE_CLAIMED, {"demand": {**THIRTY, "is_limit": True}}, [claim(1)]),
        no("beside-a-claim-of-all", IN_USE, gpu(pids=[7], used_gib=4), UNUSED, {"demand": JOINS}, SETTLED_WHOLE),
    ],
)
def test_rejected_with_the_reason(device, rules, claims, why, cause):
    ranking = ranked(device, claims=claims, **rules)
    assert (ranking.candidates, ranking.rejected) == ((), (Rejection(device, why, cause),))


@pytest.mark.parametrize(
    ("device", "demand", "claims", "claim_gib", "is_best_effort"),
    [
        pytest.param(gpu(), {"bytes": 8 * GIB}, THREE_JOBS[:2], 8, False, id="a-sum-of-claims-that-fits"),
        pytest.param(gpu(used_gib=0.5), {**THIRTY, "is_limit": True}, [], STATED, False, id="a-limit-of-all"),
        pytest.param(gpu(), {}, [claim(24)], 0, True, id="unknown-size-beside-others"),
    ],
)
def test_what_a_candidate_would_be_promised(device, demand, claims, claim_gib, is_best_effort):
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
def test_entries(entry, indices):
    assert [i for i in (0, 1, 2, 10) if matches(gpu(i), [entry])] == indices


def test_the_users_list_overrides_exclude_unless_that_is_locked():
    free, locked = Policy(exclude=("0",)), Policy(exclude=("0",), locked=frozenset({"select.exclude"}))
    cases = ((free, UNSET), (free, INHERITED), (locked, INHERITED))
    assert [len(ranking_of([gpu(0)], *each).rejected) for each in cases] == [1, 0, 1]


LOST = (UnreadableDevice(2, "lost"),)
NONE = "none of the GPUs here; there are the indices 0 to 1: NVIDIA TITAN RTX"
PART = 'none of the GPUs here; for a part of a name, write "*titan*"'


@pytest.mark.parametrize(
    ("devices", "exclude", "lost", "entries", "why"),
    [
        pytest.param("7,*A100*", "", (), "select.devices = 7, *A100* (AUTOGPU_DEVICES)", NONE, id="devices"),
        pytest.param("", "0,9", (), "select.exclude = 9 (AUTOGPU_EXCLUDE)", NONE, id="one-entry-of-exclude"),
        pytest.param("titan", "", (), "select.devices = titan (AUTOGPU_DEVICES)", PART, id="part-of-a-name"),
        pytest.param("*A100*,1,8-9", "", (), "select.devices = *A100*, 8-9 (AUTOGPU_DEVICES)", NONE, id="some-entries"),
        pytest.param("0-1,*TITAN*", "0", (), "", "", id="all-match"),
        pytest.param("1,2", "", LOST, "", "", id="one-may-be-a-gpu-that-is-lost"),
        pytest.param("8,9", "", LOST, "select.devices = 8, 9 (AUTOGPU_DEVICES)", NONE, id="beside-a-lost-one"),
    ],
)
def test_what_matches_none_is_named_with_what_there_is(tmp_path, devices, exclude, lost, entries, why):
    def found(*gpus):
        return list(unmatched_lists(resolved, inventory(*gpus, unreadable=lost), UNSET))

    environ = {"AUTOGPU_DEVICES": devices, "AUTOGPU_EXCLUDE": exclude}
    resolved = policy.resolve(environ, script=None, working_directory=tmp_path, system_file=tmp_path / "none")
    assert found(gpu(0), gpu(1)) == ([f"{entries} matches {why}"] if why else [])
    assert found() == [], "there is nothing to match"
