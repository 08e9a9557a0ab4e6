"""Frameworks that take the GPUs which CUDA counts first, and several frameworks in one process."""

import subprocess
import sys
import threading

import pytest

from autogpu.frameworks.base import HookedFramework
from autogpu.frameworks.model import DeviceRequest, Hooks
from autogpu.lease import ancestor_lease, find_folder, has_parents_list, snapshot
from autogpu.process import with_ancestors
from autogpu.selection.visible_devices import original_environ
from autogpu.variables import CUDA_VISIBLE_DEVICES, LEASE, LEASE_DIR
from tests.support.fakes import FakeCuda, FirstGpusFramework
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


@pytest.mark.parametrize(
    ("count", "used", "seen"),
    [
        pytest.param("1", [], {2: ALL}, id="none-yet"),
        pytest.param("1", [0], {2: ALL}, id="the-one-that-it-was-given"),
        pytest.param("1", [1], {1: ALL}, id="another"),
        pytest.param("1", [1, 0, 2], {2: ALL, 1: 0, 0: 0}, id="all"),
        pytest.param("2", [0], {2: ALL, 1: ALL}, id="one-of-two"),
        pytest.param("2", [2], {1: ALL, 0: ALL}, id="another-than-the-two"),
    ],
)
def test_others_see_what_the_script_uses_though_its_lease_is_written_once(first, count, used, seen):
    process = first(gpu(0), gpu(1), gpu(2), AUTOGPU_COUNT=count)
    process.framework.count()
    written = process.holders
    process.framework.use(*used)
    assert (process.seen, process.holders, len(process.lines)) == (seen, written, 1)


@pytest.mark.parametrize("policy", [{"AUTOGPU_COUNT": "0"}, {"AUTOGPU_BUSY": "cpu"}], ids=["none-wanted", "none-free"])
def test_a_process_that_is_to_have_no_gpu_is_shown_none(first, policy):
    process = first(BUSY, **policy)
    process.framework.prepare()
    process.allocation.hide_gpus_if_cpu_only()
    assert process.environ[CUDA_VISIBLE_DEVICES] == "-1"
    process.cuda = process.framework._cuda = process.allocation.cuda = FakeCuda()
    process.framework.count()
    assert process.lines[0].startswith("no GPU for this process, Firstflow starts on CPU: ")


@pytest.mark.parametrize(
    ("named", "used", "claimed"),
    [
        pytest.param(0, [], 0, id="first"),
        pytest.param(1, [], 1, id="second"),
        pytest.param(2, [], 0, id="no-such-one"),
        pytest.param(1, [1], 1, id="one-that-has-a-context"),
    ],
)
def test_of_an_order_that_cuda_has_already_what_the_script_names_is_claimed(named, used, claimed, first):
    process = first(*TWO, counted=[0, 1])
    process.cuda.initialise()
    process.framework.use(*used)
    process.framework.count(named)
    assert process.claims == {claimed: ALL}
    assert "CUDA was initialised before autogpu could choose" in process.lines[0]


def test_claim_in_cudas_order_is_kept_beside_another_framework(first):
    process = first(*TWO, counted=[0, 1])
    process.cuda.initialise()
    process.framework.use(1)
    process.framework.count(1)
    other = process.imports_another()
    assert other.take(chosen=(0,)).ordinals is None
    assert process.claims == {1: ALL}


@pytest.mark.parametrize("busy", ["share", "wait"])
def test_where_cuda_has_an_order_already_nobody_waits(first, other, busy):
    with other({0: 24}):
        process = first(*TWO, counted=[0, 1], AUTOGPU_BUSY=busy)
        process.cuda.initialise()
        process.framework.count(0)
    assert process.claims == {0: 0}
    assert "waiting" not in "".join(process.lines)


def test_a_list_that_the_script_wrote_is_ordered_for_cuda_only(first):
    process = first(gpu(0), gpu(1), gpu(2), counted=[1, 0])
    process.environ[CUDA_VISIBLE_DEVICES] = "0, 1"
    process.framework.count()
    assert (process.environ[CUDA_VISIBLE_DEVICES], process.listed, process.claims) == ("0, 1", "1 0", {1: ALL})


def test_of_a_pool_only_what_is_claimed_is_shown_and_counted(first, other):
    policy = {"AUTOGPU_VISIBLE": "chosen", "AUTOGPU_COUNT": "2", "AUTOGPU_LIMIT": "2GiB"}
    with other({1: 24, 3: 24}):
        process = first(*map(gpu, range(4)), counted=[2, 0], **policy)
        process.framework.count()
    assert process.listed == "2 0"
    assignment = process.framework.assignment
    assert (assignment.ordinals, sorted(assignment.totals), sorted(assignment.caps)) == ((0, 1), [0, 1], [0, 1])


@pytest.mark.parametrize(
    ("number", "counted", "listed"),
    [
        pytest.param(0, [3], "3", id="number-0"),
        pytest.param(2, [2, 1, 3, 0], "2 1 3 0", id="a-number-without-a-gpu-among-the-chosen"),
    ],
)
def test_visible_chosen_shows_as_many_gpus_as_the_number_needs(first, number, counted, listed):
    process = first(*map(gpu, range(4)), counted=counted, AUTOGPU_VISIBLE="chosen")
    process.framework.count(number)
    assert (process.listed, process.claims) == (listed, {3: ALL})


# Of several processes


@pytest.mark.parametrize(
    ("named", "held", "listed", "mine"),
    [
        pytest.param(1, {}, "2 1 0", "1", id="its-place-in-the-parents-order"),
        pytest.param(2, {}, "2 1 0", "0", id="also-where-another-is-as-idle"),
        pytest.param(1, {1: 24}, "1 2 0", "2", id="another-one-where-that-is-taken"),
        pytest.param(0, {}, "2 1 0", "2", id="the-idlest"),
    ],
)
def test_a_child_that_names_a_number_counts_as_its_parent_does(first, other, named, held, listed, mine):
    parent = first(gpu(0), gpu(1), gpu(2))
    with other(held):
        child = first(gpu(0), gpu(1), gpu(2), **parent.environ)
        child.framework.count(named)
        assert (parent.listed, child.listed, child.held) == ("2 1 0", listed, mine)


def test_ranks_are_listed_in_the_order_of_ranks(first):
    process = first(*THREE, counted=[1, 2, 0], LOCAL_RANK="1", LOCAL_WORLD_SIZE="2")
    process.framework.count()
    assert (process.listed, process.framework.assignment.ordinals) == ("1 2 0", (1,))


@pytest.mark.parametrize("visible", ["pool", "chosen"])
def test_children_are_members_also_when_the_list_was_changed_after_the_claim(first, other, visible):
    process = first(*THREE, counted=[1, 2, 0], AUTOGPU_VISIBLE=visible)
    with other({2: 24}):
        process.framework.count()
        environ = original_environ(process.environ)
        assert has_parents_list(environ)
        holders = snapshot(find_folder(environ)).holders
        assert in_a_fork(lambda: ancestor_lease(environ, holders, with_ancestors()) is not None)


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
    process.framework.prepare()
    assert process.held == "0 1"
    process.environ[CUDA_VISIBLE_DEVICES] = gpu(1).uuid
    assert process.framework.count() == 1
    assert process.claims == {1: ALL}
    assert "shared with its parent process, run" in process.lines[0]


def test_children_of_one_that_gave_its_claim_back_are_of_the_job_that_started_it(first, held):
    process = first(*TWO, **held)
    process.framework.prepare()
    process.framework.assign(DeviceRequest(2))
    assert process.environ[LEASE] != held[LEASE]
    process.framework.on_unused()
    assert (process.allocation.lease, process.environ[LEASE]) == (None, held[LEASE])


# Of several frameworks


@pytest.mark.parametrize("has_gone_without", [False, True], ids=["which-has-some", "which-goes-without"])
def test_a_second_framework_gets_what_the_first_one_has(started, has_gone_without):
    process = started(*TWO)
    if has_gone_without:
        assert process.framework.take(chosen=()).ordinals is None
        assert (process.holders, process.lines) == ((), [])
    second = process.imports_another(hooks=Hooks("2.0", ("take",)))
    assert second.take().ordinals == (0,)
    assert has_gone_without or process.framework.take().ordinals == (0,)
    assert (process.claims, len(process.lines)) == ({1: ALL}, 1)


def test_a_second_framework_whose_script_names_another_gpu_takes_it_and_others_see_that(started):
    process = started(*TWO)
    second = process.imports_another()
    process.framework.take()
    assert second.take(chosen=(1,)).ordinals is None
    assert process.seen == {1: ALL, 0: 0}


def test_of_a_second_framework_that_can_not_be_hooked_into_nothing_is_said(started):
    process = started(gpu(0))
    process.imports_another(hooks=Hooks("0", obstacle="too old"))
    assert process.lines == []
    assert process.framework.take().ordinals == (0,)


def test_a_listing_claims_nothing_where_no_framework_takes_what_cuda_counts_first(started):
    process = started(*TWO)
    process.imports_another().on_listing()
    assert process.holders == ()


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
    assert process.framework.assignment.ordinals == (0,)
    process.framework.use(0)
    assert process.claims == {2: ALL}
    assert process.lines[-1].startswith("GPU 2 ")


def test_what_one_framework_does_not_use_stays_the_others(first):
    process = first(*TWO)
    other = process.imports_another()
    process.framework.count()
    other.on_unused()
    assert process.claims == {1: ALL}
    process.framework.on_unused()
    assert process.holders == ()


def test_after_one_that_gave_its_claim_back_the_next_claims_what_cuda_counts_first(first, other):
    process = first(gpu(0), gpu(1), gpu(2), counted=[1, 2, 0])
    late = process.imports_another("Lateflow", FirstGpusFramework)
    late.prepare()
    late.assign(DeviceRequest(3))
    late.on_unused()
    assert process.holders == ()
    with other({2: 24}):
        process.framework.count()
        assert (process.listed[0], process.claims) == ("1", {1: ALL})


@pytest.mark.parametrize("asks", [HookedFramework.prepare, HookedFramework.on_listing])
def test_a_question_that_starts_cuda_is_not_asked_before_the_first_gpus_are_claimed(first, other, asks):
    process = first(*TWO, counted=[0, 1])
    asker = process.imports_another()
    with other({1: 24}):
        asks(asker)
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


class LetsAnotherIn:
    """A lock that is free only for another thread at first, which waits for it since it was taken."""

    def __init__(self, thread):
        self._lock, self._thread, self._depth = threading.RLock(), thread, 0

    def __enter__(self):
        self._lock.acquire()
        self._depth += 1
        if self._thread.ident is None:
            self._thread.start()

    def __exit__(self, *error):
        self._depth -= 1
        is_free = not self._depth
        self._lock.release()
        if is_free and threading.current_thread() is not self._thread:
            self._thread.join(60)


def test_a_thread_that_starts_cuda_while_the_claim_is_left_to_workers_has_one_of_its_own(first):
    process = first(*TWO)
    process.framework.count()
    thread = threading.Thread(target=process.framework.assign, args=[DeviceRequest(2)])
    process.allocation.lock = LetsAnotherIn(thread)
    assert process.framework.let_workers_choose(2)
    assert process.claims == {1: ALL}


def test_a_system_without_fork_imports_it_all_the_same():
    modules = "autogpu.activation, autogpu.allocation, autogpu.frameworks.torch, autogpu.frameworks.jax"
    code = f"import os; del os.register_at_fork; import {modules}"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
