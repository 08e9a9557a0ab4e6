"""Who is on which GPU, from what the driver and the leases say."""

from __future__ import annotations

from autogpu.decision import Verdict
from autogpu.devices.model import Inventory, Process
from autogpu.lease import Holder, Waiter, Want
from autogpu.overview import Job, Stranger, Waiting, overview
from autogpu.policy import Policy
from autogpu.selection import GIB, Tier
from tests.values import gpu, inventory

NOW_S = 1_000_000.0
HOUR_S = 3600.0


def holder(name, *claims, script="train.py", uid=1000, pid=7, group="", age_s=60.0):
    held = {gpu(index).uuid: int(gib * GIB) for index, gib in claims}
    return Holder(name, uid, False, True, pid, None, 1, NOW_S - age_s, script, group, held)


def waiter(place, script, *, gib=None, silent_s=0.0):
    want = Want(1, None if gib is None else int(gib * GIB))
    return Waiter(f"wait.{place}", place, 1001, False, True, silent_s, 88, None, 1, NOW_S - 90, script, want)


def seen(machine, holders=(), waiters=(), policy=Policy(), pids=None, **environ):  # noqa: B008  (a value)
    pids = pids if pids is not None else {each.name: each.pid for each in holders}
    return overview(machine, holders, pids, waiters, policy, environ, own_uid=1000, now_s=NOW_S)


def test_a_job_shows_what_it_was_promised_and_what_it_uses():
    view = seen(inventory(gpu(0, used_gib=3, pids=[7]), gpu(1)), [holder("a", (0, 24))])
    assert view.gpus[0].jobs == (Job(1000, 7, "train.py", 60.0, 1, 24 * GIB, 3 * GIB, False),)
    assert [each.tier for each in view.gpus] == [Tier.BUSY, Tier.FREE]
    assert view.gpus[0].strangers == ()


def test_the_processes_of_one_job_are_one_line():
    machine = inventory(gpu(0, used_gib=4, pids=[7, 8]))
    members = [holder("a", (0, 6), group="j", age_s=90), holder("b", (0, 6), group="j", pid=8)]
    (job,) = seen(machine, members).gpus[0].jobs
    assert (job.pid, job.processes, job.age_s, job.claim_bytes, job.used_bytes) == (7, 2, 90.0, 6 * GIB, 4 * GIB)


def test_a_notebook_held_for_a_day_without_use_is_called_forgotten():
    (job,) = seen(inventory(gpu(0, pids=[7])), [holder("a", (0, 24), age_s=26 * HOUR_S)]).gpus[0].jobs
    assert job.is_forgotten
    (job,) = seen(inventory(gpu(0, pids=[7], busy=3)), [holder("a", (0, 24), age_s=26 * HOUR_S)]).gpus[0].jobs
    assert not job.is_forgotten


def test_processes_without_a_claim_are_strangers():
    desktop = (Process(17, GIB // 4),)
    (one,) = seen(inventory(gpu(0, used_gib=2, pids=[4242], graphics_processes=desktop))).gpus
    assert one.strangers == (Stranger(4242, 2 * GIB, False), Stranger(17, GIB // 4, True))
    assert one.unseen_bytes == 0


def test_memory_of_hidden_processes_is_told():
    assert seen(inventory(gpu(0, used_gib=15))).gpus[0].unseen_bytes == 15 * GIB
    assert seen(inventory(gpu(0, used_gib=0.4))).gpus[0].unseen_bytes == 0


def test_a_holder_in_another_container_is_shown_without_what_it_uses():
    (job,) = seen(inventory(gpu(0, used_gib=5)), [holder("a", (0, 24))], pids={"a": None}).gpus[0].jobs
    assert job.used_bytes is None


def test_the_queue_is_shown_in_its_order_with_who_is_passed_over():
    queue = seen(inventory(gpu(0)), waiters=[waiter(1, "a.py"), waiter(2, "b.py", gib=6, silent_s=60)]).queue
    assert queue == (
        Waiting(1001, 88, "a.py", 90.0, 1, None, False),
        Waiting(1001, 88, "b.py", 90.0, 1, 6 * GIB, True),
    )


def test_what_a_job_would_get_now_regards_claims_and_the_queue():
    machine = inventory(gpu(0), gpu(1))
    outlook = seen(machine, [holder("a", (1, 24))]).decision
    assert (outlook.verdict, outlook.ordinals) == (Verdict.TAKE, (0,))
    awaited = seen(machine, [holder("a", (1, 24))], [waiter(1, "w.py")]).decision
    assert "guest" in awaited.why or awaited.claims == dict.fromkeys(awaited.claims, 0)
    passed_over = seen(machine, [holder("a", (1, 24))], [waiter(1, "w.py", silent_s=60)]).decision
    assert passed_over.claims == {gpu(0).uuid: 24 * GIB}


def test_what_a_job_would_get_stays_inside_the_inherited_list():
    outlook = seen(inventory(gpu(0), gpu(1)), CUDA_VISIBLE_DEVICES="0").decision
    assert [outlook.visible[ordinal].index for ordinal in outlook.ordinals] == [0]
    hidden = seen(inventory(gpu(0), gpu(1)), CUDA_VISIBLE_DEVICES="-1").decision
    assert (hidden.verdict, hidden.why) == (Verdict.CPU, "CUDA_VISIBLE_DEVICES hides every GPU")


def test_without_a_driver_there_is_nothing_and_no_error():
    view = seen(Inventory(failure="NVML says: no", is_driverless=True))
    assert (view.gpus, view.queue, view.decision.verdict) == ((), (), Verdict.CPU)
