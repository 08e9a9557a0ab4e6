"""Merging the settings of a script with the GPUs and limits that autogpu assigns."""

from types import SimpleNamespace

import pytest

from autogpu.frameworks.model import Assignment
from autogpu.frameworks.tensorflow.settings import (
    DevicePlacement,
    UserSettings,
    asked_count,
    has_invalid_list,
    listed_ordinals,
    merge_settings,
    read_user_settings,
    usage_of,
    user_growth,
)
from autogpu.frozen import replace
from tests.support.values import limited_to

GIB = 1 << 30


def limited(*gib, logical_gpus=1):
    """Return an assignment of the first GPUs, each with a limit in GiB."""
    caps = {ordinal: limited_to(int(size * GIB)) for ordinal, size in enumerate(gib)}
    return Assignment(tuple(caps), True, caps, logical_gpus)


@pytest.mark.parametrize(
    ("text", "ordinals"),
    [
        ("2", (2,)),
        ("1, 0", (1, 0)),
        ("+1", (1,)),
        ("", None),
        ("-1", None),
        ("4", None),
        ("0,9", None),
        ("1,01", None),
        ("x", None),
        ("\u0661", None),
        ("9" * 5000, None),
    ],
)
def test_visible_device_list_is_read_as_tensorflow_reads_it(text, ordinals):
    proto = SimpleNamespace(gpu_options=SimpleNamespace(visible_device_list=text))
    assert listed_ordinals(proto, 4) == ordinals
    assert has_invalid_list(proto, 4) == (bool(text) and ordinals is None)


@pytest.mark.parametrize(("counts", "asked"), [({}, None), ({"GPU": 2}, 2), ({"GPU": 0}, 0), ({"GPU": -1}, None)])
def test_device_count_is_read_as_tensorflow_reads_it(counts, asked):
    assert asked_count(SimpleNamespace(device_count=counts)) == asked


OTHER_LIMITED = UserSettings(visible=(1,), limits={0: (1024.0,)}, limits_exclude_growth=True)
SPLIT = {1: (1024.0, 1024.0), 0: (1024.0, 1024.0)}
BY_FRACTION = DevicePlacement((0,), growth=True, fraction=0.5, by_script=True)
FILLED = {
    "no-settings": (UserSettings(), Assignment((2,), True), (2,), DevicePlacement((2,), growth=True)),
    "cap-rounded-down": (UserSettings(), limited(1.00099), (0,), DevicePlacement((0,), {0: (1025.0,)}, growth=True)),
    "split-of-each-gpu": (UserSettings(), limited(1, 1, logical_gpus=2), (1, 0), DevicePlacement((1, 0), SPLIT, True)),
    "fraction-replaces-limits-and-grows": (UserSettings(fraction=0.5), limited(2), (0,), BY_FRACTION),
    "limit-on-another-gpu": (OTHER_LIMITED, limited(2, 2), (), DevicePlacement((1,), {1: (2048.0,)}, growth=True)),
}


@pytest.mark.parametrize(("settings", "assignment", "allowed", "placement"), FILLED.values(), ids=FILLED)
def test_unset_settings_come_from_the_assignment(settings, assignment, allowed, placement):
    assert merge_settings(settings, assignment, allowed) == placement


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        pytest.param(UserSettings(visible=(3, 1)), (3, 1), id="visible-gpus"),
        pytest.param(UserSettings(visible=()), (), id="no-visible-gpu"),
        pytest.param(UserSettings(max_count=1), (2,), id="device-count-of-1"),
        pytest.param(UserSettings(max_count=9), (2, 0), id="device-count-above-the-assigned"),
    ],
)
def test_script_keeps_its_own_choice_of_gpus(settings, expected):
    assert merge_settings(settings, Assignment((2, 0), True), (2, 0)).ordinals == expected


ONE_LIMIT = UserSettings(limits={0: (1024.0,)})


@pytest.mark.parametrize(
    ("settings", "assignment", "expected"),
    [
        pytest.param(ONE_LIMIT, limited(2), {0: (1024.0,)}, id="script-limit-instead-of-the-policys"),
        pytest.param(ONE_LIMIT, Assignment((2,)), {2: (1024.0,)}, id="limit-moves-to-the-chosen-gpu"),
        pytest.param(ONE_LIMIT, limited(2, 2), {0: (1024.0,), 1: (2048.0,)}, id="policy-limit-on-the-other-gpus"),
        pytest.param(
            UserSettings(limits={0: (512.0, 512.0)}),
            Assignment((2, 3)),
            {2: (512.0, 512.0)},
            id="split-on-the-first-of-two-gpus",
        ),
        pytest.param(
            replace(ONE_LIMIT, visible=(0, 1)), Assignment(None), {0: (1024.0,)}, id="visible-gpus-keep-their-limits"
        ),
        pytest.param(UserSettings(limits={0: (1.0,), 1: (2.0,)}), Assignment((2,)), {}, id="two-limits-do-not-move"),
    ],
)
def test_script_limit_applies_to_the_gpu_that_it_is_meant_for(settings, assignment, expected):
    allowed = assignment.ordinals if settings.visible is None else settings.visible
    assert merge_settings(settings, assignment, allowed).limits == expected


@pytest.mark.parametrize(
    ("fields", "assignment", "allowed", "growth"),
    [
        ({"limits_exclude_growth": True}, Assignment((0,), True), (0,), None),
        ({"limits_exclude_growth": True}, limited(2, 2), (0, 1), True),
        ({"limits_exclude_growth": True, "visible": (0, 1)}, Assignment(None, True), (0, 1), True),
        ({}, Assignment((0,), True), (0,), True),
    ],
    ids=["limit-by-tf.config", "policy-limit-on-another-gpu", "no-limit-on-another-gpu", "limit-by-a-proto"],
)
def test_limit_by_tf_config_on_every_gpu_excludes_growth(fields, assignment, allowed, growth):
    assert merge_settings(replace(ONE_LIMIT, **fields), assignment, allowed).growth is growth


@pytest.mark.parametrize(
    ("growths", "ordinals", "expected"),
    [
        ({}, (0,), None),
        ({0: True}, (2,), True),
        ({0: False}, (0, 1), False),
        ({0: True, 1: False}, (1,), False),
        ({0: True, 1: False}, (2,), None),
        ({0: True, 1: False}, (0, 1), None),
    ],
    ids=["not-set", "moves-to-chosen-gpu", "applies-to-all", "set-for-chosen-gpu", "contradictory", "differs-per-gpu"],
)
def test_growth_set_for_one_gpu_applies_to_the_scripts_gpus(growths, ordinals, expected):
    assert user_growth(growths, ordinals) is expected


@pytest.mark.parametrize(
    ("settings", "made", "fixed", "expected"),
    [
        pytest.param(UserSettings(), (1,), False, (1, 0), id="first-gpu-stays-gpu-0"),
        pytest.param(UserSettings(visible=(0,)), (1,), False, (1,), id="gpu-0-means-the-first-gpu"),
        pytest.param(UserSettings(visible=(0, 1)), (1,), False, (1, 0), id="visible-gpus-keep-the-first-order"),
        pytest.param(UserSettings(visible=(3,)), (1,), False, (3,), id="number-that-raises-without-autogpu"),
        pytest.param(UserSettings(max_count=1), (1, 0), False, (1,), id="device-count-below-the-first"),
        pytest.param(UserSettings(), (0,), True, (0,), id="no-gpu-can-be-added"),
        pytest.param(UserSettings(visible=(0, 1)), (1,), True, (1,), id="no-visible-gpu-can-be-added"),
        pytest.param(UserSettings(), (), True, (0, 1), id="first-session-of-a-fixed-topology"),
    ],
)
def test_sessions_of_a_process_number_the_gpus_alike(settings, made, fixed, expected):
    placement = merge_settings(settings, Assignment((0, 1)), (0, 1), DevicePlacement(made), topology_fixed=fixed)
    assert placement.ordinals == expected


def test_later_session_keeps_the_first_split_of_a_gpu():
    made = DevicePlacement((0, 1), {0: (1024.0, 1024.0), 1: (1024.0, 1024.0)})
    later = merge_settings(UserSettings(fraction=0.3), limited(1, 1, logical_gpus=2), (0, 1), made)
    assert later.logical == made.logical
    first = DevicePlacement((0, 1), fraction=0.3)
    assert merge_settings(UserSettings(), limited(1, 1, logical_gpus=2), (0, 1), first).logical == (0, 1)


@pytest.mark.parametrize(
    ("fields", "entries", "expected"),
    [
        pytest.param({}, [], {}, id="none"),
        pytest.param({"device_count": {"GPU": 3}}, [], {"max_count": 3}, id="device-count"),
        pytest.param({"allow_growth": True}, [], {"growths": {0: True, 1: True}}, id="growth"),
        pytest.param({"per_process_gpu_memory_fraction": 0.3}, [], {"fraction": 0.3}, id="fraction"),
        # TensorFlow requires as many GPUs as entries.
        pytest.param({}, [[768]], {"max_count": 1, "limits": {0: (768,)}}, id="entry"),
        pytest.param({}, [[512, 256], []], {"visible": (0, 1), "limits": {0: (512, 256)}}, id="entry-for-each-gpu"),
        pytest.param(
            {"visible_device_list": "1,0"},
            [[768], [512]],
            {"visible": (1, 0), "limits": {1: (768,), 0: (512,)}},
            id="entry-for-each-listed-gpu",
        ),
    ],
)
def test_settings_are_read_from_a_proto(fields, entries, expected):
    options = {"visible_device_list": "", "allow_growth": False, "per_process_gpu_memory_fraction": 0.0, **fields}
    virtual = SimpleNamespace(virtual_devices=[SimpleNamespace(memory_limit_mb=limits) for limits in entries])
    proto = SimpleNamespace(
        device_count=options.pop("device_count", {}), gpu_options=SimpleNamespace(experimental=virtual, **options)
    )
    assert read_user_settings(proto, 2) == UserSettings(gpu_count=2, **expected)


def test_settings_in_a_proto_override_those_in_tf_config():
    proto = UserSettings(fraction=0.5)
    config = UserSettings(visible=(1,), growths={0: True}, limits={0: (1.0,)}, limits_exclude_growth=True)
    assert proto.over(config) == UserSettings(visible=(1,), growths={0: True}, fraction=0.5)
    assert UserSettings(max_count=1).over(config) == UserSettings(
        visible=(1,), max_count=1, growths={0: True}, limits={0: (1.0,)}, limits_exclude_growth=True
    )


@pytest.mark.parametrize(
    ("placement", "words"),
    [
        (DevicePlacement((0,)), "allocated as needed"),
        (DevicePlacement((0,), {0: (2048.0,)}), "limited to 2048 MiB, allocated as needed"),
        (DevicePlacement((0,), {0: (5.0,)}, by_script=True), "limited by the script to 5 MiB, allocated as needed"),
        (DevicePlacement((0,), {0: (1024.0, 512.0)}), "limited to 1024 + 512 MiB (logical GPUs), allocated as needed"),
        (DevicePlacement((1, 0), {0: (2048.0,), 1: (2048.0,)}), "limited to 2048 MiB on each, allocated as needed"),
        (
            DevicePlacement((2, 0, 1), {0: (4608.0,), 1: (512.0, 512.0)}),
            "limited on 2 of 3 GPUs, to 1024 MiB or more, allocated as needed",
        ),
        (DevicePlacement((0,), fraction=0.3), "limited by the script to 30% of each GPU, allocated as needed"),
    ],
)
def test_message_describes_the_memory_of_a_placement(placement, words):
    assert usage_of(placement, allow_growth=True).memory == words
