"""Logical GPUs for the device names in a script, and the memory of each."""

import pytest

from autogpu.frameworks.model import Assignment
from autogpu.frameworks.tensorflow.settings import NOTHING_MADE, DevicePlacement, UserSettings, merge_settings
from autogpu.frozen import replace
from tests.support.values import limited_to

GIB = 1 << 30
WHOLE = dict.fromkeys(range(4), 10 * GIB)
TOTALS = dict.fromkeys(range(4), 16 * GIB)


def merged(settings, *ordinals, first=NOTHING_MADE, growth=True, **fields):
    assignment = Assignment(ordinals, growth, usable=WHOLE, totals=TOTALS, **fields)
    return merge_settings(replace(settings, gpu_count=4), assignment, ordinals, first)


def named(*numbers, **fields):
    return UserSettings(named=frozenset(numbers), **fields)


@pytest.mark.parametrize(
    ("settings", "count"),
    [
        (named(), 0),
        (named(2), 1),
        (named(0, 1, 3), 3),
        (named(0, 7), 1),
        pytest.param(named(0, 1, limits={0: (512.0, 512.0)}), 1, id="split-by-the-script"),
        pytest.param(named(0, 2, limits={0: (512.0, 512.0)}), 2, id="name-beyond-a-split-by-the-script"),
        pytest.param(named(0, 1, visible=(3,)), 1, id="one-visible-gpu"),
        pytest.param(named(0, 1, max_count=1), 1, id="device-count-of-1"),
    ],
)
def test_named_gpus_counts_the_gpus_that_device_names_refer_to(settings, count):
    assert replace(settings, gpu_count=4).named_gpus == count


@pytest.mark.parametrize(
    ("settings", "ordinals", "logical"),
    [
        pytest.param(named(2), (3,), (3, 3, 3), id="one-name"),
        pytest.param(named(0, 1), (3, 1), (3, 1), id="as-many-names-as-gpus"),
        pytest.param(named(0, 2), (3, 1), (3, 3, 1), id="gap-between-two-names"),
        pytest.param(named(2, 3), (3, 1), (3, 3, 3, 1), id="gap-before-two-names"),
        pytest.param(named(0, 1, 2, 3), (3, 1), (3, 3, 1, 1), id="more-names-than-gpus"),
        pytest.param(named(3), (3, 1), (3, 1, 1, 1), id="fewer-names-than-gpus"),
        pytest.param(named(9), (3,), (3,), id="name-that-raises-without-autogpu"),
        pytest.param(named(places_hard=True), (3,), (3, 3, 3, 3), id="hard-placement"),
    ],
)
def test_device_names_get_logical_gpus_spread_over_the_cards(settings, ordinals, logical):
    assert merged(settings, *ordinals).logical == logical


def test_placement_records_whether_the_script_set_its_limits():
    assert merged(named(1), 3).is_split_only
    assert merged(named(0, 1, limits={0: (3000.0,)}), 3).by_script


@pytest.mark.parametrize(
    ("settings", "ordinals", "parts"),
    [
        pytest.param(named(2), (3,), {3: (1.0, 1.0, 4094.0)}, id="one-name-after-two-unnamed"),
        pytest.param(named(0, 1), (3,), {3: (2048.0, 2048.0)}, id="all-gpus-named"),
        pytest.param(named(1, 3), (3,), {3: (1.0, 2047.0, 1.0, 2047.0)}, id="two-names-of-four"),
        pytest.param(named(0, 2), (3, 1), {3: (4095.0, 1.0), 1: (4096.0,)}, id="card-for-each-name"),
        pytest.param(named(3), (3, 1), {3: (4096.0,), 1: (1.0, 1.0, 4094.0)}, id="card-without-a-name"),
        pytest.param(named(2, leaves_unplaced=True), (3,), {3: (2047.0, 1.0, 2047.0)}, id="name-and-unplaced"),
        pytest.param(named(1, places_hard=True), (3,), {3: (1024.0,) * 4}, id="hard-placement-uses-all"),
    ],
)
@pytest.mark.parametrize("growth", [True, None])
def test_logical_gpus_that_the_script_uses_divide_the_limit(settings, ordinals, parts, growth):
    assert merged(settings, *ordinals, growth=growth, caps=dict.fromkeys(ordinals, limited_to(4 * GIB))).limits == parts


SPLIT = {"caps": {3: limited_to(1200 << 20)}, "logical_gpus": 2}
SHARED = {"ceilings": {3: limited_to(5 * GIB)}}


@pytest.mark.parametrize(
    ("settings", "fields", "parts"),
    [
        pytest.param(named(1), {}, (10240.0, 10240.0), id="whole-gpu-for-each-with-growth"),
        # The first logical GPU gets its part too, because unplaced operations run there.
        pytest.param(named(1), {"growth": None}, (5120.0, 5120.0), id="equal-parts-without-growth"),
        pytest.param(named(0, 1), {"growth": None}, (5120.0, 5120.0), id="equal-parts-for-two-names"),
        pytest.param(
            named(2), {"caps": {3: limited_to(1200 << 20)}, "logical_gpus": 2}, (800.0,) * 3, id="split-by-the-policy"
        ),
        pytest.param(named(0, 1, limits={0: (3000.0,)}), {}, (3000.0, 3000.0), id="script-limit-for-each-name"),
        pytest.param(named(1, fraction=0.25), {}, (4096.0, 4096.0), id="script-fraction-for-each-name"),
        pytest.param(named(fraction=0.9), SHARED, (5120.0,), id="ceiling-below-a-fraction"),
        pytest.param(named(limits={0: (8000.0,)}), SHARED, (5120.0,), id="ceiling-below-a-limit"),
        pytest.param(named(limits={0: (6000.0, 2000.0)}), SHARED, (3840.0, 1280.0), id="ceiling-below-a-split"),
        pytest.param(named(limits={0: (800.0,)}), SHARED, (800.0,), id="limit-below-the-ceiling"),
        pytest.param(named(0, 1, fraction=0.5), SHARED, (2560.0, 2560.0), id="ceiling-divided-among-two-fractions"),
        pytest.param(named(1), SHARED, (2560.0, 2560.0), id="ceiling-divided-among-two-names"),
    ],
)
def test_memory_is_divided_among_the_logical_gpus_of_one_card(settings, fields, parts):
    placement = merged(settings, 3, **fields)
    assert (placement.limits, placement.fraction) == ({3: parts}, 0.0)


def test_later_session_keeps_the_logical_gpus_of_the_first():
    first = merged(named(0, 2), 3, 1)
    assert first.logical == (3, 3, 1)
    second = merged(named(0, 3), 3, 1, first=first)
    assert (second.logical, second.limits) == (first.logical, first.limits)


def test_logical_gpus_are_made_even_if_memory_sizes_are_unknown():
    assignment = Assignment((3,), True)
    assert merge_settings(named(1, gpu_count=4), assignment, (3,)).logical == (3, 3)


def test_settings_for_a_gpu_number_apply_to_the_number_that_replaces_it():
    settings = UserSettings(visible=(2,), limits={0: (512.0,), 2: (1024.0,)}, growths={0: False, 2: True})
    moved = settings.on_moved({2: 0, 0: 1, 1: 2})
    assert (moved.visible, moved.limits, moved.growths) == ((0,), {1: (512.0,), 0: (1024.0,)}, {1: False, 0: True})
    assert settings.on_moved({}) == settings


def test_two_numbers_on_one_gpu_become_logical_gpus_there():
    placement = merged(UserSettings(visible=(0, 1, 2)).on_moved({0: 3, 1: 3, 2: 1}), 3, 1)
    assert (placement.ordinals, len(placement.logical)) == ((3, 1), 3)


def test_placement_without_gpus_has_no_logical_gpus():
    assert merged(named(0, 1)) == DevicePlacement((), growth=True)
