"""Failures during the allocation of GPUs: of the driver, of the lease folder, of stderr, and of autogpu itself."""

import functools
import os
import re
import signal
import time

import pytest

from autogpu import activation, stderr
from autogpu.devices.model import FailureCause, UnreadableDevice
from autogpu.errors import AutoGpuError
from autogpu.variables import CUDA_VISIBLE_DEVICES, LEASE_DIR
from tests.support.fakes import FakeDriver
from tests.support.values import gpu

ONE, TWO = [gpu(0)], (gpu(0), gpu(1))
BUSY_AND_FREE = (gpu(0, pids=[7], used_gib=9, busy=90), gpu(1))
ALL = 24 * 1024
PYNVML = FailureCause.PYNVML
NOT_READ = "{} used, not chosen by autogpu: {}; memory allocated as needed"
LOST = (UnreadableDevice(0, "GPU is lost"), UnreadableDevice(1, "no answer"))
NONE_READ = "NVML can't read any of the GPUs"


def test_silent_driver_is_read_by_one_thread_at_a_time(started):
    process = started(*TWO)
    process.allocation.readings.wait(1.0)
    before, process.driver.now = process.driver.taken, None
    assert [process.allocation.readings.take() for _ in range(3)] == [None] * 3
    assert process.driver.taken == before + 1


@pytest.mark.parametrize(
    ("driver", "counted", "why"),
    [
        pytest.param(FakeDriver.silent(), TWO, NOT_READ.format("2 GPUs", "NVML timed out"), id="no-reading-in-time"),
        pytest.param(FakeDriver(unreadable=LOST), ONE, NOT_READ.format("1 GPU", NONE_READ), id="no-gpu-can-be-read"),
        pytest.param(FakeDriver.failing("broken", PYNVML), ONE, NOT_READ.format("1 GPU", "broken"), id="no-pynvml"),
    ],
)
def test_a_driver_that_can_not_be_read_leaves_the_choice_to_the_framework(started, driver, counted, why):
    process = started(driver=driver, counted=counted)
    assert CUDA_VISIBLE_DEVICES not in process.environ
    assert process.framework.take().ordinals is None
    assert process.lines[0] == why
    assert process.lines[1:] == ["GPU 0: GPU is lost; GPU 1: no answer"] * (NONE_READ in why)
    assert [list(holder.claims) for holder in process.holders] == [[device.uuid for device in counted]]


def test_reading_that_missed_its_deadline_is_replaced_by_a_new_one(started):
    process = started(driver=FakeDriver.silent(), counted=BUSY_AND_FREE)
    process.driver.now = FakeDriver(*BUSY_AND_FREE).now
    assert process.framework.take().ordinals == (1,)
    assert process.allocation.lease is not None


def test_internal_error_prints_one_line_and_the_framework_goes_on(started, capsys):
    process = started(gpu(0))
    # A C function: no Python frame of the test is in the traceback, so the error counts as autogpu's own.
    process.driver.start_in_process = "a reader of the test".index
    assert process.framework.take() is None
    line = r"autogpu: .*internal error \(TypeError at probe.py:.*; the framework continues with its defaults.*\n"
    assert re.fullmatch(line, capsys.readouterr().err)


class Preempted(Exception):
    """Raised by a script when its scheduler wants the machine back."""


def preempted(*_):
    raise Preempted


class Handler:
    def __call__(self, *_):
        raise Preempted

    method = __call__


@pytest.mark.parametrize(
    "handler",
    [preempted, Handler(), Handler().method, functools.partial(preempted, 1)],
    ids=["function", "object", "method", "partial"],
)
def test_exception_of_a_signal_handler_reaches_the_script(started, handler):
    process = started(gpu(0))
    process.driver.start_in_process = lambda *_: os.kill(os.getpid(), signal.SIGUSR1) or time.sleep(10)
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with pytest.raises(Preempted), activation.guard():
            process.framework.take()
    finally:
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("name", ["os.getpid", "os.open", "os.urandom", "time.monotonic", "json.dumps"])
def test_script_goes_on_if_it_broke_a_function_that_autogpu_calls(started, monkeypatch, name):
    process = started(gpu(0))
    with monkeypatch.context() as replaced:
        replaced.setattr(name, preempted)
        process.framework.take()


def test_gpu_is_assigned_even_if_stderr_fails(started, monkeypatch):
    monkeypatch.setattr("sys.stderr", object())
    process = started(gpu(0, name="a name that no other test prints"), say=stderr.say)
    assert process.framework.take().ordinals == (0,)


def test_unusable_lease_folder_prints_one_line_and_claims_nothing(started):
    process = started(gpu(0), **{LEASE_DIR: "relative"})
    assert process.framework.take().ordinals == (0,)
    assert process.allocation.lease is None
    assert "nothing is claimed, so other jobs don't see this one: AUTOGPU_LEASE_DIR is" in process.lines[0]


def test_process_claims_and_prints_one_line_if_flock_fails(started, no_mutex):
    no_mutex()
    process = started(gpu(0))
    process.framework.take()
    assert process.claims == {0: ALL}
    assert process.lines[0].startswith("claiming without the host's lock, which is safe but slower: ")


def test_expected_error_is_printed_with_its_remedy(capfd):
    with activation.guard():
        raise AutoGpuError("the folder is full", remedy="free some space")
    assert capfd.readouterr().err == "autogpu: the folder is full; free some space\n"
