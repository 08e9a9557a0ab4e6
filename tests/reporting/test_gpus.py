"""The sentences about single GPUs."""

import pytest

from autogpu.devices.model import NO_READING, FailureCause, Inventory, UnreadableDevice
from autogpu.devices.nvml import NO_ANSWER
from autogpu.reporting.gpus import driver_remedy, each_gpu, gpu_names, occupancy
from autogpu.selection.model import LastRuns
from autogpu.text import GIB
from tests.support.selections import claim, decided
from tests.support.values import gpu, inventory, unreadable


@pytest.mark.parametrize(
    ("device", "claims", "expected"),
    [
        pytest.param(
            gpu(pids=[7, 8, 9, 10], used_gib=4, busy=93),
            [],
            "pids 7, 8, 9 and 1 more (no claim), 93 % busy, 20.0 of 24.0 GiB free",
            id="processes-without-a-claim",
        ),
        pytest.param(
            gpu(pids=[7], used_gib=4),
            [claim(24)],
            "claimed by train.py (pid 7), 0 % busy, 20.0 of 24.0 GiB free",
            id="claim",
        ),
        pytest.param(gpu(total_gib=None, busy=None), [], "utilization unknown, memory unknown", id="unknown"),
    ],
)
def test_occupancy_names_processes_claims_utilization_and_memory(device, claims, expected):
    assert occupancy(device, claims) == expected


def test_own_process_is_not_named():
    assert occupancy(gpu(pids=[7], used_gib=4), own_pid=7) == "0 % busy, 20.0 of 24.0 GiB free"


def test_each_gpu_has_a_line_with_its_place_or_obstacle():
    free, busy, excluded = gpu(0), gpu(1, pids=[7], used_gib=4), gpu(2)
    machine = inventory(free, busy, excluded, unreadable=unreadable(3))
    decision = decided(free, busy, excluded, exclude=("2",), inventory=machine)
    assert each_gpu(decision, decision.devices) == [
        "  GPU 0: taken: free, 0 % busy, 24.0 of 24.0 GiB free",
        "  GPU 1: choice 2: busy, pid 7 (no claim), 0 % busy, 20.0 of 24.0 GiB free",
        "  GPU 2: not suitable: excluded by select.exclude",
        "  GPU 3: not readable: lost",
    ]


def test_line_of_an_awaited_gpu_has_its_readings_and_the_waiting_job():
    decision = decided(gpu(0), gpu(1), awaited=[gpu(0).uuid])
    readings = "free, 0 % busy, 24.0 of 24.0 GiB free"
    assert (
        each_gpu(decision, decision.devices)[1]
        == f"  GPU 0: choice 2: {readings}, a job in the queue waits for this GPU"
    )


@pytest.mark.parametrize(
    ("runs", "expected"),
    [
        (LastRuns("a.py", 8 * GIB), ""),
        (LastRuns("a.py", 9 * GIB), "; 8.0 GiB neither used nor claimed, but a.py used 9.0 GiB in its last runs"),
        (
            LastRuns("a\n.py", 9 * GIB, has_failed=True),
            "; 8.0 GiB neither used nor claimed, but a\\n.py needed 9.0 GiB in all when it ran out of memory",
        ),
    ],
    ids=["enough", "used-more", "failed-at-more"],
)
def test_line_of_a_gpu_states_if_the_last_runs_took_more_than_is_left(runs, expected):
    decision = decided(gpu(0), gpu(1, pids=[7], used_gib=16), last_runs={gpu(1).name: runs})
    readings = "busy, pid 7 (no claim), 0 % busy, 8.0 of 24.0 GiB free"
    assert each_gpu(decision, decision.devices)[1] == f"  GPU 1: choice 2: {readings}{expected}"


def test_gpus_are_named_in_a_list():
    assert [gpu_names(labels) for labels in ("2", "23", ["2", "3", "0:1"])] == [
        "GPU 2",
        "GPU 2 and GPU 3",
        "GPU 2, GPU 3 and GPU 0:1",
    ]


FAILING = "if `nvidia-smi` fails too, tell the administrator"
BUSY_DRIVER = "perhaps the driver is just busy: try again when `nvidia-smi` answers"


@pytest.mark.parametrize(
    ("machine", "expected"),
    [
        (Inventory(failure="no pynvml", failure_cause=FailureCause.PYNVML), "`pip install nvidia-ml-py`"),
        (NO_READING, BUSY_DRIVER),
        (inventory(unreadable=(UnreadableDevice(0, NO_ANSWER),)), BUSY_DRIVER),
        (Inventory(failure="no", failure_cause=FailureCause.DRIVER), FAILING),
        (inventory(unreadable=unreadable(0)), FAILING),
        (Inventory(failure="none", failure_cause=FailureCause.NO_DRIVER), ""),
        (inventory(gpu(0)), ""),
    ],
    ids=["no-pynvml", "late", "no-gpu-answers", "refused", "lost-gpu", "no-driver", "gpu"],
)
def test_driver_that_can_not_be_read_has_a_remedy(machine, expected):
    assert driver_remedy(machine) == expected
