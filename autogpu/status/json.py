"""A :class:`autogpu.status.model.HostStatus` to JSON and back; described in ``docs/status.schema.json``."""

from __future__ import annotations

import dataclasses
from typing import Any, Mapping

from autogpu.status import model
from autogpu.status.model import HostStatus

# Grows when a field changes its meaning or goes, not when one is added.
VERSION = 1

# What the objects of a field are, alone or in a list.
_OBJECTS = {
    "gpus": model.GpuStatus,
    "jobs": model.JobStatus,
    "unmanaged_processes": model.UnmanagedProcess,
    "unreadable": model.UnreadableGpu,
    "queue": model.WaiterStatus,
    "preview": model.Preview,
    "candidates": model.RankedGpu,
    "rejected": model.RejectedGpu,
    "lease_folder": model.LeaseFolder,
}


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
        raise ValueError(f"this is not what `autogpu status --json` prints: {error!r}") from None
    return status


def _object(kind: Any, plain: Mapping[str, Any]) -> Any:
    # A field that came later has a default, for the hosts whose autogpu does not have it yet.
    fields = [f for f in dataclasses.fields(kind) if f.name in plain or f.default is dataclasses.MISSING]
    return kind(**{field.name: _value(field.name, plain[field.name]) for field in fields})


def _value(name: str, plain: Any) -> Any:
    if isinstance(plain, (list, tuple)):
        return tuple(_value(name, item) for item in plain)
    return plain if plain is None or name not in _OBJECTS else _object(_OBJECTS[name], plain)
