"""What a script says about its GPUs and what is granted, merged."""

from __future__ import annotations

import pytest

from autogpu.frameworks.model import Grant
from autogpu.frameworks.tensorflow.proto import usage
from autogpu.frameworks.tensorflow.settings import Layout, Said, said_growth, settled

GIB = 1 << 30


def limited(*gib, logical_gpus=1):
    """A grant of the first GPUs, each with that limit."""
    caps = {ordinal: int(size * GIB) for ordinal, size in enumerate(gib)}
    return Grant(tuple(caps), True, caps, logical_gpus)


def test_what_is_not_said_is_filled():
    assert settled(Said(), Grant((2,), True), (2,)) == Layout((2,), growth=True)
    assert settled(Said(), limited(2), (0,)) == Layout((0,), {0: (2048.0,)}, growth=True)


def test_a_cap_is_whole_megabytes_and_never_rounded_up():
    assert settled(Said(), limited(1.00099), (0,)).limits == {0: (1025.0,)}


def test_virtual_gpus_split_each_granted_one():
    layout = settled(Said(), limited(1, 1, logical_gpus=2), (1, 0))
    assert layout.limits == {1: (1024.0, 1024.0), 0: (1024.0, 1024.0)}
    assert layout.logical == (1, 1, 0, 0)


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        pytest.param(Said(visible=(3, 1)), (3, 1), id="named-gpus"),
        pytest.param(Said(visible=()), (), id="none-of-them"),
        pytest.param(Said(at_most=1), (2,), id="as-many"),
        pytest.param(Said(at_most=9), (2, 0), id="more-than-granted"),
    ],
)
def test_the_scripts_choice_holds(said, expected):
    assert settled(said, Grant((2, 0), True), (2, 0)).ordinals == expected


def test_a_fraction_excludes_limits_and_grows():
    layout = settled(Said(fraction=0.5), limited(2), (0,))
    assert layout == Layout((0,), growth=True, fraction=0.5)


@pytest.mark.parametrize(
    ("said", "grant", "expected"),
    [
        pytest.param(Said(limits={0: (1024.0,)}), limited(2), {0: (1024.0,)}, id="the-scripts-limit"),
        pytest.param(Said(limits={0: (1024.0,)}), Grant((2,)), {2: (1024.0,)}, id="follows-the-pick"),
        pytest.param(
            Said(limits={0: (1024.0,)}), Grant((0, 1)), {0: (1024.0,), 1: (1024.0,)}, id="leaves-none-uncapped"
        ),
        pytest.param(
            Said(limits={0: (512.0, 512.0)}),
            Grant((2, 3)),
            {2: (512.0, 512.0), 3: (1024.0,)},
            id="a-split-on-one-is-a-sum-on-the-others",
        ),
        pytest.param(
            Said(limits={0: (1024.0,)}), limited(2, 2), {0: (1024.0,), 1: (2048.0,)}, id="the-policys-on-the-others"
        ),
        pytest.param(
            Said(limits={0: (1024.0,)}, visible=(0, 1)), Grant(None), {0: (1024.0,)}, id="named-gpus-keep-their-own"
        ),
        pytest.param(Said(limits={0: (1.0,), 1: (2.0,)}), Grant((2,)), {}, id="two-limits-name-two-gpus"),
    ],
)
def test_a_limit_of_the_script(said, grant, expected):
    frame = grant.ordinals if said.visible is None else said.visible
    assert settled(said, grant, frame).limits == expected


def test_a_limit_by_tf_config_is_taken_at_once_unless_the_policy_limits_others():
    said = Said(limits={0: (1024.0,)}, limits_exclude_growth=True)
    assert settled(said, Grant((0,), True), (0,)).growth is None
    assert settled(said, limited(2, 2), (0, 1)).growth is True
    assert settled(Said(limits={0: (1024.0,)}), Grant((0,), True), (0,)).growth is True


def test_named_gpus_without_a_limit_grow_beside_one_that_has_one():
    said = Said(visible=(0, 1), limits={0: (1024.0,)}, limits_exclude_growth=True)
    assert settled(said, Grant(None, True), (0, 1)).growth is True


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
    ids=["nothing", "meant-for-the-pick", "meant-for-all", "of-the-pick", "contradictory", "different"],
)
def test_growth_said_for_one_gpu(growths, ordinals, expected):
    assert said_growth(growths, ordinals) is expected


@pytest.mark.parametrize(
    ("said", "made", "expected"),
    [
        pytest.param(Said(), (1,), (1, 0), id="the-first-is-gpu-0-for-good"),
        pytest.param(Said(visible=(0,)), (1,), (1,), id="gpu-0-is-the-first"),
        pytest.param(Said(visible=(0, 1)), (1,), (1, 0), id="all-in-the-first-ones-order"),
        pytest.param(Said(visible=(3,)), (1,), (3,), id="another-raises-without-us-as-well"),
        pytest.param(Said(at_most=1), (1, 0), (1,), id="a-part-of-it"),
    ],
)
def test_a_process_has_one_map_of_gpus(said, made, expected):
    assert settled(said, Grant((0, 1)), (0, 1), Layout(made)).ordinals == expected


def test_where_a_process_cannot_add_gpus_the_first_ones_are_all():
    grant = Grant((0, 1))
    assert settled(Said(), grant, (0, 1), Layout((0,)), is_final=True).ordinals == (0,)
    assert settled(Said(visible=(0, 1)), grant, (0, 1), Layout((1,)), is_final=True).ordinals == (1,)
    assert settled(Said(), grant, (0, 1), is_final=True).ordinals == (0, 1)


def test_the_first_split_of_a_gpu_stands():
    made = Layout((0, 1), {0: (1024.0, 1024.0), 1: (1024.0, 1024.0)})
    later = settled(Said(fraction=0.3), limited(1, 1, logical_gpus=2), (0, 1), made)
    assert later.logical == made.logical
    first = Layout((0, 1), fraction=0.3)
    assert settled(Said(), limited(1, 1, logical_gpus=2), (0, 1), first).logical == (0, 1)


def test_words_in_a_proto_stand_above_those_in_tf_config():
    proto = Said(fraction=0.5)
    config = Said(visible=(1,), growths={0: True}, limits={0: (1.0,)}, limits_exclude_growth=True)
    assert proto.over(config) == Said(visible=(1,), growths={0: True}, fraction=0.5)
    assert Said(at_most=1).over(config) == Said(
        visible=(1,), at_most=1, growths={0: True}, limits={0: (1.0,)}, limits_exclude_growth=True
    )


def test_a_limit_on_a_gpu_that_was_not_chosen_in_the_end_says_nothing_about_growth():
    said = Said(visible=(1,), limits={0: (1024.0,)}, limits_exclude_growth=True)
    assert settled(said, limited(2, 2), ()) == Layout((1,), {1: (2048.0,)}, growth=True)


@pytest.mark.parametrize(
    ("layout", "words"),
    [
        (Layout((0,)), "allocated as needed"),
        (Layout((0,), {0: (2048.0,)}), "limited to 2048 MiB, allocated as needed"),
        (Layout((0,), {0: (1024.0, 512.0)}), "limited to 1024 + 512 MiB, allocated as needed"),
        (Layout((1, 0), {0: (2048.0,), 1: (2048.0,)}), "limited to 2048 MiB on each, allocated as needed"),
        (
            Layout((2, 0, 1), {0: (4608.0,), 1: (512.0, 512.0)}),
            "limited, in this order, to none, 4608 MiB, 512 + 512 MiB, allocated as needed",
        ),
        (Layout((0,), fraction=0.3), "limited to 30% of each GPU, allocated as needed"),
    ],
)
def test_what_is_taken_in_words(layout, words):
    assert usage(layout, allow_growth=True).memory == words
