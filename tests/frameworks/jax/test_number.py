"""The number under which a JAX program uses its GPU, and the devices that it sees for that."""

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
        pytest.param([script(gpu=2, epochs=3)], 2, id="of-a-variable"),
        pytest.param([script(args=SimpleNamespace(gpu=2, seed=1))], 2, id="of-parsed-arguments"),
        pytest.param([script(config={"device_id": 2})], 2, id="of-a-dictionary"),
        pytest.param([script(device_name="gpu:2")], 2, id="a-device-of-keras"),
        pytest.param([script("gpu:2")], 2, id="in-its-code"),
        pytest.param([framework(device=1), script(gpu=2)], 2, id="not-what-jax-itself-holds"),
        pytest.param([script(gpu=1), script(gpu=2)], 1, id="the-innermost-call"),
        pytest.param([script("cuda", backend="gpu")], 3, id="a-platform-is-no-number"),
        pytest.param([script(epochs=2, count=1)], 3, id="nothing-in-the-calls"),
    ],
)
def test_number_of_the_calls_that_start_jax_else_of_the_words(calls, number):
    assert number_of_process(calls, ("--gpu", "3"), is_rank=False) == number


@pytest.mark.parametrize(("is_rank", "number"), [(True, 2), (False, 0)])
def test_local_rank_in_the_code_is_the_number_of_a_rank_alone(is_rank, number):
    assert number_of_process([script(local_rank=2)], (), is_rank=is_rank) == number


@pytest.mark.parametrize(
    ("number", "count", "gpus", "places"),
    [
        pytest.param(0, 1, 4, (0,), id="no-number"),
        pytest.param(2, 1, 4, (2,), id="one-gpu"),
        pytest.param(3, 2, 4, (3, 0), id="a-further-one-from-0-on"),
        pytest.param(1, 3, 4, (1, 0, 2), id="a-number-below-the-count"),
        pytest.param(1, 9, 4, (1, 0, 2, 3), id="a-count-above-the-gpus"),
        pytest.param(2, "all", 4, (2,), id="all"),
        pytest.param(2, 0, 4, (0,), id="no-gpu-wanted"),
        pytest.param(4, 1, 4, (0,), id="no-such-gpu"),
    ],
)
def test_places_of_the_claimed_gpus(number, count, gpus, places):
    assert places_of(number, count, gpus) == places


@pytest.mark.parametrize(
    ("claimed", "number", "shown"),
    [
        pytest.param((2,), 0, (2,), id="no-number"),
        pytest.param((2,), 2, (0, 1, 2), id="those-before-it-too"),
        pytest.param((0, 3), 3, (0, 1, 2, 3), id="of-two"),
        pytest.param((0,), 2, (0,), id="claimed-elsewhere"),
    ],
)
def test_gpus_that_jax_is_shown(claimed, number, shown):
    assert shown_ordinals(claimed, number) == shown
