"""A process on its way to its GPUs, state by state: the driver and the framework are fakes, the leases are real."""

from __future__ import annotations

import functools
import os
import signal
import sys
import threading
import time

import pytest

from autogpu import activation, policy
from autogpu.allocation import Allocation, State
from autogpu.allocator import Allocator
from autogpu.devices.model import UnreadableDevice
from autogpu.errors import AutoGpuError, NoEligibleDevice
from autogpu.frameworks.base import Hooks
from autogpu.reporting.text import GIB, MIB
from autogpu.selection.grants import NO_ENGINE
from autogpu.variables import CUDA_VISIBLE_DEVICES, LEASE, LEASE_DIR
from tests.support.fakes import FakeCuda, FakeDriver, FakeReading
from tests.support.holders import other_job
from tests.support.processes import Process
from tests.support.values import gpu

BUSY = gpu(0, pids=[7], used_gib=9, busy=90)


# Import


def test_an_import_orders_the_pool_and_claims_nothing(started):
    process = started(BUSY, gpu(1), gpu(2))
    assert process.allocation.state is State.IMPORTED
    assert process.environ[CUDA_VISIBLE_DEVICES] == ",".join(gpu(index).uuid for index in (2, 1, 0))
    assert (process.allocator.assignment, process.allocation.lease, process.holders) == (None, None, ())
    assert (process.driver.taken, process.lines) == (1, [])


def test_what_is_hidden_from_every_library_is_claimed_first(started, tmp_path):
    with other_job({LEASE_DIR: str(tmp_path)}, {gpu(1).uuid: 24 * GIB}):
        process = started(gpu(0), gpu(1), cuda=FakeCuda([gpu(0)]), AUTOGPU_VISIBLE="chosen")
        (mine,) = [holder for holder in process.holders if holder.is_mine]
    assert (process.environ[CUDA_VISIBLE_DEVICES], list(mine.claims)) == (gpu(0).uuid, [gpu(0).uuid])
    assert process.framework.take().ordinals == (0,)
    assert process.framework.take(chosen=(0,)).ordinals == (0,)
    assert [holder.name for holder in process.holders] == [mine.name]
    assert process.lines[0].startswith("GPU 0 (NVIDIA TITAN RTX, 24.0 of 24.0 GiB free): ")


def test_a_list_that_the_script_writes_after_an_early_claim_is_followed(started):
    process = started(gpu(0), gpu(1), cuda=FakeCuda([gpu(0)]), AUTOGPU_VISIBLE="chosen")
    assert process.environ[CUDA_VISIBLE_DEVICES] == gpu(1).uuid
    process.environ[CUDA_VISIBLE_DEVICES] = "0"
    process.framework.take()
    assert process.claims == {0: 24576}


def test_of_a_list_that_the_script_writes_only_what_is_claimed_is_shown(started, tmp_path):
    process = started(gpu(0), gpu(1), gpu(2), cuda=FakeCuda([gpu(0)]), AUTOGPU_VISIBLE="chosen")
    process.environ[CUDA_VISIBLE_DEVICES] = "0,1"
    # Claimed since this process last read the driver: a choice without the leases would take it.
    with other_job({LEASE_DIR: str(tmp_path)}, {gpu(1).uuid: 24 * GIB}):
        process.allocation.prepare()
        (mine,) = [holder for holder in process.holders if holder.is_mine]
        assert (process.environ[CUDA_VISIBLE_DEVICES], list(mine.claims)) == (gpu(0).uuid, [gpu(0).uuid])


def test_where_an_early_claim_would_find_none_nothing_is_hidden(started):
    process = started(BUSY, cuda=FakeCuda([BUSY]), AUTOGPU_VISIBLE="chosen", AUTOGPU_BUSY="cpu")
    assert (process.environ[CUDA_VISIBLE_DEVICES], process.holders) == (BUSY.uuid, ())


def test_a_framework_that_can_not_be_hooked_into_is_left_alone(started):
    process = started(gpu(0), hooks=Hooks("1.0", obstacle="it is built for other GPUs"))
    assert process.allocation.state is State.NOT_APPLIED
    assert CUDA_VISIBLE_DEVICES not in process.environ
    assert process.reading.is_closed
    assert process.lines == ["policy not applied: it is built for other GPUs; Fakeflow continues with its defaults"]


def test_without_the_essential_hook_the_environment_alone_has_to_do(started):
    hooks = Hooks("9.0", missing={"take": "autogpu chooses at the import, and claims nothing"})
    process = started(BUSY, gpu(1), hooks=hooks, AUTOGPU_LIMIT="2GiB")
    assert process.environ[CUDA_VISIBLE_DEVICES] == gpu(1).uuid
    assert process.environ["FAKEFLOW_GROWTH"] == "1"
    assert process.lines == [
        "this Fakeflow (9.0) lacks what autogpu hooks into: take (autogpu chooses at the import, and claims nothing); "
        "not in force: memory.limit (AUTOGPU_LIMIT)"
    ]


def test_another_missing_hook_is_named_and_the_rest_is_in_force(started):
    process = started(BUSY, gpu(1), hooks=Hooks("9.0", ("take",), {"list": "lists all"}, has_essential=True))
    assert process.lines == ["this Fakeflow (9.0) lacks what autogpu hooks into: list (lists all)"]
    assert process.framework.take().ordinals == (0,)


# Ask and be assigned


def test_the_first_context_gets_the_idlest_gpu_and_its_lease(started):
    process = started(BUSY, gpu(1), gpu(2))
    assignment = process.framework.take()
    assert (assignment.ordinals, assignment.growth, dict(assignment.caps)) == ((0,), True, {})
    assert process.allocation.state is State.IN_USE
    assert process.claims == {2: 24 * 1024}
    assert process.lines == [
        "GPU 2 (NVIDIA TITAN RTX, 24.0 of 24.0 GiB free): the idlest of 3; memory allocated as needed; "
        "policy: defaults; for more GPUs: AUTOGPU_COUNT=2"
    ]


def test_the_readings_of_the_context_decide_and_not_those_of_the_import(started):
    process = started(gpu(0), gpu(1))
    process.driver.change(1, utilization_percent=99)
    # The first context takes the reading of the import if that has not been looked at.
    assert process.framework.take().ordinals == (1,)


def test_a_second_context_has_the_same_assignment_and_no_second_lease(started):
    process = started(gpu(0), gpu(1))
    assert process.framework.take() is process.framework.take()
    assert (len(process.holders), len(process.lines)) == (1, 1)


def test_the_lease_follows_the_contexts(started):
    process = started(gpu(0), gpu(1))
    process.framework.take()
    process.cuda.make_context(1)
    process.allocator.on_context()
    assert process.claims == {1: 24 * 1024, 0: 0}


def test_two_gpus_with_a_limit(started):
    process = started(BUSY, gpu(1), gpu(2), AUTOGPU_COUNT="2", AUTOGPU_LIMIT="2GiB", AUTOGPU_GROWTH="0")
    assignment = process.framework.take()
    assert (assignment.ordinals, assignment.growth) == ((0, 1), None)
    assert set(assignment.caps.values()) == {2 * GIB}
    assert process.claims == {2: 2048 + 300, 1: 2048 + 300}


def test_a_limit_on_the_process_is_computed_from_what_its_context_takes(started):
    contexts = {"context_bytes": 700 * MIB}
    process = started(gpu(0), contexts=contexts, AUTOGPU_LIMIT="4GiB", AUTOGPU_LIMIT_INCLUDES="process")
    assert dict(process.framework.take().caps) == {0: (4096 - 700 - 256) * MIB}
    assert process.claims == {0: 4096}


def test_a_context_above_what_is_reserved_for_it_is_said(started):
    larger = {"measured_bytes": 200 * MIB, "context_bytes": 600 * MIB}
    process = started(gpu(0), contexts=larger, AUTOGPU_LIMIT="4GiB", AUTOGPU_LIMIT_INCLUDES="process")
    process.framework.take()
    assert process.lines[1] == (
        "  GPU 0: NVML shows 600 MiB of this process before Fakeflow allocates anything; 512 MiB of its limit are "
        "reserved for that and for libraries: it may exceed the limit"
    )


def test_explain_adds_each_gpu_and_the_context(started):
    process = started(BUSY, gpu(1), AUTOGPU_LEVEL="explain")
    process.framework.take()
    assert process.lines[1:] == [
        "  GPU 1: taken: free, 0 % busy, 24.0 of 24.0 GiB free",
        "  GPU 0: place 2: busy, pid 7 on it without a claim, 90 % busy, 15.0 of 24.0 GiB free",
        "  GPU 1: NVML shows 300 MiB of this process before Fakeflow allocates anything",
    ]


def test_quiet_says_nothing(started):
    process = started(gpu(0), AUTOGPU_LEVEL="quiet")
    process.framework.take()
    assert process.lines == []


def test_no_gpu_is_wanted(started):
    process = started(gpu(0), AUTOGPU_COUNT="0")
    assert process.framework.take().ordinals == ()
    assert process.holders == ()
    assert process.lines == [
        "no GPU for this process, Fakeflow starts on CPU: select.count is 0; policy: AUTOGPU_COUNT"
    ]


def test_a_script_that_names_gpus_after_all_has_the_last_word(started):
    process = started(gpu(0), gpu(1), AUTOGPU_COUNT="0")
    process.framework.take()
    assert process.framework.take(chosen=(1,)).ordinals is None
    assert process.claims == {0: 24 * 1024}


def test_what_the_script_chose_is_leased_as_well(started):
    process = started(gpu(0), gpu(1), AUTOGPU_COUNT="0")
    assert process.framework.take(chosen=(1,)).ordinals is None
    assert process.claims == {0: 24 * 1024}
    assert "chosen by the script" in process.lines[0]


def test_a_script_that_hides_every_gpu_gives_its_claim_back(started):
    process = started(gpu(0))
    assert process.framework.take(chosen=()).ordinals is None
    assert (process.holders, process.lines) == ((), [])


def test_a_framework_that_sees_no_gpu_is_told_nothing_on_a_machine_without_one(started):
    process = started(driver=FakeDriver.failing("NVML reports: no library", "no-driver"), cuda=FakeCuda())
    assert process.framework.take() is None
    assert process.lines == []


def test_a_list_that_the_script_wrote_too_late_is_named(started):
    process = started(gpu(0), gpu(1))
    process.cuda.initialise()
    process.environ[CUDA_VISIBLE_DEVICES] = "1"
    process.framework.take()
    assert process.lines[1] == (
        "CUDA_VISIBLE_DEVICES=1 was set after CUDA had read it and has no effect, as without autogpu; "
        "set it before Fakeflow lists GPUs"
    )


# Refuse, wait, share


def claims_on(*devices):
    return {device.uuid: device.memory_total_bytes for device in devices}


def test_a_busy_machine_refuses_where_the_policy_asks_for_an_error(started):
    process = started(gpu(0), AUTOGPU_BUSY="error")
    with other_job(process.environ, claims_on(gpu(0))):
        with pytest.raises(NoEligibleDevice, match=r"claimed by other\.py"):
            process.framework.take()
        assert process.allocation.state is State.IMPORTED
    assert process.framework.take().ordinals == (0,), "the script may try again"


def test_a_job_waits_until_the_gpu_comes_free(started):
    process = started(gpu(0), AUTOGPU_BUSY="wait", AUTOGPU_WAIT="60s")
    with other_job(process.environ, claims_on(gpu(0))) as other:
        process.on_line = lambda line: other.end()
        assert process.framework.take().ordinals == (0,)
    assert process.lines[0].startswith("waiting for a GPU, place 1 in the queue, 0 s of 60 s: no GPU is free (GPU 0: ")
    assert process.claims == {0: 24 * 1024}


def test_a_wait_that_was_too_long_ends_the_script_with_status_75(started, capsys):
    process = started(gpu(0), AUTOGPU_BUSY="wait", AUTOGPU_WAIT="0")
    with other_job(process.environ, claims_on(gpu(0))), pytest.raises(SystemExit) as ended:
        process.framework.take()
    assert ended.value.code == 75
    assert "no GPU came free in 0 s" in capsys.readouterr().err


def test_a_best_effort_job_is_capped_at_half_of_what_is_free(started):
    process = started(gpu(0, used_gib=4))
    with other_job(process.environ, claims_on(gpu(0))):
        assert dict(process.framework.take().caps) == {0: 10 * GIB}
        mine = [holder for holder in process.holders if holder.is_mine]
        assert [dict(holder.claims) for holder in mine] == [{gpu(0).uuid: 0}]


def test_a_child_is_a_member_of_its_parents_job(started):
    parent = started(gpu(0), gpu(1))
    parent.framework.take()
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            environ = {name: parent.environ[name] for name in (LEASE, LEASE_DIR, CUDA_VISIBLE_DEVICES)}
            process = started(gpu(0), gpu(1), **environ)
            assignment = process.framework.take()
            os.write(writer, f"{assignment.ordinals} {process.lines[0]}".encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as stream:
        told = stream.read()
    os.waitpid(child, 0)
    assert told.startswith("(0,) GPU 1")
    assert "shared with its parent process" in told


def test_ranks_other_than_the_first_are_silent(started):
    rank = {"OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}
    process = started(gpu(0), gpu(1), cuda=FakeCuda([gpu(0), gpu(1)]), **rank)
    assert process.framework.take().ordinals == (1,)
    assert process.lines == []


# Fork


def in_a_fork(work):
    """What ``work`` returns in a forked child."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.write(writer, repr(work()).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as stream:
        told = stream.read()
    os.waitpid(child, 0)
    return told


def test_a_fork_after_the_context_has_its_parents_gpus_and_cannot_give_them_back(started):
    process = started(gpu(0), gpu(1))
    process.framework.take()

    def work():
        process.allocation.lease.release()
        return process.framework.take().ordinals, len(process.holders)

    assert in_a_fork(work) == "((0,), 1)"
    assert len(process.holders) == 1


def test_a_fork_before_the_context_chooses_for_itself(started):
    process = started(gpu(0), gpu(1))
    with other_job(process.environ, claims_on(gpu(1))):
        assert in_a_fork(lambda: process.framework.take().ordinals) == "(1,)"
    assert process.framework.take().ordinals == (0,)


# What fails


def test_a_reading_that_does_not_come_leaves_the_choice_to_the_framework(started):
    driver = FakeDriver(gpu(0), gpu(1))
    devices, driver.now = driver.now, None
    process = started(driver=driver, cuda=FakeCuda(devices.devices))
    assert CUDA_VISIBLE_DEVICES not in process.environ
    assert process.framework.take().ordinals is None
    assert process.lines == ["2 GPUs taken as without autogpu: NVML timed out; memory allocated as needed"]


def test_a_reading_that_missed_its_deadline_has_another_one_in_its_place(started):
    driver = FakeDriver(gpu(0, pids=[7], used_gib=9, busy=90), gpu(1))
    shown, driver.now = driver.now, None
    process = started(driver=driver, cuda=FakeCuda([gpu(0), gpu(1)]))
    driver.now = shown
    assert process.framework.take().ordinals == (1,)
    assert process.allocation.lease is not None


def test_gpus_that_nvml_can_not_read_are_left_to_the_framework_and_claimed_when_it_has_them(started):
    driver = FakeDriver(unreadable=(UnreadableDevice(0, "GPU is lost"), UnreadableDevice(1, "no answer")))
    process = started(driver=driver, cuda=FakeCuda([gpu(0)]))
    assert process.framework.take().ordinals is None
    why = "NVML can't read any of the GPUs (GPU 0: GPU is lost; GPU 1: no answer)"
    assert process.lines == [f"1 GPU taken as without autogpu: {why}; memory allocated as needed"]
    (holder,) = process.holders
    assert list(holder.claims) == [gpu(0).uuid]


@pytest.mark.parametrize("cause", ["driver", "pynvml"])
def test_a_driver_that_can_not_be_read_leaves_the_choice_to_the_framework(started, cause):
    driver = FakeDriver.failing("it is broken", cause)
    process = started(driver=driver, cuda=FakeCuda([gpu(0)]))
    assert process.framework.take().ordinals is None
    assert process.lines == ["1 GPU taken as without autogpu: it is broken; memory allocated as needed"]


def test_a_reader_that_raises_is_one_line_and_the_framework_goes_on(started, capsys):
    process = started(gpu(0))

    # As if the error were autogpu's own: no line of Python of the test's is in its way.
    process.driver.start_in_process = "a reader of the test".index
    assert process.framework.take() is None
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "internal error (TypeError at readings.py:" in said
    assert "; the framework continues with its defaults" in said


class Preempted(Exception):
    """As a script raises it where its scheduler wants the machine back."""


def preempted(*_):
    raise Preempted


class Handler:
    def __call__(self, *_):
        raise Preempted

    def method(self, *_):
        raise Preempted


@pytest.mark.parametrize(
    "handler",
    [preempted, Handler(), Handler().method, functools.partial(preempted, 1)],
    ids=["function", "object", "method", "partial"],
)
def test_what_a_handler_of_a_signal_raises_is_the_scripts(started, handler):
    process = started(gpu(0))
    process.driver.start_in_process = lambda *_: os.kill(os.getpid(), signal.SIGUSR1) or time.sleep(10)
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with pytest.raises(Preempted), activation.guard():
            process.framework.take()
    finally:
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("name", ["os.getpid", "os.open", "os.urandom", "time.monotonic", "json.dumps"])
def test_a_function_that_the_script_replaced_costs_no_more_than_our_choice(started, monkeypatch, name):
    process = started(gpu(0))
    with monkeypatch.context() as replaced:
        replaced.setattr(name, preempted)
        process.framework.take()


class Stderr:
    """One whose ``write`` does what a script may do there."""

    def __init__(self, write):
        self.write = write


def hangs(text):
    threading.Event().wait(60)


DELETED = object()


@pytest.mark.parametrize(
    "broken",
    [None, DELETED, object(), Stderr(preempted), Stderr(lambda text: sys.exit(3)), Stderr(hangs), Stderr(len)],
    ids=["none", "deleted", "has-nothing", "raises", "exits", "hangs", "no-flush"],
)
def test_a_stderr_that_fails_does_not_cost_the_gpu(tmp_path, monkeypatch, broken):
    monkeypatch.setattr("sys.stderr", broken)
    if broken is DELETED:
        monkeypatch.delattr("sys.stderr")
    process = Process(tmp_path, gpu(0))
    process.allocation = Allocation(
        policy.resolve(process.environ, script=None, working_directory=tmp_path, system_file=tmp_path / "none"),
        process.environ,
        activation.guard,
        grant=NO_ENGINE,
        started_with=None,
        first_reading=FakeReading(process.driver.now),
        reader=process.driver,
        cuda=process.cuda,
    )
    process.allocator = Allocator(process.allocation, process.framework, process.cuda)
    process.imports()
    assert process.framework.take().ordinals == (0,)
    process.allocation.lease.release()


def test_a_lease_folder_that_can_not_be_used_costs_one_line(started):
    process = started(gpu(0), **{LEASE_DIR: "relative"})
    assert process.framework.take().ordinals == (0,)
    assert process.allocation.lease is None
    assert process.lines[0].startswith(
        "nothing is claimed, so that other jobs don't see this one: AUTOGPU_LEASE_DIR is not"
    )


def test_a_child_of_a_best_effort_job_is_capped_as_its_parent_is(started):
    busy = gpu(0, pids=[7], used_gib=14, busy=90)
    parent = started(busy)
    assert parent.framework.take().caps == {0: 5 << 30}
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            environ = {name: parent.environ[name] for name in (LEASE, LEASE_DIR, CUDA_VISIBLE_DEVICES)}
            os.write(writer, str(started(busy, **environ).framework.take().caps).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as stream:
        assert stream.read() == str({0: 5 << 30})
    os.waitpid(child, 0)


def test_a_known_failure_is_no_internal_error(capfd):
    with activation.guard():
        raise AutoGpuError("the folder is full", remedy="free some space")
    assert capfd.readouterr().err == "autogpu: the folder is full; free some space\n"
