"""Whether the job that started a process uses the GPUs that it holds, as the driver tells."""

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
        pytest.param([gpu(0)], {}, False, id="it-has-only-asked"),
        pytest.param([gpu(0, pids=[7])], {"of_lease": {"a": (7,)}}, True, id="it-computes"),
        pytest.param([gpu(0), gpu(1, pids=[7])], {"of_lease": {"a": (7,)}}, True, id="on-another"),
        pytest.param([gpu(0, pids=[9])], {}, False, id="another-job-is-there"),
    ],
)
def test_what_a_parent_holds_counts_for_its_children_unless_nothing_uses_it(devices, listed, is_rival):
    processes = Processes(**{"of_lease": {}, **listed})
    family = family_of(PARENT, [PARENT], has_parents_list=True)
    assert (PARENT in rivals([PARENT], family, processes, inventory(*devices))) is is_rival


def test_a_parent_that_begins_to_compute_while_its_child_waits_counts_from_then_on():
    family, looks = family_of(PARENT, [PARENT], has_parents_list=True), [gpu(0), gpu(0, pids=[7])]
    found = [rivals([PARENT], family, Processes({"a": (7,)}), inventory(device)) for device in looks]
    assert found == [[], [PARENT]]


NEIGHBOUR = replace(PARENT, name="b", pid=9, since_s=0.0)


@pytest.mark.parametrize(("now_s", "verdict"), [(159.0, Verdict.TAKE), (160.0, Verdict.WAIT)])
def test_job_behind_one_whose_last_runs_do_not_fit_passes_it_until_its_wait_is_over(now_s, verdict):
    demand = Demand(joins=True, last_runs={gpu(0).uuid: 12 * GIB}, wait_s=60)
    ahead = Waiter("wait.1", 1001, False, 8, since_s=100.0, demand=demand)
    busy = gpu(0, used_gib=14, pids=[9])
    decision, _ = decide_beside(request(busy), [NEIGHBOUR], [ahead], Processes({"b": (9,)}), now_s, family=None)
    assert decision.verdict is verdict


SIZES = ((4, 6), (6, 4))


@pytest.mark.parametrize("sizes", SIZES)
def test_ranks_have_what_any_of_them_claims_of_the_gpus_that_this_one_sees(sizes):
    seen, other = gpu(0), gpu(1)
    ranks = [replace(PARENT, claims={seen.uuid: size * GIB, other.uuid: GIB}) for size in sizes]
    assert promised_to(ranks, request(seen)) == {seen.uuid: 6 * GIB}


@pytest.mark.parametrize("sizes", SIZES)
def test_a_child_is_capped_as_the_process_of_its_job_with_the_smallest_cap(sizes):
    members = [replace(PARENT, name=str(size), caps={gpu(0).uuid: Cap(size * GIB, CapCause.SHARED)}) for size in sizes]
    family = family_of(members[0], members, has_parents_list=True)
    assert family.caps == {gpu(0).uuid: Cap(4 * GIB, CapCause.SHARED)}
