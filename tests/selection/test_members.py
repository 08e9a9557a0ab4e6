"""Processes of one job: the lease of a parent, the claims of ranks, the caps of children, and the queue."""

import pytest

from autogpu.caps import Cap, CapCause
from autogpu.frozen import replace
from autogpu.lease import Demand, Holder, Processes, Waiter
from autogpu.selection.decision import Verdict
from autogpu.selection.members import decide_beside, family_of, promised_to, rivals
from autogpu.text import GIB
from tests.support.selections import request
from tests.support.values import gpu, inventory

PARENT = Holder("a", 1000, False, 7, None, 1, 1.0, "launch.py", "j", {gpu(0).uuid: 24 * GIB})


@pytest.mark.parametrize(
    ("devices", "listed", "is_rival"),
    [
        pytest.param([gpu(0)], {}, False, id="parent-without-a-context"),
        pytest.param([gpu(0, pids=[7])], {"of_lease": {"a": (7,)}}, True, id="parent-with-a-context-on-its-gpu"),
        pytest.param([gpu(0), gpu(1, pids=[7])], {"of_lease": {"a": (7,)}}, True, id="parent-with-a-context-elsewhere"),
        pytest.param([gpu(0, pids=[9])], {}, False, id="context-of-another-job"),
    ],
)
def test_parents_lease_counts_for_its_children_if_the_parent_has_a_context(devices, listed, is_rival):
    processes = Processes(**{"of_lease": {}, **listed})
    family = family_of(PARENT, [PARENT], has_parents_list=True)
    assert (PARENT in rivals([PARENT], family, processes, inventory(*devices))) is is_rival


def test_parent_that_starts_to_compute_is_a_rival_of_its_waiting_child():
    family, looks = family_of(PARENT, [PARENT], has_parents_list=True), [gpu(0), gpu(0, pids=[7])]
    found = [rivals([PARENT], family, Processes({"a": (7,)}), inventory(device)) for device in looks]
    assert found == [[], [PARENT]]


NEIGHBOUR = replace(PARENT, name="b", pid=9, since_s=0.0)


@pytest.mark.parametrize(("now_s", "verdict"), [(159.0, Verdict.TAKE), (160.0, Verdict.WAIT)])
def test_waiter_that_does_not_fit_is_passed_until_its_wait_is_over(now_s, verdict):
    demand = Demand(joins=True, last_runs={gpu(0).uuid: 12 * GIB}, wait_s=60)
    ahead = Waiter("wait.1", 1001, False, 8, since_s=100.0, demand=demand)
    busy = gpu(0, used_gib=14, pids=[9])
    decision, _ = decide_beside(request(busy), [NEIGHBOUR], [ahead], Processes({"b": (9,)}), now_s, family=None)
    assert decision.verdict is verdict


SIZES = ((4, 6), (6, 4))


@pytest.mark.parametrize("sizes", SIZES)
def test_ranks_are_promised_the_largest_claim_on_each_visible_gpu(sizes):
    seen, other = gpu(0), gpu(1)
    ranks = [replace(PARENT, claims={seen.uuid: size * GIB, other.uuid: GIB}) for size in sizes]
    assert promised_to(ranks, request(seen)) == {seen.uuid: 6 * GIB}


@pytest.mark.parametrize("sizes", SIZES)
def test_child_gets_the_smallest_cap_of_its_jobs_processes(sizes):
    members = [replace(PARENT, name=str(size), caps={gpu(0).uuid: Cap(size * GIB, CapCause.SHARED)}) for size in sizes]
    family = family_of(members[0], members, has_parents_list=True)
    assert family.caps == {gpu(0).uuid: Cap(4 * GIB, CapCause.SHARED)}
