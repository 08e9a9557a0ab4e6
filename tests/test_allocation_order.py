"""Frameworks that take the GPUs which CUDA counts first, and several frameworks in one process."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from autogpu.frameworks.base import DeviceRequest, Hooks
from autogpu.lease import ancestor_lease, find_folder, has_parents_list, snapshot
from autogpu.variables import CUDA_VISIBLE_DEVICES, LEASE, LEASE_DIR
from tests.support.fakes import FakeCuda, FirstGpusFramework
from tests.support.framework_jobs import becomes_true
from tests.support.holders import other_job
from tests.support.processes import in_a_fork
from tests.support.values import gpu

BUSY = gpu(0, pids=[7], used_gib=9, busy=90)
TWO, THREE = (gpu(0), gpu(1)), (BUSY, gpu(1), gpu(2))
ALL = 24 * 1024


@pytest.fixture
def first(started):
    """Start processes of such a framework, idlest first as CUDA counts them unless ``counted`` says otherwise."""

    def first(*devices, counted=None, **options):
        counted = [gpu(index) for index in counted] if counted is not None else devices[::-1]
        return started(*devices, kind=FirstGpusFramework, counted=counted, **options)

    return first


@pytest.fixture
def other(tmp_path):
    """Another job that holds GPUs, in GiB by index."""
    return lambda held, **options: other_job(
        {LEASE_DIR: str(tmp_path)}, {gpu(index).uuid: gib << 30 for index, gib in held.items()}, **options
    )


def test_what_is_claimed_is_counted_first(first, other):
    process = first(*THREE, counted=[1, 0, 2])
    assert process.listed == "2 1 0"
    with other({2: 24}):
        assert process.framework.count() == 3
        # The others as they rank by now.
        assert (process.listed, process.claims) == ("1 0 2", {1: ALL})
    assert process.lines[0].startswith("GPU 1 (NVIDIA TITAN RTX, 24.0 of 24.0 GiB free): the idlest of 3")


@pytest.mark.parametrize(
    ("named", "options", "order"),
    [
        pytest.param(1, {}, [1, 2, 0], id="second"),
        pytest.param(2, {}, [1, 0, 2], id="third"),
        pytest.param(3, {}, [2, 1, 0], id="no-such-place-an-error-of-the-scripts"),
        pytest.param(1, {"AUTOGPU_COUNT": "2"}, [2, 1, 0], id="which-of-several-nobody-knows"),
    ],
)
def test_what_is_claimed_is_counted_where_the_script_names_it(named, options, order, first):
    process = first(*THREE, counted=order, **options)
    process.framework.count(named)
    assert process.listed == " ".join(map(str, order))
    assert (f", as the script's cuda:{named};" in process.lines[0]) == (order != [2, 1, 0])


def test_asking_again_changes_nothing_and_a_claim_says_whether_it_is_used(first):
    process = first(*TWO)
    process.framework.count()
    (asked,) = process.holders
    process.framework.count()
    assert (process.holders, asked.is_unused, len(process.lines)) == ((asked,), True, 1)
    process.framework.use(0)
    assert [(holder.name, holder.is_unused) for holder in process.holders] == [(asked.name, False)]


def test_the_lease_follows_what_the_script_uses(first):
    process = first(gpu(0), gpu(1), gpu(2))
    process.framework.count()
    assert process.framework.use(1) == (1,)
    assert process.claims == {1: ALL}
    assert process.lines[1] == "the script uses GPU 1 (number 1 of its list); not GPU 2, which is given back"
    process.framework.use(0, 2)
    assert process.claims == {0: ALL, 1: ALL, 2: ALL}


def test_what_the_script_allows_itself_later_is_all_that_stays_claimed(first):
    process = first(*TWO)
    process.framework.count()
    process.framework.use(0)
    for size_gib in (2, 4):
        process.allocator.on_limit(0, size_gib << 30)
        assert process.claims == {1: 2 * 1024 + 512}, "what was given back may be another's by now"


def test_what_another_job_was_promised_meanwhile_is_not_claimed_by_use(first, other):
    process = first(*TWO)
    process.framework.count()
    with other({0: 20}):
        process.framework.use(0, 1)
        assert process.claims.get(0, 0) in (0, 4 * 1024)


def test_where_the_script_ends_beside_another_job_it_is_capped_until_that_one_has_gone(first, other):
    process = first(*TWO)
    process.framework.count()
    # It has come since.
    with other({0: 20}, script="late.py"):
        process.framework.use(1)
        assert process.lines[1].startswith(
            "the script uses GPU 0 (number 1 of its list); not GPU 1, which is given back; GPU 0 is shared "
            "(claimed by late.py"
        )
        assert "and capped at half of what is free and not claimed" in process.lines[1]
        assert (process.allocator.assignment.caps, process.claims) == ({1: 2 << 30}, {0: 0})
        process.framework.use(1)
        assert len(process.lines) == 2
    assert becomes_true(lambda: process.framework.use(1) and not process.allocator.assignment.caps, within_s=20)
    assert process.claims == {0: ALL}


def test_beside_its_own_children_a_process_is_not_capped(first, other):
    process = first(*TWO)
    process.framework.count()
    process.framework.use(0)
    (own,) = process.holders
    with other({0: 20}, group=own.group):
        process.framework.use(0, 1)
        assert (process.allocator.assignment.caps, process.claims[0]) == ({}, ALL)


def test_gpus_that_were_asked_for_stay_claimed_until_they_are_used(first):
    process = first(gpu(0), gpu(1), gpu(2), AUTOGPU_COUNT="2")
    process.framework.count()
    process.framework.use(0)
    assert process.claims == {1: ALL, 2: ALL}


@pytest.mark.parametrize("policy", [{"AUTOGPU_COUNT": "0"}, {"AUTOGPU_BUSY": "cpu"}], ids=["none-wanted", "none-free"])
def test_a_process_that_is_to_have_no_gpu_is_shown_none(first, policy):
    process = first(BUSY, **policy)
    process.allocator.prepare()
    process.allocator.hide_where_none_is_taken()
    assert process.environ[CUDA_VISIBLE_DEVICES] == "-1"
    process.cuda = process.framework._cuda = process.allocation._cuda = process.allocator._cuda = FakeCuda()
    process.framework.count()
    assert process.lines[0].startswith("no GPU for this process, Firstflow starts on CPU: ")


def test_an_order_that_cuda_has_already_is_said_and_what_is_used_is_claimed(first):
    process = first(*TWO, counted=[0, 1])
    process.cuda.initialise()
    process.framework.count()
    assert process.holders == ()
    assert "CUDA had counted the GPUs before autogpu could choose" in process.lines[0]
    process.framework.use(0)
    assert process.claims == {0: ALL}


def test_a_list_that_the_script_wrote_is_ordered_in_its_own_words(first):
    process = first(gpu(0), gpu(1), gpu(2), counted=[1, 0])
    process.environ[CUDA_VISIBLE_DEVICES] = "0, 1"
    process.framework.count()
    assert process.environ[CUDA_VISIBLE_DEVICES].replace(" ", "") == "1,0"
    assert process.claims == {1: ALL}


def test_of_a_pool_only_what_is_claimed_is_shown_and_counted(first, other):
    policy = {"AUTOGPU_VISIBLE": "chosen", "AUTOGPU_COUNT": "2", "AUTOGPU_LIMIT": "2GiB"}
    with other({1: 24, 3: 24}):
        process = first(*map(gpu, range(4)), counted=[2, 0], **policy)
        assert process.listed == "2 0"
        process.framework.count()
    assignment = process.allocator.assignment
    assert (assignment.ordinals, sorted(assignment.totals), sorted(assignment.caps)) == ((0, 1), [0, 1], [0, 1])


# Of several processes


def test_a_rank_that_was_told_no_more_than_its_number_keeps_its_parents_order(first):
    parent = first(gpu(0), gpu(1), gpu(2))
    parent.framework.count()
    child = first(gpu(0), gpu(1), gpu(2), **{**parent.environ, "LOCAL_RANK": "1", "WORLD_SIZE": "2"})
    child.framework.count()
    assert child.listed == parent.listed == "2 1 0"
    assert len(child.holders) == 1, "it is not known yet which it will use"
    child.framework.use(1)
    assert (parent.held, child.held, len(child.holders)) == ("2", "1", 2)


def test_ranks_are_listed_in_the_order_of_ranks(first):
    process = first(*THREE, counted=[1, 2, 0], LOCAL_RANK="1", LOCAL_WORLD_SIZE="2")
    process.framework.count()
    assert (process.listed, process.allocator.assignment.ordinals) == ("1 2 0", (1,))


@pytest.mark.parametrize("visible", ["pool", "chosen"])
def test_children_are_members_also_when_the_list_was_changed_after_the_claim(first, other, visible):
    process = first(*THREE, counted=[1, 2, 0], AUTOGPU_VISIBLE=visible)
    with other({2: 24}):
        process.framework.count()
        environ = process.environ
        assert in_a_fork(
            lambda: ancestor_lease(environ, find_folder(environ)) is not None and has_parents_list(environ)
        )


@pytest.fixture
def held(tmp_path, other):
    """What a program finds that `autogpu run --hold` has started with GPUs 0 and 1."""
    with other({0: 24, 1: 24}, script="run"):
        (holder,) = snapshot(find_folder({LEASE_DIR: str(tmp_path)})).holders
        visible = ",".join(device.uuid for device in TWO)
        marker = f"v1:{holder.name}:{holder.pid}:{holder.start_time or 0}:={visible}"
        yield {CUDA_VISIBLE_DEVICES: visible, LEASE: marker}


def test_what_a_script_below_a_hold_lists_after_its_first_claim_is_held_for_it_all_the_same(first, held):
    process = first(gpu(0), gpu(1), gpu(2), counted=[1], AUTOGPU_BUSY="error", **held)
    process.allocator.prepare()
    assert process.held == "0 1"
    process.environ[CUDA_VISIBLE_DEVICES] = gpu(1).uuid
    assert process.framework.count() == 1
    assert process.claims == {1: ALL}
    assert "shared with its parent process, run" in process.lines[0]


def test_children_of_one_that_gave_its_claim_back_are_of_the_job_that_started_it(first, held):
    process = first(*TWO, **held)
    process.allocator.prepare()
    process.allocator.assign(DeviceRequest(2))
    assert process.environ[LEASE] != held[LEASE]
    process.allocator.on_unused()
    assert (process.allocation.lease, process.environ[LEASE]) == (None, held[LEASE])


# Of several frameworks


@pytest.mark.parametrize("has_gone_without", [False, True], ids=["which-has-some", "which-goes-without"])
def test_a_second_framework_gets_what_the_first_one_has(started, has_gone_without):
    process = started(*TWO)
    if has_gone_without:
        assert process.framework.take(chosen=()).ordinals is None
        assert (process.holders, process.lines) == ((), [])
    second = process.imports_another(hooks=Hooks("2.0", ("take",), has_essential=True))
    assert second.take().ordinals == (0,)
    assert has_gone_without or process.framework.take().ordinals == (0,)
    assert (process.claims, len(process.lines)) == ({1: ALL}, 1)


def test_a_second_framework_whose_script_names_another_gpu_takes_it_and_the_lease_says_so(started):
    process = started(*TWO)
    second = process.imports_another()
    process.framework.take()
    assert second.take(chosen=(1,)).ordinals is None
    assert sorted(process.claims) == [0, 1]


def test_of_a_second_framework_that_can_not_be_hooked_into_nothing_is_said(started):
    process = started(gpu(0))
    process.imports_another(hooks=Hooks("0", obstacle="too old"))
    assert process.lines == []
    assert process.framework.take().ordinals == (0,)


def test_a_framework_without_a_gpu_does_not_silence_the_next(started):
    process = started(gpu(0))
    assert process.imports_another(cuda=FakeCuda()).take() is None
    process.framework.take()
    assert process.lines[-1].startswith("GPU 0 ")


@pytest.mark.parametrize("first_to_ask", ["ours", "theirs"])
def test_beside_a_framework_that_takes_the_first_gpus_every_other_one_takes_them(first, first_to_ask):
    process = first(*THREE)
    other = process.imports_another()
    if first_to_ask == "ours":
        process.framework.count()
    assert other.take().ordinals == (0,)
    process.framework.count()
    assert (process.claims, len(process.lines)) == ({2: ALL}, 1)


def test_a_framework_that_goes_without_takes_nothing_from_one_that_wants_the_first(first):
    process = first(*THREE)
    assert process.imports_another().take(chosen=()).ordinals is None
    assert process.framework.count() == 3
    assert process.allocator.assignment.ordinals == (0,)
    process.framework.use(0)
    assert process.claims == {2: ALL}
    assert process.lines[-1].startswith("GPU 2 ")


def test_what_one_framework_does_not_use_stays_the_others(first):
    process = first(*TWO)
    other = process.imports_another()
    process.framework.count()
    other.allocator.on_unused()
    assert process.claims == {1: ALL}
    process.allocator.on_unused()
    assert process.holders == ()


def test_after_one_that_gave_its_claim_back_the_next_claims_what_cuda_counts_first(first, other):
    process = first(gpu(0), gpu(1), gpu(2), counted=[1, 2, 0])
    late = process.imports_another("Lateflow", FirstGpusFramework).allocator
    late.prepare()
    late.assign(DeviceRequest(3))
    late.on_unused()
    assert process.holders == ()
    with other({2: 24}):
        process.framework.count()
        process.framework.use(0)
        assert (process.listed[0], process.claims) == ("1", {1: ALL})


def test_a_question_that_starts_cuda_is_not_asked_before_the_first_gpus_are_claimed(first, other):
    process = first(*TWO, counted=[0, 1])
    asker = process.imports_another().allocator
    with other({1: 24}):
        asker.prepare()
        process.cuda.initialise()
        assert process.listed == "0 1"
        process.framework.count()
        process.framework.use(0)
        assert process.claims == {0: ALL}


def test_frameworks_that_are_first_used_in_two_threads_have_one_claim(started):
    process = started(*map(gpu, range(4)))
    frameworks = [process.framework, *(process.imports_another(f"Flow {number}") for number in range(3))]
    threads = [threading.Thread(target=framework.take) for framework in frameworks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert (len(process.holders), len(process.claims)) == (1, 1)


def test_a_system_without_fork_imports_it_all_the_same():
    modules = "autogpu.activation, autogpu.allocator, autogpu.frameworks.torch.start, autogpu.frameworks.jax.start"
    code = f"import os; del os.register_at_fork; import {modules}"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
