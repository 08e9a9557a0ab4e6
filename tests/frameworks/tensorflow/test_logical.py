"""Logical GPUs for the names of a script, and the memory of each."""

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
        pytest.param(named(0, 1, limits={0: (512.0, 512.0)}), 1, id="its-own-split"),
        pytest.param(named(0, 2, limits={0: (512.0, 512.0)}), 2, id="beside-its-own-split"),
        pytest.param(named(0, 1, visible=(3,)), 1, id="it-made-one-visible"),
        pytest.param(named(0, 1, max_count=1), 1, id="it-asked-for-one"),
    ],
)
def test_on_how_many_gpus_the_names_would_be(settings, count):
    assert replace(settings, gpu_count=4).named_gpus == count


@pytest.mark.parametrize(
    ("settings", "ordinals", "logical"),
    [
        pytest.param(named(2), (3,), (3, 3, 3), id="one-named"),
        pytest.param(named(0, 1), (3, 1), (3, 1), id="as-many-as-there-are"),
        pytest.param(named(0, 2), (3, 1), (3, 3, 1), id="a-gap"),
        pytest.param(named(2, 3), (3, 1), (3, 3, 3, 1), id="a-gap-in-front"),
        pytest.param(named(0, 1, 2, 3), (3, 1), (3, 3, 1, 1), id="more-than-there-are"),
        pytest.param(named(3), (3, 1), (3, 1, 1, 1), id="fewer-than-there-are"),
        pytest.param(named(9), (3,), (3,), id="what-raises-without-autogpu-too"),
        pytest.param(named(places_hard=True), (3,), (3, 3, 3, 3), id="nothing-is-placed-softly"),
    ],
)
def test_each_name_has_a_logical_gpu_and_different_names_different_gpus(settings, ordinals, logical):
    assert merged(settings, *ordinals).logical == logical


def test_whose_limits_they_are_is_known():
    assert merged(named(1), 3).is_split_only
    assert merged(named(0, 1, limits={0: (3000.0,)}), 3).by_script


@pytest.mark.parametrize(
    ("settings", "ordinals", "parts"),
    [
        pytest.param(named(2), (3,), {3: (1.0, 1.0, 4094.0)}, id="one-named"),
        pytest.param(named(0, 1), (3,), {3: (2048.0, 2048.0)}, id="all-named"),
        pytest.param(named(1, 3), (3,), {3: (1.0, 2047.0, 1.0, 2047.0)}, id="two-of-four"),
        pytest.param(named(0, 2), (3, 1), {3: (4095.0, 1.0), 1: (4096.0,)}, id="a-card-each"),
        pytest.param(named(3), (3, 1), {3: (4096.0,), 1: (1.0, 1.0, 4094.0)}, id="a-card-without-a-name"),
        pytest.param(named(2, leaves_unplaced=True), (3,), {3: (2047.0, 1.0, 2047.0)}, id="beside-what-names-none"),
        pytest.param(named(1, places_hard=True), (3,), {3: (1024.0,) * 4}, id="what-may-be-named-yet"),
    ],
)
@pytest.mark.parametrize("growth", [True, None])
def test_the_logical_gpus_that_are_used_divide_a_limit(settings, ordinals, parts, growth):
    assert merged(settings, *ordinals, growth=growth, caps=dict.fromkeys(ordinals, limited_to(4 * GIB))).limits == parts


SPLIT = {"caps": {3: limited_to(1200 << 20)}, "logical_gpus": 2}
SHARED = {"ceilings": {3: limited_to(5 * GIB)}}


@pytest.mark.parametrize(
    ("settings", "fields", "parts"),
    [
        pytest.param(named(1), {}, (10240.0, 10240.0), id="all-that-there-is"),
        # Whatever is named, what is placed nowhere goes to the first.
        pytest.param(named(1), {"growth": None}, (5120.0, 5120.0), id="equal-parts-without-growth"),
        pytest.param(named(0, 1), {"growth": None}, (5120.0, 5120.0), id="equal-parts-of-what-is-named"),
        pytest.param(
            named(2), {"caps": {3: limited_to(1200 << 20)}, "logical_gpus": 2}, (800.0,) * 3, id="a-policys-own-split"
        ),
        pytest.param(named(0, 1, limits={0: (3000.0,)}), {}, (3000.0, 3000.0), id="the-scripts-limit-for-each-name"),
        pytest.param(named(1, fraction=0.25), {}, (4096.0, 4096.0), id="the-scripts-fraction-for-each-name"),
        pytest.param(named(fraction=0.9), SHARED, (5120.0,), id="a-ceiling-on-a-fraction"),
        pytest.param(named(limits={0: (8000.0,)}), SHARED, (5120.0,), id="on-a-limit"),
        pytest.param(named(limits={0: (6000.0, 2000.0)}), SHARED, (3840.0, 1280.0), id="on-a-split"),
        pytest.param(named(limits={0: (800.0,)}), SHARED, (800.0,), id="less-than-the-ceiling"),
        pytest.param(named(0, 1, fraction=0.5), SHARED, (2560.0, 2560.0), id="on-all-logical-gpus-of-a-card"),
        pytest.param(named(1), SHARED, (2560.0, 2560.0), id="on-names-alone"),
    ],
)
def test_the_memory_of_the_logical_gpus_of_one_card(settings, fields, parts):
    placement = merged(settings, 3, **fields)
    assert (placement.limits, placement.fraction) == ({3: parts}, 0.0)


def test_a_later_session_has_what_there_is():
    first = merged(named(0, 2), 3, 1)
    assert first.logical == (3, 3, 1)
    second = merged(named(0, 3), 3, 1, first=first)
    assert (second.logical, second.limits) == (first.logical, first.limits)


def test_unknown_memory_is_no_obstacle():
    assignment = Assignment((3,), True)
    assert merge_settings(named(1, gpu_count=4), assignment, (3,)).logical == (3, 3)


def test_settings_follow_a_number_to_its_gpu():
    settings = UserSettings(visible=(2,), limits={0: (512.0,), 2: (1024.0,)}, growths={0: False, 2: True})
    moved = settings.on_moved({2: 0, 0: 1, 1: 2})
    assert (moved.visible, moved.limits, moved.growths) == ((0,), {1: (512.0,), 0: (1024.0,)}, {1: False, 0: True})
    assert settings.on_moved({}) == settings


def test_numbers_on_one_gpu_are_logical_gpus_there():
    placement = merged(UserSettings(visible=(0, 1, 2)).on_moved({0: 3, 1: 3, 2: 1}), 3, 1)
    assert (placement.ordinals, len(placement.logical)) == ((3, 1), 3)


def test_a_placement_without_gpus_has_no_logical_ones():
    assert merged(named(0, 1)) == DevicePlacement((), growth=True)
