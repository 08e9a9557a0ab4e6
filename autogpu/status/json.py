"""A :class:`autogpu.status.model.HostStatus` to JSON and back; described in ``docs/status.schema.json``."""

from __future__ import annotations

import dataclasses
from typing import Any, Mapping

from autogpu.status import model
from autogpu.status.model import HostStatus

# Grows when a field changes its meaning or goes, not when one is added.
VERSION = 1

_MODELS = {name: kind for name, kind in vars(model).items() if dataclasses.is_dataclass(kind)}
_SCALARS: Mapping[str, tuple[type, ...]] = {"str": (str,), "bool": (bool,), "int": (int,), "float": (int, float)}
_OR_NONE = " | None"

# Above every size and every span; what is larger could not even be printed as a float.
_TOO_LARGE = 1 << 63


def to_json(status: HostStatus) -> dict[str, object]:
    """``status`` in types that JSON has."""
    return {"version": VERSION, **dataclasses.asdict(status)}


def from_json(values: Mapping[str, Any]) -> HostStatus:
    """The status that :func:`to_json` gave, here or on another host; fields that this version lacks are ignored, and
    those that an older one lacks have their defaults.

    Raises:
        ValueError: It is no status of a version that this one can read.
    """
    if values.get("version") != VERSION:
        raise ValueError(f"this is not version {VERSION} of what `autogpu status --json` prints")
    try:
        status: HostStatus = _object(HostStatus, values)
    except (KeyError, TypeError, AttributeError) as error:
        why = f"it has no {error.args[0]}" if isinstance(error, KeyError) else error
        raise ValueError(f"this is not what `autogpu status --json` prints: {why}") from None
    return status


def _object(kind: Any, plain: Mapping[str, Any]) -> Any:
    # A field that came later has a default, for the hosts whose autogpu does not have it yet.
    fields = [f for f in dataclasses.fields(kind) if f.name in plain or f.default is dataclasses.MISSING]
    return kind(**{field.name: _value(str(field.type), plain[field.name], field.name) for field in fields})


def _value(kind: str, plain: Any, name: str) -> Any:
    """``plain`` as the model's annotation ``kind`` says: another host may have sent anything."""
    if kind.endswith(_OR_NONE):
        return None if plain is None else _value(kind[: -len(_OR_NONE)], plain, name)
    if kind.startswith("tuple["):
        if not isinstance(plain, (list, tuple)):
            raise TypeError(f"{name} is no list")
        return tuple(_value(kind[len("tuple[") : -len(", ...]")], item, name) for item in plain)
    if kind in _MODELS:
        return _object(_MODELS[kind], plain)
    # By its own type: a bool would pass as an int.
    if type(plain) not in _SCALARS[kind] or (kind in ("int", "float") and not 0 <= plain < _TOO_LARGE):
        raise TypeError(f"{name} is no {kind} in its range")
    return plain
