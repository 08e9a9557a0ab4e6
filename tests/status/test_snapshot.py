"""The status of a host: GPUs, jobs, queue and preview, from the driver's readings and the leases."""

import json

import pytest

from autogpu.devices.model import ComputeMode, FailureCause, Inventory, Process
from autogpu.lease import Processes
from autogpu.status.model import JobStatus, UnmanagedProcess, WaiterStatus
from autogpu.text import GIB
from tests.support.host_states import HOUR_S, holder, host, waiter
from tests.support.values import gpu, inventory


def test_job_status_has_the_claim_and_the_used_memory():
    view = host(inventory(gpu(0, used_gib=3, pids=[7]), gpu(1)), [holder("a", (0, 24))])
    assert view.gpus[0].jobs == (JobStatus("ann", 1000, 7, "train.py", 60.0, 1, 24 * GIB, 3 * GIB, False, False),)
    assert [each.state for each in view.gpus] == ["busy", "free"]
    assert view.gpus[0].unmanaged_processes == ()


DAY = holder("a", (0, 24), age_s=26 * HOUR_S)
TOGETHER = {"pid": 7, "processes": 2, "age_s": 90.0, "claim_bytes": 6 * GIB, "used_bytes": 4 * GIB}
MEMBERS = [holder("a", (0, 6), group="j", age_s=90), holder("b", (0, 6), group="j", pid=8)]


@pytest.mark.parametrize(
    ("machine", "holders", "pids", "expected"),
    [
        pytest.param(gpu(0, used_gib=4, pids=[7, 8]), MEMBERS, None, TOGETHER, id="processes-of-one-job-are-one-line"),
        pytest.param(gpu(0, pids=[7]), [DAY], None, {"is_idle": True}, id="idle-for-a-day"),
        pytest.param(gpu(0, pids=[7], busy=3), [DAY], None, {"is_idle": False}, id="in-use-for-a-day"),
        pytest.param(gpu(0, used_gib=5), [DAY], Processes({}), {"used_bytes": None}, id="in-another-container"),
        *(
            pytest.param(gpu(0, **seen), [DAY], pids, {"is_active": is_active}, id=f"active-{rule}")
            for rule, is_active, pids, seen in (
                ("only-process", True, None, {"pids": [7], "busy": 9}),
                ("utilization-zero", False, None, {"pids": [7, 9]}),
                ("without-a-context", False, None, {"pids": [9], "busy": 9}),
                ("listed-by-the-driver", True, None, {"pids": [7, 9], "busy": 9, "active_pids": [7]}),
                ("another-process-listed", False, None, {"pids": [7, 9], "busy": 9, "active_pids": [9]}),
                ("unknown-which-process", None, None, {"pids": [7, 9], "busy": 9}),
                ("hidden-processes", None, None, {"used_gib": 9, "busy": 9, "compute_processes": (Process(7, GIB),)}),
                ("in-another-container", None, Processes({}), {"pids": [7], "busy": 9}),
                ("utilization-unknown", None, None, {"pids": [7], "busy": None}),
            )
        ),
    ],
)
def test_job_status_has_the_expected_fields(machine, holders, pids, expected):
    (job,) = host(inventory(machine), holders, pids=pids).gpus[0].jobs
    assert {name: getattr(job, name) for name in expected} == expected


def test_processes_without_a_claim_are_unmanaged():
    desktop = (Process(17, GIB // 4),)
    (one,) = host(inventory(gpu(0, used_gib=2, pids=[4242], graphics_processes=desktop))).gpus
    assert one.unmanaged_processes == (
        UnmanagedProcess(4242, "bob", "python", 2 * GIB, False),
        UnmanagedProcess(17, "bob", "python", GIB // 4, True),
    )
    assert one.unlisted_bytes == 0


def test_bare_context_of_a_job_takes_no_gpu_and_is_not_unmanaged():
    contexts = tuple(Process(pid, GIB // 4, is_bare=True) for pid in (7, 4242))
    machine = inventory(gpu(0, used_gib=3, pids=[7]), gpu(1, used_gib=0.5, compute_processes=contexts))
    other = host(machine, [holder("a", (0, 24))]).gpus[1]
    assert (other.state, other.jobs, [each.pid for each in other.unmanaged_processes]) == ("free", (), [4242])


@pytest.mark.parametrize(
    ("user", "left"),
    [
        (None, [(0, [7], [9]), (1, [], [8]), (2, [], [])]),
        ("ann", [(0, [7], [])]),
        ("bob", [(0, [], [9]), (1, [], [8])]),
    ],
    ids=str,
)
def test_status_of_a_user_has_only_the_gpus_that_the_user_uses(user, left):
    machine = inventory(gpu(0, pids=[7, 9]), gpu(1, pids=[8]), gpu(2))
    told = host(machine, [holder("a", (0, 6))]).of_user(user)
    # The status of one user has no preview, because a preview would show the GPUs of other users.
    assert bool(told.preview.why) == bool(told.preview.reasons) == (user is None)
    shown = [(each.index, each.jobs, each.unmanaged_processes) for each in told.gpus]
    assert [(index, *([one.pid for one in several] for several in both)) for index, *both in shown] == left


@pytest.mark.parametrize(
    ("mode", "printed"),
    [
        (ComputeMode.DEFAULT, "default"),
        (ComputeMode.EXCLUSIVE_THREAD, "exclusive_thread"),
        (ComputeMode.PROHIBITED, "prohibited"),
        (ComputeMode.EXCLUSIVE_PROCESS, "exclusive_process"),
        (None, None),
    ],
)
def test_compute_mode_is_shown_by_its_name_in_small_letters(mode, printed):
    (shown,) = host(inventory(gpu(0, compute_mode=mode))).gpus
    assert shown.compute_mode == printed


def test_memory_of_hidden_processes_is_reported():
    assert host(inventory(gpu(0, used_gib=15))).gpus[0].unlisted_bytes == 15 * GIB
    assert host(inventory(gpu(0, used_gib=0.4))).gpus[0].unlisted_bytes == 0


def test_queue_keeps_its_order_and_marks_silent_waiters_as_passed_over():
    queue = host(inventory(gpu(0)), waiters=[waiter(1, "a.py"), waiter(2, "b.py", gib=6, silent_s=60)]).queue
    assert queue == (
        WaiterStatus("bob", 1001, 88, "a.py", 90.0, 1, None, False),
        WaiterStatus("bob", 1001, 88, "b.py", 90.0, 1, 6 * GIB, True),
    )


TWO = inventory(gpu(0), gpu(1))
HELD, SILENT = [holder("a", (1, 24))], waiter(1, "w.py", silent_s=60)
VISIBLE = "CUDA_VISIBLE_DEVICES"
ONE_RANK = {"PMI_RANK": "0", "PMI_SIZE": "1", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "1"}
SECOND_RANK = {"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", VISIBLE: "0,1"}
CHIEF = {"cluster": {"chief": ["a:1"], "ps": ["a:2"]}, "task": {"type": "chief", "index": 0}}
OF_CHIEF = {"TF_CONFIG": json.dumps(CHIEF)}
OFF = {"verdict": "cannot_choose", "why": "autogpu is switched off", "policy": "AUTOGPU"}
BESIDE = "the least busy of 2; memory limited by other jobs; to reserve 6 GiB: AUTOGPU_NEED=6GiB; "
BESIDE += "shared: claimed by train.py (pid 7), 0 % busy"
HIDDEN = {"verdict": "cpu", "why": "CUDA_VISIBLE_DEVICES hides every GPU"}


@pytest.mark.parametrize(
    ("holders", "waiters", "environ", "indices", "expected"),
    [
        pytest.param(HELD, [], {}, [0], {"verdict": "take", "why": "the idlest of 2"}, id="unclaimed-gpu"),
        pytest.param(HELD, [waiter(1, "w.py")], {}, [1], {"why": BESIDE}, id="other-gpu-than-the-awaited"),
        pytest.param(HELD, [SILENT], {}, [0], {"why": "the idlest of 2"}, id="gpu-awaited-by-a-silent-waiter"),
        pytest.param([], [], {VISIBLE: "0"}, [0], {}, id="inherited-list"),
        pytest.param([], [], {VISIBLE: "-1"}, [], HIDDEN, id="every-gpu-hidden"),
        pytest.param([], [], {"AUTOGPU": "0"}, [], OFF, id="switched-off"),
        pytest.param([], [], {}, [1], {"policy": "defaults"}, id="default-policy"),
        pytest.param([], [], {"AUTOGPU_COUNT": "0"}, [], {"policy": "AUTOGPU_COUNT"}, id="policy-from-a-variable"),
        pytest.param([], [], OF_CHIEF, [], {"verdict": "cpu"}, id="chief-that-only-coordinates"),
        pytest.param([], [], {**OF_CHIEF, "AUTOGPU_COUNT": "1"}, [1], {}, id="chief-with-a-count-from-the-user"),
    ],
)
def test_preview_shows_the_gpus_of_a_job_that_starts_now(holders, waiters, environ, indices, expected):
    preview = host(inventory(gpu(0), gpu(1, pids=[7])) if holders else TWO, holders, waiters, **environ).preview
    assert preview.uuids == tuple(gpu(index).uuid for index in indices)
    assert {name: getattr(preview, name) for name in expected} == expected


PARENTS = "shared with the parent process, bash (pid 7)"


@pytest.mark.parametrize(
    ("claims", "environ", "index", "why", "is_capped"),
    [
        pytest.param([(0, 24)], {VISIBLE: "0"}, 0, PARENTS, False, id="child-process"),
        pytest.param([(0, 0)], {VISIBLE: "0"}, 0, PARENTS, True, id="best-effort"),
        pytest.param([(0, 24)], {VISIBLE: "0", **ONE_RANK}, 0, "", False, id="rank-alone"),
        pytest.param([(0, 24), (1, 24)], SECOND_RANK, 1, "local rank 1 of 2 (torchrun)", False, id="rank"),
    ],
)
def test_preview_inside_a_job_shows_the_gpus_of_that_job(claims, environ, index, why, is_capped):
    bash = holder("a", *claims, script="bash")
    machine = inventory(gpu(0, used_gib=1, pids=[8]), gpu(1))
    preview = host(machine, [bash], parent=bash, **environ).preview
    assert preview.uuids == (gpu(index).uuid,)
    assert (preview.why.startswith(why), "memory limited by other jobs" in preview.why) == (True, is_capped)


def test_preview_has_a_reason_for_each_gpu():
    preview = host(inventory(gpu(0, mig_enabled=False, compute_mode=ComputeMode.PROHIBITED), gpu(1))).preview
    assert preview.reasons == (
        "  GPU 1: first choice: free, 0 % busy, 24.0 of 24.0 GiB free",
        "  GPU 0: not suitable: its compute mode is PROHIBITED",
    )


def test_status_without_a_driver_is_empty_and_not_an_error():
    view = host(Inventory(failure="NVML reports: no", failure_cause=FailureCause.NO_DRIVER))
    assert (view.gpus, view.queue, view.preview.verdict, view.has_driver) == ((), (), "cpu", False)
