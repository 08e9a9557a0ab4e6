"""The variable ``AUTOGPU_LEASE``. It marks the child processes of a lease's holder as members of its job."""

from __future__ import annotations

import os
from typing import Any, Iterable, Mapping, MutableMapping

from autogpu import process, users
from autogpu.lease.model import Holder
from autogpu.lease.processes import is_held_above
from autogpu.variables import CUDA_VISIBLE_DEVICES, LEASE

_VERSION = "v1"


class ChildMarker:
    """Sets the variable for the children of this process, and restores its former value.

    The value is ``v1:<file>:<pid>:<start time>:=<CUDA_VISIBLE_DEVICES>``. It ends with the last colon if
    ``CUDA_VISIBLE_DEVICES`` is not set.
    """

    def __init__(self, environ: MutableMapping[str, str]) -> None:
        self._environ = environ
        self._before = environ.get(LEASE)
        self._written = ""

    def is_in_place(self) -> bool:
        return self._environ.get(LEASE) == self._written

    def write(self, name: str, identity: Mapping[str, Any], visible: str | None) -> None:
        pid = identity["pid"]
        start = identity["start"] or 0
        self._written = f"{_VERSION}:{name}:{pid}:{start}:{_as_text(visible)}"
        self._environ[LEASE] = self._written

    def remove(self) -> None:
        if not self.is_in_place():
            return
        if self._before is None:
            del self._environ[LEASE]
        else:
            self._environ[LEASE] = self._before


def is_marked(environ: Mapping[str, str]) -> bool:
    return bool(environ.get(LEASE))


def ancestor_lease(
    environ: Mapping[str, str], holders: Iterable[Holder], above: Iterable[tuple[int, int]]
) -> Holder | None:
    """Return the lease of the ancestor in the marker of ``environ``; ``None`` if the marker does not count.

    Anyone can copy a variable. So the lease must be among ``holders``, belong to the same user, and be held by an
    ancestor of this process. A lease of this process itself does not count: a program that restarts itself by
    ``os.execv`` has lost its lease. The visible GPUs in the marker are not compared here.

    Args:
        above: (pid, start time) of each ancestor of this process.
    """
    marked = _marker(environ)[:3]
    uid = users.user_of(os.geteuid())
    # Compare the namespace as well: a child in a container may have the same pid.
    own = os.getpid(), process.pid_namespace()
    others = (holder for holder in holders if (holder.pid, holder.pid_namespace) != own and holder.uid == uid)
    named = (each for each in others if (each.name, str(each.pid), str(each.start_time or 0)) == marked)
    found = next(named, None)
    return found if found is not None and is_held_above(found, above) else None


def has_parents_list(environ: Mapping[str, str]) -> bool:
    """True if ``CUDA_VISIBLE_DEVICES``, as it would be without autogpu, has the value in the marker.

    Another value was set since the marker was written, and is an explicit choice.
    """
    name, _, _, left = _marker(environ)
    return bool(name) and left == _as_text(environ.get(CUDA_VISIBLE_DEVICES))


def _marker(environ: Mapping[str, str]) -> tuple[str, str, str, str]:
    """Return file, pid, start time and GPUs of the marker (see :class:`ChildMarker`); empty texts without a marker."""
    version, name, pid, start, visible = (environ.get(LEASE, "").split(":", 4) + [""] * 5)[:5]
    return (name, pid, start, visible) if version == _VERSION else ("", "", "", "")


def _as_text(visible: str | None) -> str:
    return "" if visible is None else "=" + visible
