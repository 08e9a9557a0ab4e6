"""What a script says of its GPUs, and a policy that allows none of them: what the process takes and claims."""

from __future__ import annotations

import json

import pytest

from autogpu.errors import NoEligibleDevice
from autogpu.reporting.text import MIB
from autogpu.variables import CUDA_VISIBLE_DEVICES
from tests.support.fakes import FakeCuda
from tests.support.values import gpu

BUSY = gpu(0, pids=[7], used_gib=9, busy=90)


def test_a_position_whose_gpu_is_taken_is_another_one_for_the_life_of_the_process(started):
    process = started(gpu(0), gpu(1))
    process.driver.change(0, utilization_percent=99)
    process.allocation.prepare()
    process.allocation.prepare()
    assert process.framework.take(chosen=(1,)).moved == {1: 0}
    assert process.framework.take(chosen=(1,)).moved == {1: 0}
    assert "position 1 of 2, named by the script; GPU 0 at that position is taken" in process.lines[0]


def test_a_cluster_that_the_script_describes_after_the_import_makes_it_a_rank(started):
    process = started(gpu(0), gpu(1), cuda=FakeCuda([gpu(0), gpu(1)]))
    cluster = {"cluster": {"worker": ["a:1", "a:2"]}, "task": {"type": "worker", "index": 1}}
    process.environ["TF_CONFIG"] = json.dumps(cluster)
    process.allocation.prepare()
    taken = process.framework.take().ordinals
    assert (process.environ[CUDA_VISIBLE_DEVICES], taken) == (f"{gpu(0).uuid},{gpu(1).uuid}", (1,))


def test_a_listing_claims_nothing_and_shows_the_pool(started):
    process = started(gpu(0), gpu(1))
    process.cuda.initialise()
    assert [listed.attributes.name for listed in process.allocator.listing()] == ["NVIDIA TITAN RTX"] * 2
    assert process.allocator.listing()[0].memory_bytes == int((24 * 1024 - 512) * MIB * 0.9)
    assert (process.allocator.assignment, process.holders) == (None, ())
    assert started(gpu(0), AUTOGPU_COUNT="0").allocator.listing() == ()


def test_what_the_script_allows_itself_is_claimed_and_not_the_policys_number(started):
    process = started(gpu(0), AUTOGPU_LIMIT="2GiB")
    assert process.framework.take(limits=(8 << 30,)).caps == {0: 2 << 30}
    assert process.claims == {0: 8 * 1024 + 300}


def test_a_fraction_is_claimed_as_well(started):
    process = started(gpu(0), AUTOGPU_LIMIT="2GiB")
    process.framework.take(fraction=0.25)
    assert process.claims == {0: 6 * 1024 + 300}


def test_a_limit_on_one_of_two_gpus_claims_both(started):
    process = started(gpu(0), gpu(1), AUTOGPU_COUNT="2")
    process.framework.take(limits=(8 << 30,))
    assert process.claims == {0: 24 * 1024, 1: 24 * 1024}


def test_two_names_on_one_gpu_may_take_twice_what_the_script_allows(started):
    process = started(gpu(0), gpu(1), AUTOGPU_COUNT="1")
    process.framework.take(limits=(4 << 30,), named=2, logical=2)
    assert process.claims == {1: 8 * 1024 + 300}


def test_a_script_that_allows_itself_too_much_has_a_ceiling_beside_others(started):
    process = started(gpu(0, pids=[7], used_gib=14, busy=90))
    assignment = process.framework.take(fraction=0.9)
    assert assignment.ceilings == {0: 5 << 30}
    assert process.claims == {0: 0}


def test_names_ask_for_gpus_unless_the_policy_says_how_many(started):
    assert len(started(gpu(0), gpu(1)).framework.take(named=2).ordinals) == 2
    assert len(started(gpu(2), gpu(3), AUTOGPU_COUNT="1").framework.take(named=2).ordinals) == 1


# A policy that allows none of the GPUs


def test_a_list_that_matches_nothing_is_said_at_the_import_and_again_with_what_becomes_of_it(started):
    process = started(gpu(0), cuda=FakeCuda(), AUTOGPU_DEVICES="*A100*")
    assert process.environ[CUDA_VISIBLE_DEVICES] == "-1"
    assert process.lines[0].startswith("select.devices = *A100* (AUTOGPU_DEVICES) matches none of the GPUs here; ")
    process.framework.take()
    assert process.lines[1] == (
        "no GPU for this process, Fakeflow starts on CPU: no GPU is suitable (GPU 0: not among select.devices); "
        "policy: AUTOGPU_DEVICES"
    )


def test_where_the_policy_asks_for_an_error_an_empty_pool_is_one(started):
    process = started(gpu(0), cuda=FakeCuda(), AUTOGPU_DEVICES="*A100*", AUTOGPU_BUSY="error")
    with pytest.raises(NoEligibleDevice, match=r"not among select\.devices.*`autogpu status --explain` shows"):
        process.framework.take()
