"""Which GPUs a process takes, and the reason it is given."""

from __future__ import annotations

import pytest

from autogpu.decision import Question, Verdict, decide, rules
from autogpu.policy.model import Policy
from autogpu.pool import Frame
from tests.values import gpu, inventory

NOBODY = Frame(None, "nobody")
INHERITED = Frame("0,1", "inherited")
BUSY = {"pids": [7], "used_gib": 9, "busy": 90}


def decided(
    *devices,
    policy=None,
    frame=NOBODY,
    visible=None,
    chosen=None,
    machine=None,
    gpu_count=None,
    leases=None,
    awaited=(),
):
    """The decision of a process that has ``visible`` (by default all devices in the order given)."""
    uuids = [device.uuid for device in (visible or devices)]
    count = len(uuids) if gpu_count is None else gpu_count
    question = Question(
        policy or Policy(), frame, machine or inventory(*devices), uuids, count, chosen, own_pid=1, own_uid=1000
    )
    return decide(question, leases, lambda uuid: uuid in awaited)


def test_one_gpu_the_idlest():
    decision = decided(gpu(0, **BUSY), gpu(1), gpu(2, busy=30))
    assert (decision.ordinals, decision.why) == ((1,), "the idlest of 3")


def test_ordinals_count_in_the_process_not_on_the_machine():
    first, second, third = gpu(0), gpu(1, **BUSY), gpu(2)
    assert decided(first, second, third, visible=[third, first, second]).ordinals == (0,)


@pytest.mark.parametrize(
    ("count", "ordinals", "why"),
    [
        (2, (1, 2), "the 2 idlest of 3"),
        ("all", (0, 1, 2), "all 3"),
        (3, (0, 1, 2), "all 3"),
        (5, (0, 1, 2), "all 3; select.count asks for 5, there are no more"),
        (0, (), "select.count is 0"),
    ],
)
def test_count(count, ordinals, why):
    decision = decided(gpu(0), gpu(1), gpu(2), policy=Policy(count=count))
    assert (decision.ordinals, decision.why) == (ordinals, why)


def test_a_shared_gpu_is_said_to_be_shared():
    assert decided(gpu(0, **BUSY), gpu(1, pids=[8], used_gib=20)).why == (
        "the least busy of 2 (shared: pid 7 computes on it, 90 % busy, 15.0 of 24.0 GiB free)"
    )


@pytest.mark.parametrize(
    ("frame", "why"),
    [
        (INHERITED, "the idlest of 2 in CUDA_VISIBLE_DEVICES"),
        (Frame("0,1", "script"), "the idlest of 2 in the script's CUDA_VISIBLE_DEVICES"),
    ],
)
def test_the_reason_names_the_frame(frame, why):
    assert decided(gpu(0), gpu(1), frame=frame).why == why


def test_whoever_named_a_busy_gpu_hears_of_an_idle_one():
    machine = inventory(gpu(0, **BUSY), gpu(1), gpu(2))
    decision = decided(gpu(0, **BUSY), frame=Frame("0", "script"), machine=machine)
    assert decision.why == (
        "the only one in the script's CUDA_VISIBLE_DEVICES (shared: pid 7 computes on it, 90 % busy, "
        "15.0 of 24.0 GiB free), busy while GPUs 1 and 2 are idle"
    )


def test_what_the_script_made_visible_is_its_own_choice():
    decision = decided(gpu(0), gpu(1, **BUSY), chosen=[1], policy=Policy(count=0))
    assert (decision.verdict, decision.why) == (Verdict.LEAVE, "chosen by the script, busy while GPU 0 is idle")


def test_the_users_list_wins_over_exclude_unless_that_is_locked():
    policy = Policy(exclude=("0",))
    assert rules(policy, NOBODY, 1).exclude == ("0",)
    assert rules(policy, INHERITED, 1).exclude == ()
    assert rules(Policy(exclude=("0",), locked=frozenset({"select.exclude"})), INHERITED, 1).exclude == ("0",)


def test_a_policy_that_excludes_every_gpu_means_cpu():
    decision = decided(gpu(0), policy=Policy(exclude=("0",)))
    assert (decision.verdict, decision.why) == (Verdict.CPU, "no GPU is free (GPU 0: excluded by select.exclude)")


def test_gpus_that_cannot_be_taken_mean_cpu():
    assert decided(gpu(0, compute_mode="prohibited")).verdict is Verdict.CPU


@pytest.mark.parametrize(
    ("machine", "gpu_count", "why"),
    [
        (
            inventory(failure="NVML says: Driver/library version mismatch"),
            1,
            "NVML says: Driver/library version mismatch",
        ),
        (
            inventory(gpu(0, mig_enabled=True)),
            1,
            "a GPU is split into MIG instances, which autogpu does not choose among",
        ),
        (inventory(gpu(0)), 2, "the CUDA driver and the framework count different GPUs"),
    ],
    ids=["no-readings", "mig", "different-counts"],
)
def test_an_obstacle_leaves_the_choice_to_the_framework(machine, gpu_count, why):
    decision = decided(gpu(0), machine=machine, gpu_count=gpu_count)
    assert (decision.verdict, decision.why) == (Verdict.LEAVE, why)


def test_no_answer_in_time_leaves_the_choice_to_the_framework():
    decision = decide(Question(Policy(), NOBODY, None, ["GPU-a"], 1, None, 1, 1000))
    assert (decision.verdict, decision.why) == (Verdict.LEAVE, "the driver has not answered in time")
