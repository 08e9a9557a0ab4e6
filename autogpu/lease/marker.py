"""``AUTOGPU_LEASE``, by which the child processes of a lease's holder know that they are members of its job."""

from __future__ import annotations

import os
from typing import Any, Iterable, Mapping, MutableMapping

from autogpu import process, users
from autogpu.lease.model import Holder
from autogpu.lease.processes import is_held_above
from autogpu.variables import CUDA_VISIBLE_DEVICES, LEASE

_VERSION = "v1"


class ChildMarker:
    """Writes the variable for the children of this process, and puts its former value back.

    The value is ``v1:<file>:<pid>:<start time>:=<CUDA_VISIBLE_DEVICES>``, without the ``=`` if that is not set.
    """

    def __init__(self, environ: MutableMapping[str, str]) -> None:
        self._environ = environ
        self._before = environ.get(LEASE)
        self._written = ""

    def is_in_place(self) -> bool:
        """True if nobody has changed the variable since it was written."""
        return self._environ.get(LEASE) == self._written

    def write(self, name: str, identity: Mapping[str, Any], visible: str | None) -> None:
        pid = identity["pid"]
        start = identity["start"] or 0
        self._written = f"{_VERSION}:{name}:{pid}:{start}:{_as_text(visible)}"
        self._environ[LEASE] = self._written

    def remove(self) -> None:
        """Put the former value back, unless somebody has changed the variable."""
        if not self.is_in_place():
            return
        if self._before is None:
            del self._environ[LEASE]
        else:
            self._environ[LEASE] = self._before


def is_marked(environ: Mapping[str, str]) -> bool:
    """True if a process with ``environ`` may be a member of a job that holds a lease."""
    return bool(environ.get(LEASE))


def ancestor_lease(
    environ: Mapping[str, str], holders: Iterable[Holder], above: Iterable[tuple[int, int]]
) -> Holder | None:
    """Return the lease that the marker in ``environ`` names, whatever is visible by now; ``None`` if it does not count.

    It must be among ``holders``, of the same user, and of a process above this one: anyone may copy a variable. And it
    must be another process's: a program that starts itself again by ``os.execv`` has lost its own.

    Args:
        above: The processes above this one, each as its pid and start.
    """
    marked = _marker(environ)[:3]
    uid = users.user_of(os.geteuid())
    # In a container of its own a child may have the same pid.
    own = os.getpid(), process.pid_namespace()
    others = (holder for holder in holders if (holder.pid, holder.pid_namespace) != own and holder.uid == uid)
    named = (each for each in others if (each.name, str(each.pid), str(each.start_time or 0)) == marked)
    found = next(named, None)
    return found if found is not None and is_held_above(found, above) else None


def has_parents_list(environ: Mapping[str, str]) -> bool:
    """True if ``CUDA_VISIBLE_DEVICES``, as it would be without autogpu, is what the marker's process left.

    A value that was set since is an explicit choice.
    """
    name, _, _, left = _marker(environ)
    return bool(name) and left == _as_text(environ.get(CUDA_VISIBLE_DEVICES))


def _marker(environ: Mapping[str, str]) -> tuple[str, str, str, str]:
    """See :class:`ChildMarker`: the file, the pid, the start time, what was visible; empty where there is none."""
    version, name, pid, start, visible = (environ.get(LEASE, "").split(":", 4) + [""] * 5)[:5]
    return (name, pid, start, visible) if version == _VERSION else ("", "", "", "")


def _as_text(visible: str | None) -> str:
    return "" if visible is None else "=" + visible
