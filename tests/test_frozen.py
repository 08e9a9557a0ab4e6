"""Values are as frozen, comparable and strict as those of ``dataclasses``."""

from __future__ import annotations

import pytest

from autogpu.frozen import Value, replace


class Reading(Value):
    """Two fields, the second with a default, and a property."""

    index: int
    used_bytes: int | None = None

    @property
    def is_known(self):
        return self.used_bytes is not None


class Titled(Value):
    """A value with its own ``str`` and ``repr``."""

    text: str

    def __str__(self):
        return self.text

    def __repr__(self):
        return "mine"


class Shared(Reading):
    """A subclass with one more field."""

    owner: str = "anna"


def test_a_frozen_subclass_adds_fields():
    assert Shared(1, owner="bob") == Shared(1, None, "bob") != Shared(1)
    assert Shared(1) != Reading(1)
    assert (Shared(1).owner, Shared(1).is_known, replace(Shared(1, 2), owner="bob").used_bytes) == ("anna", False, 2)


def test_fields_are_set_by_position_or_by_name():
    assert Reading(1, 2) == Reading(index=1, used_bytes=2) == Reading(1, used_bytes=2)
    assert (Reading(1).used_bytes, Reading(1, 2).is_known) == (None, True)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        pytest.param((), {}, id="missing"),
        pytest.param((1, 2, 3), {}, id="too-many"),
        pytest.param((1,), {"index": 1}, id="twice"),
        pytest.param((1,), {"used": 1}, id="unknown"),
    ],
)
def test_wrong_fields_raise_an_error_that_lists_the_right_ones(given, named):
    with pytest.raises(TypeError, match=r"Reading takes each of index, used_bytes exactly once"):
        Reading(*given, **named)


def test_nothing_can_be_assigned_or_deleted():
    reading = Reading(1)
    with pytest.raises(AttributeError, match="Reading is a value"):
        setattr(reading, "index", 2)  # noqa: B010  (mypy rejects a plain assignment)
    with pytest.raises(AttributeError, match="Reading is a value"):
        del reading.index
    assert reading == Reading(1)


def test_equal_values_are_one_dict_key_and_replace_returns_a_copy():
    assert {Reading(1): "a", Reading(1, None): "b"} == {Reading(1): "b"}
    assert Reading(1) != Reading(2)
    assert Reading(1) != Titled("1")
    reading = Reading(1, 2)
    assert (replace(reading, used_bytes=3), reading) == (Reading(1, 3), Reading(1, 2))
    with pytest.raises(TypeError, match="missing or unknown: colour"):
        replace(reading, colour="red")


def test_repr_lists_the_fields_unless_the_class_defines_its_own():
    assert [repr(Reading(1, 2)), repr(Titled("a"))] == ["Reading(index=1, used_bytes=2)", "mine"]
