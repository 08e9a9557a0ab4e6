"""Frameworks that take the GPUs which CUDA counts first, and several frameworks in one process."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from contextlib import contextmanager

import pytest

from autogpu.allocator import Allocator
from autogpu.frameworks.base import DeviceRequest, Hooks, Usage
from autogpu.lease import find_folder, snapshot
from autogpu.variables import (
    CUDA_VISIBLE_DEVICES,
    LEASE,
    LEASE_DIR,
    ORIGINAL_VISIBLE_DEVICES,
    WRITTEN_VISIBLE_DEVICES,
)
from tests.support.fakes import FakeCuda, FakeFramework
from tests.support.framework_jobs import becomes_true
from tests.support.holders import other_job
from tests.support.processes import Process
from tests.support.values import gpu

BUSY = gpu(0, pids=[7], used_gib=9, busy=90)


class FirstGpus(FakeFramework):
    """As PyTorch: it counts the GPUs, and its C++ takes them by their ordinals without a word."""

    NAME = "Firstflow"
    TAKES_FIRST_GPUS = True
    WANTS_ORDER = True

    def count(self, named=0):
        """As a script that asks whether there is a GPU, and is known to name one; how many it is told."""
        with self._allocator.guard():
            self._allocator.prepare(DeviceRequest(0, ordinal=named))
            self._allocator.hide_where_none_is_taken()
            self._cuda.initialise()
            count = self._allocator.gpu_count
            if not count:
                self._allocator.on_usage(Usage((), ""))
                return 0
            assigned = self._allocator.assign(DeviceRequest(count)).ordinals
            self._allocator.on_usage(Usage((0,) if assigned is None else assigned, "allocated as needed"))
        return count

    def use(self, *ordinals):
        for ordinal in ordinals:
            self._cuda.make_context(ordinal)
        return self._allocator.follow_contexts()


@pytest.fixture
def first(tmp_path):
    """Start processes of such a framework; ``counted`` are its GPUs as CUDA counts them."""
    processes = []

    def first(*devices, counted=(), **options):
        process = Process(tmp_path, *devices, cuda=FakeCuda(counted or devices), **options)
        process.framework = FirstGpus(process.cuda)
        process.allocation._frameworks.clear()
        process.allocator = Allocator(process.allocation, process.framework, process.cuda)
        processes.append(process.imports())
        return process

    yield first
    for process in processes:
        if process.allocation.lease:
            process.allocation.lease.release()


def listed(process):
    """By index, what CUDA is shown."""
    indices = {device.uuid: device.index for device in process.driver.now.devices}
    return [indices[uuid] for uuid in process.environ[CUDA_VISIBLE_DEVICES].split(",")]


def test_what_is_claimed_is_counted_first(first, tmp_path):
    process = first(BUSY, gpu(1), gpu(2), counted=[gpu(1), BUSY, gpu(2)])
    assert listed(process) == [2, 1, 0]
    with other_job({LEASE_DIR: str(tmp_path)}, {gpu(2).uuid: 24 << 30}):
        assert process.framework.count() == 3
        # The others as they rank by now.
        assert listed(process) == [1, 0, 2]
        assert [dict(holder.claims) for holder in process.holders if holder.is_mine] == [{gpu(1).uuid: 24 << 30}]
    assert process.lines[0].startswith("GPU 1 (NVIDIA TITAN RTX, 24.0 of 24.0 GiB free): the idlest of 3")


@pytest.mark.parametrize(
    ("named", "options", "order"),
    [
        (1, {}, [1, 2, 0]),
        (2, {}, [1, 0, 2]),
        # There is no such place: an error of the script's, as without autogpu.
        (3, {}, [2, 1, 0]),
        # Which of several is meant, nobody knows.
        (1, {"AUTOGPU_COUNT": "2"}, [2, 1, 0]),
    ],
    ids=str,
)
def test_what_is_claimed_is_counted_where_the_script_names_it(named, options, order, first):
    gpus = (BUSY, gpu(1), gpu(2))
    process = first(*gpus, counted=[gpus[index] for index in order], **options)
    process.framework.count(named)
    assert listed(process) == order
    assert (f", as the script's cuda:{named};" in process.lines[0]) == (order != [2, 1, 0])


def test_a_claim_says_whether_it_is_used(first):
    process = first(gpu(0))
    process.framework.count()
    assert [holder.is_unused for holder in process.holders] == [True]
    process.framework.use(0)
    assert [holder.is_unused for holder in process.holders] == [False]


def test_asking_again_changes_nothing(first):
    process = first(gpu(0), gpu(1), counted=[gpu(1), gpu(0)])
    process.framework.count()
    (before,) = process.holders
    process.framework.count()
    assert ([holder.name for holder in process.holders], len(process.lines)) == ([before.name], 1)


def test_the_lease_follows_what_the_script_uses(first):
    process = first(gpu(0), gpu(1), gpu(2), counted=[gpu(2), gpu(1), gpu(0)])
    process.framework.count()
    assert process.framework.use(1) == (1,)
    assert process.claims == {1: 24 * 1024}
    assert process.lines[1] == "the script uses GPU 1 (number 1 of its list); not GPU 2, which is given back"
    process.framework.use(0, 2)
    assert process.claims == {0: 24 * 1024, 1: 24 * 1024, 2: 24 * 1024}


def test_what_another_job_was_promised_meanwhile_is_not_claimed_by_use(first, tmp_path):
    process = first(gpu(0), gpu(1), counted=[gpu(1), gpu(0)])
    process.framework.count()
    with other_job({LEASE_DIR: str(tmp_path)}, {gpu(0).uuid: 20 << 30}):
        process.framework.use(0, 1)
        (mine,) = [holder for holder in process.holders if holder.is_mine]
    assert {size >> 30 for uuid, size in mine.claims.items() if uuid == gpu(0).uuid} <= {0, 4}


def test_where_the_script_ends_beside_another_job_it_is_capped_until_that_one_has_gone(first, tmp_path):
    process = first(gpu(0), gpu(1), counted=[gpu(1), gpu(0)])
    process.framework.count()
    # It has come since.
    with other_job({LEASE_DIR: str(tmp_path)}, {gpu(0).uuid: 20 << 30}, script="late.py"):
        process.framework.use(1)
        assert process.lines[1].startswith(
            "the script uses GPU 0 (number 1 of its list); not GPU 1, which is given back; GPU 0 is shared "
            "(claimed by late.py"
        )
        assert "and capped at half of what is free and not claimed" in process.lines[1]
        assert dict(process.allocator.assignment.caps) == {1: 2 << 30}
        assert [dict(holder.claims) for holder in process.holders if holder.is_mine] == [{gpu(0).uuid: 0}]
        process.framework.use(1)
        assert len(process.lines) == 2
    assert becomes_true(lambda: process.framework.use(1) and not process.allocator.assignment.caps, within_s=20)
    assert process.claims == {0: 24 * 1024}


def test_beside_its_own_children_a_process_is_not_capped(first, tmp_path):
    process = first(gpu(0), gpu(1), counted=[gpu(1), gpu(0)])
    process.framework.count()
    process.framework.use(0)
    (own,) = process.holders
    with other_job({LEASE_DIR: str(tmp_path)}, {gpu(0).uuid: 20 << 30}, group=own.group):
        process.framework.use(0, 1)
        assert process.allocator.assignment.caps == {}
        assert [dict(each.claims)[gpu(0).uuid] for each in process.holders if each.is_mine] == [24 << 30]


def test_gpus_that_were_asked_for_stay_claimed_until_they_are_used(first):
    process = first(gpu(0), gpu(1), gpu(2), counted=[gpu(2), gpu(1), gpu(0)], AUTOGPU_COUNT="2")
    process.framework.count()
    process.framework.use(0)
    assert process.claims == {1: 24 * 1024, 2: 24 * 1024}


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
    process = first(gpu(0), gpu(1), counted=[gpu(0), gpu(1)])
    process.cuda.initialise()
    process.framework.count()
    assert process.holders == ()
    assert "CUDA had counted the GPUs before autogpu could choose" in process.lines[0]
    process.framework.use(0)
    assert process.claims == {0: 24 * 1024}


def test_a_list_that_the_script_wrote_is_ordered_in_its_own_words(first):
    process = first(gpu(0), gpu(1), gpu(2), counted=[gpu(1), gpu(0)])
    process.environ[CUDA_VISIBLE_DEVICES] = "0, 1"
    process.framework.count()
    assert process.environ[CUDA_VISIBLE_DEVICES].replace(" ", "") == "1,0"
    assert process.claims == {1: 24 * 1024}


# Of several processes


def child_of(parent, **environ):
    names = (CUDA_VISIBLE_DEVICES, ORIGINAL_VISIBLE_DEVICES, WRITTEN_VISIBLE_DEVICES, LEASE)
    return {**{name: parent.environ[name] for name in names if name in parent.environ}, **environ}


def test_a_rank_that_was_told_no_more_than_its_number_keeps_its_parents_order(first):
    parent = first(gpu(0), gpu(1), gpu(2), counted=[gpu(2), gpu(1), gpu(0)])
    parent.framework.count()
    child = first(
        gpu(0), gpu(1), gpu(2), counted=[gpu(2), gpu(1), gpu(0)], **child_of(parent, LOCAL_RANK="1", WORLD_SIZE="2")
    )
    child.framework.count()
    assert listed(child) == listed(parent) == [2, 1, 0]
    assert len(child.holders) == 1, "it is not known yet which it will use"
    child.framework.use(1)
    claims = [sorted(holder.claims) for holder in child.holders]
    assert sorted(claims) == sorted([[gpu(2).uuid], [gpu(1).uuid]])


def test_ranks_are_listed_in_the_order_of_ranks(first):
    rank = {"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    process = first(BUSY, gpu(1), gpu(2), counted=[gpu(1), gpu(2), BUSY], **rank)
    process.framework.count()
    assert listed(process) == [1, 2, 0]
    assert process.allocator.assignment.ordinals == (1,)


# Of several frameworks


def test_a_second_framework_gets_what_the_first_one_has(started):
    process = started(gpu(0), gpu(1))
    second = FakeFramework(process.cuda, Hooks("2.0", ("take",), has_essential=True))
    second.NAME = "Otherflow"
    Allocator(process.allocation, second, process.cuda).imported()
    assert second.take().ordinals == (0,)
    assert process.framework.take().ordinals == (0,)
    assert (len(process.holders), len(process.lines)) == (1, 1)


def test_a_second_framework_whose_script_names_another_gpu_takes_it_and_the_lease_says_so(started):
    process = started(gpu(0), gpu(1))
    second = FakeFramework(process.cuda)
    Allocator(process.allocation, second, process.cuda).imported()
    process.framework.take()
    assert second.take(chosen=(1,)).ordinals is None
    assert sorted(process.claims) == [0, 1]


@pytest.mark.parametrize("first_to_ask", ["ours", "theirs"])
def test_beside_a_framework_that_takes_the_first_gpus_every_other_one_takes_them(first, first_to_ask):
    process = first(BUSY, gpu(1), gpu(2), counted=[gpu(2), gpu(1), BUSY])
    other = FakeFramework(process.cuda)
    Allocator(process.allocation, other, process.cuda).imported()
    if first_to_ask == "ours":
        process.framework.count()
    assert other.take().ordinals == (0,)
    process.framework.count()
    assert process.claims == {2: 24 * 1024}
    assert len(process.lines) == 1


def test_of_a_second_framework_that_can_not_be_hooked_into_nothing_is_said(started):
    process = started(gpu(0))
    Allocator(process.allocation, FakeFramework(process.cuda, Hooks("0", obstacle="too old")), process.cuda).imported()
    assert process.lines == []
    assert process.framework.take().ordinals == (0,)


def test_a_framework_that_goes_without_takes_nothing_from_one_that_wants_the_first(first):
    process = first(BUSY, gpu(1), gpu(2), counted=[gpu(2), gpu(1), BUSY])
    other = FakeFramework(process.cuda)
    Allocator(process.allocation, other, process.cuda).imported()
    assert other.take(chosen=()).ordinals is None
    assert process.framework.count() == 3
    assert process.allocator.assignment.ordinals == (0,)
    process.framework.use(0)
    assert process.claims == {2: 24 * 1024}
    assert process.lines[-1].startswith("GPU 2 ")


def test_what_one_framework_does_not_use_stays_the_others(first):
    process = first(gpu(0), gpu(1), counted=[gpu(1), gpu(0)])
    other = FakeFramework(process.cuda)
    theirs = Allocator(process.allocation, other, process.cuda)
    theirs.imported()
    process.framework.count()
    theirs.on_unused()
    assert process.claims == {1: 24 * 1024}
    process.allocator.on_unused()
    assert process.holders == ()


def test_a_framework_without_a_gpu_does_not_silence_the_next(started):
    process = started(gpu(0))
    other = FakeFramework(FakeCuda())
    Allocator(process.allocation, other, other._cuda).imported()
    assert other.take() is None
    process.framework.take()
    assert process.lines[-1].startswith("GPU 0 ")


def test_of_a_pool_only_what_is_claimed_is_shown_and_counted(first, tmp_path):
    with other_job({LEASE_DIR: str(tmp_path)}, {gpu(1).uuid: 24 << 30, gpu(3).uuid: 24 << 30}):
        devices = [gpu(index) for index in range(4)]
        policy = {"AUTOGPU_VISIBLE": "chosen", "AUTOGPU_COUNT": "2", "AUTOGPU_LIMIT": "2GiB"}
        process = first(*devices, counted=[gpu(2), gpu(0)], **policy)
        assert listed(process) == [2, 0]
        process.framework.count()
        assignment = process.allocator.assignment
    assert (assignment.ordinals, sorted(assignment.totals), sorted(assignment.caps)) == ((0, 1), [0, 1], [0, 1])


def test_frameworks_that_are_first_used_in_two_threads_have_one_claim(started):
    process = started(*[gpu(index) for index in range(4)])
    frameworks = [process.framework]
    for number in range(3):
        frameworks.append(FakeFramework(process.cuda))
        frameworks[-1].NAME = f"Flow {number}"
        Allocator(process.allocation, frameworks[-1], process.cuda).imported()
    threads = [threading.Thread(target=framework.take) for framework in frameworks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert (len(process.holders), len(process.claims)) == (1, 1)


def test_a_question_that_starts_cuda_is_not_asked_before_the_first_gpus_are_claimed(first, tmp_path):
    process = first(gpu(0), gpu(1), counted=[gpu(0), gpu(1)])
    other = Allocator(process.allocation, FakeFramework(process.cuda), process.cuda)
    other.imported()
    with other_job({LEASE_DIR: str(tmp_path)}, {gpu(1).uuid: 24 << 30}):
        other.prepare()
        process.cuda.initialise()
        assert listed(process) == [0, 1]
        process.framework.count()
        process.framework.use(0)
        assert [sorted(holder.claims) for holder in process.holders if holder.is_mine] == [[gpu(0).uuid]]


def test_a_framework_that_goes_without_leaves_the_next_one_its_choice(started):
    process = started(gpu(0), gpu(1))
    assert process.framework.take(chosen=()).ordinals is None
    assert (process.holders, process.lines) == ((), [])
    second = FakeFramework(process.cuda)
    second.NAME = "Otherflow"
    Allocator(process.allocation, second, process.cuda).imported()
    assert second.take().ordinals == (0,)
    assert process.claims == {1: 24 * 1024}
    assert len(process.lines) == 1


IS_MEMBER = """
import os
from autogpu.lease import ancestor_lease, find_folder, has_parents_list
print(ancestor_lease(os.environ, find_folder(os.environ)) is not None and has_parents_list(os.environ))
"""


@pytest.mark.parametrize("visible", ["pool", "chosen"])
def test_children_are_members_also_when_the_list_was_changed_after_the_claim(first, tmp_path, visible):
    process = first(BUSY, gpu(1), gpu(2), counted=[gpu(1), gpu(2), BUSY], AUTOGPU_VISIBLE=visible)
    with other_job({LEASE_DIR: str(tmp_path)}, {gpu(2).uuid: 24 << 30}):
        process.framework.count()
        command, environ = [sys.executable, "-c", IS_MEMBER], {**os.environ, **process.environ}
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=True)
        assert done.stdout == "True\n"


@contextmanager
def below_hold(tmp_path, *devices):
    """What a program finds that `autogpu run --hold` has started with these GPUs."""
    environ = {LEASE_DIR: str(tmp_path)}
    with other_job(environ, {device.uuid: 24 << 30 for device in devices}, script="run"):
        (holder,) = snapshot(find_folder(environ)).holders
        visible = ",".join(device.uuid for device in devices)
        marker = f"v1:{holder.name}:{holder.pid}:{holder.start_time or 0}:={visible}"
        yield {CUDA_VISIBLE_DEVICES: visible, LEASE: marker}


def test_what_a_script_below_a_hold_lists_after_its_first_claim_is_held_for_it_all_the_same(first, tmp_path):
    with below_hold(tmp_path, gpu(0), gpu(1)) as environ:
        process = first(gpu(0), gpu(1), gpu(2), counted=[gpu(1)], AUTOGPU_BUSY="error", **environ)
        process.allocator.prepare()
        assert sorted(process.allocation.lease.claims) == [gpu(0).uuid, gpu(1).uuid]
        process.environ[CUDA_VISIBLE_DEVICES] = gpu(1).uuid
        assert process.framework.count() == 1
        assert process.allocation.lease.claims == {gpu(1).uuid: 24 << 30}
    assert "shared with its parent process, run" in process.lines[0]


def test_children_of_one_that_gave_its_claim_back_are_of_the_job_that_started_it(first, tmp_path):
    with below_hold(tmp_path, gpu(0), gpu(1)) as environ:
        process = first(gpu(0), gpu(1), **environ)
        process.allocator.prepare()
        process.allocator.assign(DeviceRequest(2))
        assert process.environ[LEASE] != environ[LEASE]
        process.allocator.on_unused()
        assert (process.allocation.lease, process.environ[LEASE]) == (None, environ[LEASE])


def test_after_one_that_gave_its_claim_back_the_next_claims_what_cuda_counts_first(first, tmp_path):
    process = first(gpu(0), gpu(1), gpu(2), counted=[gpu(1), gpu(2), gpu(0)])
    late = FirstGpus(process.cuda)
    late.NAME = "Lateflow"
    allocator = Allocator(process.allocation, late, process.cuda)
    allocator.imported()
    allocator.prepare()
    allocator.assign(DeviceRequest(3))
    allocator.on_unused()
    assert process.holders == ()
    with other_job({LEASE_DIR: str(tmp_path)}, {gpu(2).uuid: 24 << 30}):
        process.framework.count()
        process.framework.use(0)
        assert listed(process)[0] == 1
        assert [sorted(holder.claims) for holder in process.holders if holder.is_mine] == [[gpu(1).uuid]]


def test_a_system_without_fork_imports_it_all_the_same():
    modules = "autogpu.activation, autogpu.allocator, autogpu.frameworks.torch.start, autogpu.frameworks.jax.start"
    code = f"import os; del os.register_at_fork; import {modules}"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
