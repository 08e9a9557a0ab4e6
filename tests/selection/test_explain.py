"""The sentences of a decision."""

from autogpu.selection.explain import after_wait, idle_alternative, occupancy, taken
from autogpu.selection.model import Candidate, Decision, Ranking, Tier, Verdict
from tests.support.selections import claim, request
from tests.support.values import gpu


def test_what_is_on_a_gpu_is_told_by_processes_claims_utilization_and_memory():
    four, one = gpu(pids=[7, 8, 9, 10], used_gib=4, busy=93), gpu(pids=[7], used_gib=4)
    without = "pids 7, 8, 9 and 1 more on it without a claim, 93 % busy, 20.0 of 24.0 GiB free"
    assert occupancy(four) == without
    assert occupancy(gpu(total_gib=None, busy=None)) == "utilization unknown, memory unknown"
    script = "claimed by train.py (pid 7), 0 % busy, 20.0 of 24.0 GiB free"
    assert occupancy(one, [claim(24)]) == script


def test_of_many_gpus_some_are_named():
    assert idle_alternative([gpu(1)]) == ", busy while GPU 1 is idle"
    assert idle_alternative([gpu(index) for index in range(5)]) == ", busy while GPU 0, GPU 1 and GPU 2 are idle"
    shared = tuple(Candidate(gpu(index), Tier.BUSY, f"reason {index}") for index in range(6))
    told = taken(Ranking(shared, ()), shared, request())
    assert told == "all 6 (shared: GPU 0: reason 0; GPU 1: reason 1; and 4 more)"


def test_a_wait_is_told_from_a_second_on():
    decision = Decision(Verdict.TAKE, "idle")
    told = [after_wait(decision, waited_s).why for waited_s in (0.9, 1.0)]
    assert told == ["idle", "idle, after 1 s of waiting"]
