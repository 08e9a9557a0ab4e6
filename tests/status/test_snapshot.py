"""Who is on which GPU, from what the driver and the leases say."""

from __future__ import annotations

import json

import pytest

from autogpu.devices.model import Inventory, Process
from autogpu.reporting.text import GIB
from autogpu.status.model import JobStatus, UnmanagedProcess, WaiterStatus
from tests.support.host_states import HOUR_S, holder, host, waiter
from tests.support.values import gpu, inventory


def test_a_job_shows_what_it_was_promised_and_what_it_uses():
    view = host(inventory(gpu(0, used_gib=3, pids=[7]), gpu(1)), [holder("a", (0, 24))])
    assert view.gpus[0].jobs == (JobStatus("ann", 1000, 7, "train.py", 60.0, 1, 24 * GIB, 3 * GIB, False),)
    assert [each.state for each in view.gpus] == ["busy", "free"]
    assert view.gpus[0].unmanaged_processes == ()


def test_the_processes_of_one_job_are_one_line():
    machine = inventory(gpu(0, used_gib=4, pids=[7, 8]))
    members = [holder("a", (0, 6), group="j", age_s=90), holder("b", (0, 6), group="j", pid=8)]
    (job,) = host(machine, members).gpus[0].jobs
    assert (job.pid, job.processes, job.age_s, job.claim_bytes, job.used_bytes) == (7, 2, 90.0, 6 * GIB, 4 * GIB)


def test_a_notebook_held_for_a_day_without_use_is_an_idle_lease():
    (job,) = host(inventory(gpu(0, pids=[7])), [holder("a", (0, 24), age_s=26 * HOUR_S)]).gpus[0].jobs
    assert job.is_idle
    (job,) = host(inventory(gpu(0, pids=[7], busy=3)), [holder("a", (0, 24), age_s=26 * HOUR_S)]).gpus[0].jobs
    assert not job.is_idle


def test_processes_without_a_claim_are_unmanaged():
    desktop = (Process(17, GIB // 4),)
    (one,) = host(inventory(gpu(0, used_gib=2, pids=[4242], graphics_processes=desktop))).gpus
    assert one.unmanaged_processes == (
        UnmanagedProcess(4242, "bob", "python", 2 * GIB, False),
        UnmanagedProcess(17, "bob", "python", GIB // 4, True),
    )
    assert one.unlisted_bytes == 0


def test_memory_of_hidden_processes_is_told():
    assert host(inventory(gpu(0, used_gib=15))).gpus[0].unlisted_bytes == 15 * GIB
    assert host(inventory(gpu(0, used_gib=0.4))).gpus[0].unlisted_bytes == 0


def test_a_holder_in_another_container_is_shown_without_what_it_uses():
    (job,) = host(inventory(gpu(0, used_gib=5)), [holder("a", (0, 24))], pids={"a": None}).gpus[0].jobs
    assert job.used_bytes is None


def test_the_queue_is_shown_in_its_order_with_who_is_passed_over():
    queue = host(inventory(gpu(0)), waiters=[waiter(1, "a.py"), waiter(2, "b.py", gib=6, silent_s=60)]).queue
    assert queue == (
        WaiterStatus("bob", 1001, 88, "a.py", 90.0, 1, None, False),
        WaiterStatus("bob", 1001, 88, "b.py", 90.0, 1, 6 * GIB, True),
    )


def test_what_a_job_would_get_now_regards_claims_and_the_queue():
    machine = inventory(gpu(0), gpu(1))
    preview = host(machine, [holder("a", (1, 24))]).preview
    assert (preview.verdict, preview.uuids, preview.why) == ("take", (gpu(0).uuid,), "the idlest of 2")
    awaited = host(machine, [holder("a", (1, 24))], [waiter(1, "w.py")]).preview
    assert awaited.why.endswith("because select.need does not say what the job needs")
    passed_over = host(machine, [holder("a", (1, 24))], [waiter(1, "w.py", silent_s=60)]).preview
    assert passed_over.why == "the idlest of 2"


@pytest.mark.parametrize(
    ("environ", "why"),
    [
        ({}, "shared with its parent process, bash (pid 7)"),
        ({"PMI_RANK": "0", "PMI_SIZE": "1", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "1"}, None),
    ],
    ids=["member", "rank"],
)
def test_what_a_job_would_get_inside_a_job_is_what_that_holds(environ, why):
    machine, bash = inventory(gpu(0), gpu(1)), holder("a", (0, 24), script="bash")
    preview = host(machine, [bash], parent=bash, CUDA_VISIBLE_DEVICES="0", **environ).preview
    assert preview.uuids == (gpu(0).uuid,)
    assert (preview.why == why) is (why is not None)


def test_a_rank_inside_a_job_would_get_its_part_of_what_that_holds():
    machine, hold = inventory(gpu(0), gpu(1)), holder("a", (0, 24), (1, 24), script="torchrun")
    rank = {"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    preview = host(machine, [hold], parent=hold, CUDA_VISIBLE_DEVICES="0,1", **rank).preview
    assert (preview.uuids, preview.why) == ((gpu(1).uuid,), "local rank 1 of 2 (torchrun)")


@pytest.mark.parametrize(("gib", "is_capped"), [(24, False), (0, True)], ids=["held", "shared"])
def test_inside_a_job_a_script_is_capped_only_where_that_holds_nothing(gib, is_capped):
    machine, bash = inventory(gpu(0, used_gib=1, pids=[8])), holder("a", (0, gib), script="bash")
    why = host(machine, [bash], parent=bash, CUDA_VISIBLE_DEVICES="0").preview.why
    assert why.startswith("shared with its parent process, bash (pid 7)")
    assert ("capped" in why) is is_capped


def test_what_a_job_would_get_stays_inside_the_inherited_list():
    assert host(inventory(gpu(0), gpu(1)), CUDA_VISIBLE_DEVICES="0").preview.uuids == (gpu(0).uuid,)
    hidden = host(inventory(gpu(0), gpu(1)), CUDA_VISIBLE_DEVICES="-1").preview
    assert (hidden.verdict, hidden.why) == ("cpu", "CUDA_VISIBLE_DEVICES hides every GPU")


def test_where_scripts_are_left_alone_nothing_is_promised_to_one():
    preview = host(inventory(gpu(0), gpu(1)), AUTOGPU="0").preview
    assert (preview.verdict, preview.uuids, preview.why) == ("cannot_choose", (), "autogpu is switched off")
    assert preview.policy == "AUTOGPU"


def test_the_reason_for_each_gpu_is_told():
    preview = host(inventory(gpu(0, mig_enabled=False, compute_mode="prohibited"), gpu(1))).preview
    assert [(each.uuid, each.state) for each in preview.candidates] == [(gpu(1).uuid, "free")]
    assert [(each.uuid, each.cause) for each in preview.rejected] == [(gpu(0).uuid, "unsuitable")]
    assert preview.reasons == (
        "  GPU 1: first choice: free, 0 % busy, 24.0 of 24.0 GiB free",
        "  GPU 0: not eligible: its compute mode is PROHIBITED",
    )


def test_the_policy_of_the_preview_is_named():
    assert host(inventory(gpu(0))).preview.policy == "defaults"
    assert host(inventory(gpu(0)), AUTOGPU_COUNT="0").preview.policy == "AUTOGPU_COUNT"


def test_without_a_driver_there_is_nothing_and_no_error():
    view = host(Inventory(failure="NVML reports: no", failure_cause="no-driver"))
    assert (view.gpus, view.queue, view.preview.verdict, view.has_driver) == ((), (), "cpu", False)


def test_a_script_that_only_coordinates_would_take_no_gpu_unless_the_user_says_so():
    chief = {"cluster": {"chief": ["a:1"], "ps": ["a:2"]}, "task": {"type": "chief", "index": 0}}
    of_chief = {"TF_CONFIG": json.dumps(chief)}
    assert host(inventory(gpu(0)), **of_chief).preview.uuids == ()
    assert host(inventory(gpu(0)), AUTOGPU_COUNT="1", **of_chief).preview.uuids == (gpu(0).uuid,)
