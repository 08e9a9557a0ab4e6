"""Frozen values for the modules that run in a user's process.

They are written and behave like ``dataclasses.dataclass(frozen=True)``. ``dataclasses`` imports ``inspect`` and
compiles the source of five functions for each class. For the classes of one decision, both together took 20 of 60 ms.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import ClassVar, TypeVar

    from typing_extensions import dataclass_transform as _typed_like_a_dataclass

    AnyValue = TypeVar("AnyValue", bound="Value")
else:

    def _typed_like_a_dataclass(**_: bool) -> object:
        return lambda cls: cls


@_typed_like_a_dataclass(frozen_default=True)
class Value:
    """Base of the immutable value classes. The annotations of a subclass are its fields.

    Two values are equal if their class and fields are. A value is hashable if every field is, as with ``dataclasses``.
    All values share a default, so a default must be immutable. A subclass also has the fields of its base.
    """

    if TYPE_CHECKING:
        _fields: ClassVar[dict[str, str]]  # annotations are text in every module of ours
        _defaults: ClassVar[dict[str, object]]

    def __init_subclass__(cls) -> None:
        cls._fields = {**getattr(cls, "_fields", {}), **cls.__annotations__}
        cls._defaults = {name: getattr(cls, name) for name in cls._fields if hasattr(cls, name)}

    def __init__(self, *given: object, **named: object) -> None:
        names = self._fields.keys()
        # Skip the checks if every field is passed by name. Nearly all values are made like that, and a host with a
        # thousand leases makes thousands of them.
        if given or named.keys() != names:
            placed = dict(zip(names, given))
            is_once = len(placed) == len(given) and placed.keys().isdisjoint(named)
            named = {**self._defaults, **placed, **named}
            if named.keys() != names or not is_once:
                wrong = ", ".join(sorted(named.keys() ^ names)) or "none"
                what = f"{self.__class__.__name__} takes each of {', '.join(names)} exactly once"
                raise TypeError(f"{what}; missing or unknown: {wrong}")
        self.__dict__.update(named)

    def __repr__(self) -> str:
        return f"{self.__class__.__name__}({', '.join(f'{name}={getattr(self, name)!r}' for name in self._fields)})"

    def __eq__(self, other: object) -> bool:
        return self.__dict__ == other.__dict__ if other.__class__ is self.__class__ else NotImplemented

    def __hash__(self) -> int:
        return hash(tuple(getattr(self, name) for name in self._fields))

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{self.__class__.__name__} is a value: make another one with replace(…, {name}=…)")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{self.__class__.__name__} is a value: {name} can't be deleted")


def replace(value: AnyValue, **changes: object) -> AnyValue:
    return value.__class__(**{**value.__dict__, **changes})
