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
CHOSEN = {"AUTOGPU_VISIBLE": "chosen"}


@pytest.fixture
def first(started):
    """Return a function that starts a process with a framework that takes the GPUs which CUDA counts first.

    ``counted`` has the indices of the GPUs in CUDA's order. Without it CUDA counts ``devices`` in reverse order.
    """

    def first(*devices, counted=None, **options):
        counted = [gpu(index) for index in counted] if counted is not None else devices[::-1]
        return started(*devices, kind=FirstGpusFramework, counted=counted, **options)

    return first


@pytest.fixture
def other(tmp_path):
    """Return a function that starts another job with claims ``held``, in GiB and keyed by GPU index."""
    return lambda held, **options: other_job(
        {LEASE_DIR: str(tmp_path)}, {gpu(index).uuid: gib << 30 for index, gib in held.items()}, **options
    )


def test_claimed_gpu_becomes_the_first_in_cudas_order(first, other):
    process = first(*THREE, counted=[1, 0, 2])
    assert process.listed == "2 1 0"
    with other({2: 24}):
        assert process.framework.count() == 3
        # The other GPUs follow, the idlest first, as they are now.
        assert (process.listed, process.claims) == ("1 0 2", {1: ALL})
    assert process.lines[0].startswith("GPU 1 (NVIDIA TITAN RTX, 24.0 of 24.0 GiB free): the idlest of 3")


@pytest.mark.parametrize(
    ("named", "options", "order"),
    [
        pytest.param(1, {}, [1, 2, 0], id="second"),
        pytest.param(2, {}, [1, 0, 2], id="third"),
        pytest.param(3, {}, [2, 1, 0], id="index-without-a-gpu"),
        pytest.param(1, {"AUTOGPU_COUNT": "2"}, [2, 1, 0], id="count-2"),
    ],
)
def test_claimed_gpu_has_the_index_that_the_script_names(named, options, order, first):
    process = first(*THREE, counted=order, **options)
    process.framework.count(named)
    assert process.listed == " ".join(map(str, order))
    assert (f", cuda:{named} in the script;" in process.lines[0]) == (order != [2, 1, 0])


@pytest.mark.parametrize(
    ("count", "used", "seen"),
    [
        pytest.param("1", [], {2: ALL}, id="uses-none-yet"),
        pytest.param("1", [0], {2: ALL}, id="uses-its-gpu"),
        pytest.param("1", [1], {1: ALL}, id="uses-another-gpu"),
        pytest.param("1", [1, 0, 2], {2: ALL, 1: 0, 0: 0}, id="uses-all-gpus"),
        pytest.param("2", [0], {2: ALL, 1: ALL}, id="uses-one-of-two"),
        pytest.param("2", [2], {1: ALL, 0: ALL}, id="uses-a-third-gpu"),
    ],
)
def test_others_see_the_gpus_in_use_though_the_lease_is_written_once(first, count, used, seen):
    process = first(gpu(0), gpu(1), gpu(2), AUTOGPU_COUNT=count)
    process.framework.count()
    written = process.holders
    process.framework.use(*used)
    assert (process.seen, process.holders, len(process.lines)) == (seen, written, 1)


@pytest.mark.parametrize("policy", [{"AUTOGPU_COUNT": "0"}, {"AUTOGPU_BUSY": "cpu"}], ids=["count-0", "busy-cpu"])
def test_process_that_must_run_on_cpu_sees_no_gpu(first, policy):
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
        pytest.param(2, [], 0, id="index-without-a-gpu"),
        pytest.param(1, [1], 1, id="gpu-with-a-context"),
    ],
)
def test_named_gpu_is_claimed_if_cuda_has_already_started(named, used, claimed, first):
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
def test_process_does_not_wait_if_cuda_has_already_started(first, other, busy):
    with other({0: 24}):
        process = first(*TWO, counted=[0, 1], AUTOGPU_BUSY=busy)
        process.cuda.initialise()
        process.framework.count(0)
    assert process.claims == {0: 0}
    assert "waiting" not in "".join(process.lines)


def test_gpu_list_of_the_script_is_reordered_only_for_cuda(first):
    process = first(gpu(0), gpu(1), gpu(2), counted=[1, 0])
    process.environ[CUDA_VISIBLE_DEVICES] = "0, 1"
    process.framework.count()
    assert (process.environ[CUDA_VISIBLE_DEVICES], process.listed, process.claims) == ("0, 1", "1 0", {1: ALL})


def test_visible_chosen_shows_only_the_claimed_gpus_of_the_pool(first, other):
    policy = {**CHOSEN, "AUTOGPU_COUNT": "2", "AUTOGPU_LIMIT": "2GiB"}
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
        pytest.param(2, [2, 1, 3, 0], "2 1 3 0", id="number-beyond-the-chosen-gpus"),
    ],
)
def test_visible_chosen_shows_as_many_gpus_as_the_number_needs(first, number, counted, listed):
    process = first(*map(gpu, range(4)), counted=counted, AUTOGPU_VISIBLE="chosen")
    process.framework.count(number)
    assert (process.listed, process.claims) == (listed, {3: ALL})


# Several processes


@pytest.mark.parametrize(
    ("named", "held", "listed", "mine"),
    [
        pytest.param(1, {}, "2 1 0", "1", id="index-in-the-parents-list"),
        pytest.param(2, {}, "2 1 0", "0", id="index-though-another-gpu-is-as-idle"),
        pytest.param(1, {1: 24}, "1 2 0", "2", id="another-gpu-if-that-one-is-claimed"),
        pytest.param(0, {}, "2 1 0", "2", id="number-0-is-the-idlest"),
    ],
)
def test_gpu_number_of_a_child_is_an_index_into_its_parents_list(first, other, named, held, listed, mine):
    parent = first(gpu(0), gpu(1), gpu(2))
    with other(held):
        child = first(gpu(0), gpu(1), gpu(2), **parent.environ)
        child.framework.count(named)
        assert (parent.listed, child.listed, child.held) == ("2 1 0", listed, mine)


def test_gpus_of_ranks_are_listed_in_the_order_of_the_ranks(first):
    process = first(*THREE, counted=[1, 2, 0], LOCAL_RANK="1", LOCAL_WORLD_SIZE="2")
    process.framework.count()
    assert (process.listed, process.framework.assignment.ordinals) == ("1 2 0", (1,))


@pytest.mark.parametrize("visible", ["pool", "chosen"])
def test_child_belongs_to_the_job_though_its_parents_list_has_changed(first, other, visible):
    process = first(*THREE, counted=[1, 2, 0], AUTOGPU_VISIBLE=visible)
    with other({2: 24}):
        process.framework.count()
        environ = original_environ(process.environ)
        assert has_parents_list(environ)
        holders = snapshot(find_folder(environ)).holders
        assert in_a_fork(lambda: ancestor_lease(environ, holders, with_ancestors()) is not None)


@pytest.fixture
def held(tmp_path, other):
    """The environment of a program that ``autogpu run --hold`` has started with GPUs 0 and 1."""
    with other({0: 24, 1: 24}, script="run"):
        (holder,) = snapshot(find_folder({LEASE_DIR: str(tmp_path)})).holders
        visible = ",".join(device.uuid for device in TWO)
        marker = f"v1:{holder.name}:{holder.pid}:{holder.start_time or 0}:={visible}"
        yield {CUDA_VISIBLE_DEVICES: visible, LEASE: marker}


def test_script_below_a_hold_may_change_its_list_after_its_first_claim(first, held):
    process = first(gpu(0), gpu(1), gpu(2), counted=[1], AUTOGPU_BUSY="error", **held)
    process.framework.prepare()
    assert process.held == "0 1"
    process.environ[CUDA_VISIBLE_DEVICES] = gpu(1).uuid
    assert process.framework.count() == 1
    assert process.claims == {1: ALL}
    assert "shared with the parent process, run" in process.lines[0]


def test_released_claim_restores_the_lease_marker_of_the_parent_job(first, held):
    process = first(*TWO, **held)
    process.framework.prepare()
    process.framework.assign(DeviceRequest(2))
    assert process.environ[LEASE] != held[LEASE]
    process.framework.on_unused()
    assert (process.allocation.lease, process.environ[LEASE]) == (None, held[LEASE])


# Several frameworks


@pytest.mark.parametrize("has_gone_without", [False, True], ids=["first-has-a-gpu", "first-chose-no-gpu"])
def test_second_framework_shares_the_gpu_of_the_process(started, has_gone_without):
    process = started(*TWO)
    if has_gone_without:
        assert process.framework.take(chosen=()).ordinals is None
        assert (process.holders, process.lines) == ((), [])
    second = process.imports_another(hooks=Hooks("2.0", ("take",)))
    assert second.take().ordinals == (0,)
    assert has_gone_without or process.framework.take().ordinals == (0,)
    assert (process.claims, len(process.lines)) == ({1: ALL}, 1)


def test_second_framework_may_use_another_gpu_and_others_see_it(started):
    process = started(*TWO)
    second = process.imports_another()
    process.framework.take()
    assert second.take(chosen=(1,)).ordinals is None
    assert process.seen == {1: ALL, 0: 0}


def test_nothing_is_printed_if_a_second_framework_can_not_be_hooked(started):
    process = started(gpu(0))
    process.imports_another(hooks=Hooks("0", obstacle="too old"))
    assert process.lines == []
    assert process.framework.take().ordinals == (0,)


def test_listing_claims_nothing_without_a_framework_in_cudas_order(started):
    process = started(*TWO)
    process.imports_another().on_listing()
    assert process.holders == ()


def test_framework_without_a_gpu_does_not_suppress_the_line_of_the_next(started):
    process = started(gpu(0))
    assert process.imports_another(cuda=FakeCuda()).take() is None
    process.framework.take()
    assert process.lines[-1].startswith("GPU 0 ")


@pytest.mark.parametrize("first_to_ask", ["ours", "theirs"])
def test_framework_takes_the_first_gpus_beside_one_in_cudas_order(first, first_to_ask):
    process = first(*THREE)
    other = process.imports_another()
    if first_to_ask == "ours":
        process.framework.count()
    assert other.take().ordinals == (0,)
    process.framework.count()
    assert (process.claims, len(process.lines)) == ({2: ALL}, 1)


def test_framework_without_a_gpu_leaves_the_first_gpus_to_another(first):
    process = first(*THREE)
    assert process.imports_another().take(chosen=()).ordinals is None
    assert process.framework.count() == 3
    assert process.framework.assignment.ordinals == (0,)
    process.framework.use(0)
    assert process.claims == {2: ALL}
    assert process.lines[-1].startswith("GPU 2 ")


def test_claim_is_kept_until_the_last_framework_gives_it_back(first):
    process = first(*TWO)
    other = process.imports_another()
    process.framework.count()
    other.on_unused()
    assert process.claims == {1: ALL}
    process.framework.on_unused()
    assert process.holders == ()


def test_framework_chooses_again_after_another_gave_the_claim_back(first, other):
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
def test_first_gpus_are_claimed_before_a_query_starts_cuda(first, other, asks):
    process = first(*TWO, counted=[0, 1])
    asker = process.imports_another()
    with other({1: 24}):
        asks(asker)
        process.cuda.initialise()
        assert process.listed == "0 1"
        process.framework.count()
        process.framework.use(0)
        assert process.claims == {0: ALL}


def test_frameworks_first_used_in_several_threads_have_one_claim(started):
    process = started(*map(gpu, range(4)))
    frameworks = [process.framework, *(process.imports_another(f"Flow {number}") for number in range(3))]
    threads = [threading.Thread(target=framework.take) for framework in frameworks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert (len(process.holders), len(process.claims)) == (1, 1)


class LetsAnotherIn:
    """A lock that ``thread`` gets as soon as its first holder releases it.

    The first acquisition starts the thread. A release in any other thread waits until ``thread`` has ended.
    """

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


def test_thread_claims_a_gpu_while_the_claim_is_left_to_workers(first):
    process = first(*TWO)
    process.framework.count()
    thread = threading.Thread(target=process.framework.assign, args=[DeviceRequest(2)])
    process.allocation.lock = LetsAnotherIn(thread)
    assert process.framework.let_workers_choose(2)
    assert process.claims == {1: ALL}


@pytest.mark.parametrize(
    ("policy", "script", "uses", "expected"),
    [
        pytest.param({}, {}, [], True, id="claimed-and-not-used"),
        pytest.param({}, {}, [0], False, id="claimed-and-used"),
        pytest.param({}, {CUDA_VISIBLE_DEVICES: "1,0"}, [], False, id="list-of-the-script"),
        pytest.param(CHOSEN, {}, [], False, id="process-shows-only-its-claimed-gpu"),
    ],
)
def test_workers_choose_gpus_unless_the_script_has_chosen(first, policy, script, uses, expected):
    process = first(*TWO, **policy)
    process.environ.update(script)
    process.framework.count()
    process.framework.use(*uses)
    assert bool(process.framework.let_workers_choose(2)) is expected


def test_autogpu_can_be_imported_on_a_system_without_fork():
    modules = "autogpu.activation, autogpu.allocation, autogpu.frameworks.torch, autogpu.frameworks.jax"
    code = f"import os; del os.register_at_fork; import {modules}"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
