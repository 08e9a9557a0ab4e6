"""The GPU number that a JAX program uses, and the ordinals that JAX must see for it."""

from types import SimpleNamespace

import pytest

from autogpu.frameworks.jax.number import number_of_process, places_of, shown_ordinals
from autogpu.frameworks.number import Call


def script(*constants, **variables):
    return Call("train", variables, constants)


def framework(**variables):
    return Call("devices", variables, is_frameworks=True)


@pytest.mark.parametrize(
    ("calls", "number"),
    [
        pytest.param([script(gpu=2, epochs=3)], 2, id="variable"),
        pytest.param([script(args=SimpleNamespace(gpu=2, seed=1))], 2, id="parsed-arguments"),
        pytest.param([script(config={"device_id": 2})], 2, id="dictionary-entry"),
        pytest.param([script(device_name="gpu:2")], 2, id="keras-device"),
        pytest.param([script("gpu:2")], 2, id="constant-in-the-code"),
        pytest.param([framework(device=1), script(gpu=2)], 2, id="variables-of-jax-are-ignored"),
        pytest.param([script(gpu=1), script(gpu=2)], 1, id="innermost-call-first"),
        pytest.param([script("cuda", backend="gpu")], 3, id="platform-without-a-number"),
        pytest.param([script(epochs=2, count=1)], 3, id="no-number-in-the-calls"),
    ],
)
def test_number_in_the_calls_overrides_the_command_line(calls, number):
    assert number_of_process(calls, ("--gpu", "3"), is_rank=False) == number


@pytest.mark.parametrize(("is_rank", "number"), [(True, 2), (False, 0)])
def test_local_rank_variable_counts_only_for_a_rank(is_rank, number):
    assert number_of_process([script(local_rank=2)], (), is_rank=is_rank) == number


@pytest.mark.parametrize(
    ("number", "count", "gpus", "places"),
    [
        pytest.param(0, 1, 4, (0,), id="no-number"),
        pytest.param(2, 1, 4, (2,), id="one-gpu"),
        pytest.param(3, 2, 4, (3, 0), id="second-gpu-gets-ordinal-0"),
        pytest.param(1, 3, 4, (1, 0, 2), id="number-below-the-count"),
        pytest.param(1, 9, 4, (1, 0, 2, 3), id="count-above-the-gpus"),
        pytest.param(2, "all", 4, (2,), id="count-all"),
        pytest.param(2, 0, 4, (0,), id="count-0"),
        pytest.param(4, 1, 4, (0,), id="number-above-the-gpus"),
    ],
)
def test_claimed_gpus_get_the_scripts_number_then_0_and_up(number, count, gpus, places):
    assert places_of(number, count, gpus) == places


@pytest.mark.parametrize(
    ("claimed", "number", "shown"),
    [
        pytest.param((2,), 0, (2,), id="no-number"),
        pytest.param((2,), 2, (0, 1, 2), id="ordinals-below-the-number"),
        pytest.param((0, 3), 3, (0, 1, 2, 3), id="two-claimed-gpus"),
        pytest.param((0,), 2, (0,), id="claim-at-another-ordinal"),
    ],
)
def test_jax_sees_the_claimed_gpus_and_all_below_the_number(claimed, number, shown):
    assert shown_ordinals(claimed, number) == shown
