"""Frozen values for the modules that run in a user's process.

They read and behave like ``dataclasses.dataclass(frozen=True)``, which compiles the source of five functions for each
class and imports ``inspect``: for all classes that a decision needs that took 20 of its 60 ms.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypeVar

    from typing_extensions import dataclass_transform as _typed_like_a_dataclass

    Value = TypeVar("Value")
else:

    def _typed_like_a_dataclass(**_: bool) -> object:
        return lambda decorator: decorator


_NAMES = "_autogpu_fields"


@_typed_like_a_dataclass(frozen_default=True)
def frozen(cls: type[Value]) -> type[Value]:
    """Make ``cls`` a value of the fields that its annotations name: comparable, and without assignment.

    Hashable where every field is, as with ``dataclasses``. A default is shared by all values, so it has to be a value
    itself. A subclass inherits the fields, and adds some if it is made ``frozen`` itself.
    """
    inherited: tuple[str, ...] = getattr(cls, _NAMES, ())
    names = inherited + tuple(cls.__annotations__)
    setattr(cls, _NAMES, names)
    known = frozenset(names)
    defaults = {name: getattr(cls, name) for name in names if hasattr(cls, name)}

    def __init__(self: Value, *given: object, **named: object) -> None:
        # A host with a thousand leases makes thousands of values, nearly all of them with every field by its name.
        if not given and named.keys() == known:
            self.__dict__.update(named)
            return
        fields = {**defaults, **dict(zip(names, given)), **named}
        is_twice = given and not named.keys().isdisjoint(names[: len(given)])
        if fields.keys() != known or len(given) > len(names) or is_twice:
            wrong = ", ".join(sorted(fields.keys() ^ known)) or "none"
            raise TypeError(f"{cls.__name__} takes each once of {', '.join(names)}; missing or unknown: {wrong}")
        self.__dict__.update(fields)

    def __repr__(self: Value) -> str:
        return f"{cls.__name__}({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"

    def __eq__(self: Value, other: object) -> bool:
        return self.__dict__ == other.__dict__ if other.__class__ is self.__class__ else NotImplemented

    def __hash__(self: Value) -> int:
        return hash(tuple(getattr(self, name) for name in names))

    def __setattr__(self: Value, name: str, value: object) -> None:
        raise AttributeError(f"{cls.__name__} is a value: make another one with replace(…, {name}=…)")

    def __delattr__(self: Value, name: str) -> None:
        raise AttributeError(f"{cls.__name__} is a value: {name} can't be deleted")

    for method in (__init__, __repr__, __eq__, __hash__, __setattr__, __delattr__):
        # A method that the class defines itself is kept.
        if method.__name__ not in cls.__dict__ or (method.__name__ == "__hash__" and cls.__hash__ is None):
            setattr(cls, method.__name__, method)
    return cls


def replace(value: Value, **changes: object) -> Value:
    return value.__class__(**{**value.__dict__, **changes})
