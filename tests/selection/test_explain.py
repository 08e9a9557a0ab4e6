"""The sentences of a decision."""

from __future__ import annotations

from autogpu.selection.explain import idle_alternative, occupancy, taken
from autogpu.selection.model import Candidate, Ranking, Tier, VisibleSpec
from tests.support.selections import claim
from tests.support.values import gpu


def described(device, *claims):
    return occupancy(device, device.compute_processes or (), claims)


def test_description_names_processes_utilization_and_memory():
    device = gpu(pids=[7, 8, 9, 10], used_gib=4, busy=93)
    assert described(device) == "pids 7, 8, 9 and 1 more on it without a claim, 93 % busy, 20.0 of 24.0 GiB free"
    assert described(gpu(total_gib=None, busy=None)) == "utilization unknown, memory unknown"


def test_a_claim_is_described_by_its_script():
    assert described(gpu(pids=[7], used_gib=4), claim(24)) == (
        "claimed by train.py (pid 7), 0 % busy, 20.0 of 24.0 GiB free"
    )


def test_of_many_idle_gpus_three_are_named():
    assert idle_alternative([gpu(1)]) == ", busy while GPU 1 is idle"
    assert idle_alternative([gpu(index) for index in range(5)]) == ", busy while GPU 0, GPU 1 and GPU 2 are idle"


def test_of_many_shared_gpus_two_have_their_reason_told():
    shared = tuple(Candidate(gpu(index), Tier.BUSY, f"reason {index}") for index in range(6))
    told = taken(Ranking(shared, ()), shared, VisibleSpec(None, "unset"), False)
    assert told.startswith("all 6 (shared: GPU 0: reason 0; ")
    assert told.endswith("; GPU 1: reason 1; and 4 more)")
