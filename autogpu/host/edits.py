"""Plans to change a host's files so that its Pythons find the hook folder, and plans to undo these changes.

A plan holds the bytes of each file before and after the change. This module writes no file.
"""

from __future__ import annotations

import functools
import os
import re
from pathlib import Path
from typing import Callable, Iterable

from autogpu.frozen import Value
from autogpu.host.hook_folder import LINK
from autogpu.host.model import HostFault, HostProblem, NotUsable
from autogpu.host.pythons import BasePython, is_only_roots
from autogpu.install import MARKER, SITECUSTOMIZE, template_folder

_UNDO = b"`autogpu host-setup --undo`, as root, removes"
_HEAD = b"# " + MARKER + b", version 1. " + _UNDO + b" it.\n"
_BEGIN = b"# begin autogpu; " + _UNDO + b" these lines\n"
# If a file's last line has no line end, the block begins with one. The undo removes it with the block.
_BEGIN_AFTER_TEXT = b"\n# begin autogpu (the line above had no line end); " + _UNDO + b" these lines\n"
_END = b"# end autogpu\n"
_BLOCK = re.compile(b"(?:" + re.escape(_BEGIN_AFTER_TEXT) + b"|" + re.escape(_BEGIN) + b").*?" + re.escape(_END), re.S)

_FOLDER = str(LINK).encode()

# Append to the user's PYTHONPATH: Python must still find a sitecustomize.py of the user first.
_PROFILE = (
    _HEAD
    + b"""case ":${PYTHONPATH-}:" in
    *:%s:*) ;;
    *) export PYTHONPATH="${PYTHONPATH:+$PYTHONPATH:}%s" ;;
esac
"""
    % (_FOLDER, _FOLDER)
)
_ENVIRONMENT_D = _HEAD + b"PYTHONPATH=${PYTHONPATH:+$PYTHONPATH:}%s\n" % _FOLDER
_PAM_ENV = b"PYTHONPATH DEFAULT=%s OVERRIDE=${PYTHONPATH}\n" % _FOLDER
_ONLY_OF_OURS = b"\n\n# host-setup leaves out the rest if it appends this text to Debian's sitecustomize.py.\n"


class Edit(Value):
    """A file's bytes before and after a change; ``None`` for a state in which the file does not exist."""

    path: Path
    before: bytes | None
    after: bytes | None


class Plan(Value):
    """The changes to make.

    Attributes:
        left_alone: A problem for each file that host-setup must not change.
        places: The paths of all files that were considered.
    """

    edits: tuple[Edit, ...]
    left_alone: tuple[HostProblem, ...]
    places: tuple[Path, ...]


def plan(root: Path, pythons: Iterable[BasePython], *, is_undo: bool = False, base_files: Iterable[str] = ()) -> Plan:
    """Plan the changes that make Pythons find the hook folder; with ``is_undo``, plan to take them back.

    Args:
        base_files: Paths of sitecustomize.py files that an earlier run wrote, even if their Python is gone.
    """
    edits: dict[Path, Edit] = {}
    left_alone = []
    places = []

    def add(path: Path, change: Callable[[bytes | None], bytes | None]) -> None:
        places.append(path)
        try:
            if os.path.lexists(str(path)) and not path.is_file():
                raise NotUsable(HostFault.NOT_REGULAR)
            before = path.read_bytes() if os.path.lexists(str(path)) else None
            after = undone(before) if is_undo else change(before)
        except OSError as error:
            left_alone.append(HostProblem(HostFault.UNREADABLE, str(path), error.strerror or str(error)))
            return
        except NotUsable as error:
            left_alone.append(error.problem(path))
            return
        if after != before:
            edits[path] = Edit(path, before, after)

    profile, environment_d = root / "etc/profile.d", root / "etc/environment.d"
    if profile.is_dir():
        add(profile / "autogpu.sh", lambda before: own(before, _PROFILE))
    if environment_d.is_dir():
        add(environment_d / "60-autogpu.conf", lambda before: own(before, _ENVIRONMENT_D))
    pam_env = root / "etc/security/pam_env.conf"
    if pam_env.is_file():
        add(pam_env, _with_pam_env)
    libraries = [python.library / SITECUSTOMIZE for python in pythons]
    for path in dict.fromkeys([*libraries, *map(Path, base_files)]):
        real = path.resolve()
        # If another user can write into the folder, a link there could lead root to any file.
        if is_only_roots(real.parent, root) and is_only_roots(path.parent, root):
            add(real, functools.partial(_with_fallback, real, root))
        else:
            left_alone.append(HostProblem(HostFault.PARENT_OPEN_TO_OTHERS, str(path)))
    return Plan(tuple(edits.values()), tuple(left_alone), tuple(places))


def own(before: bytes | None, content: bytes) -> bytes:
    """Return the content of a file that only autogpu writes; raise :class:`NotUsable` if another program wrote it."""
    if before is not None and not before.startswith(b"# " + MARKER):
        raise NotUsable(HostFault.NOT_OURS)
    return content


def with_block(before: bytes, lines: bytes) -> bytes:
    text = _BLOCK.sub(b"", before)
    begin = _BEGIN if not text or text.endswith(b"\n") else _BEGIN_AFTER_TEXT
    return text + begin + lines + _END


def undone(before: bytes | None) -> bytes | None:
    """Return the content of a file without autogpu's lines; ``None`` if autogpu wrote the whole file."""
    if before is None or before.startswith(b"# " + MARKER):
        return None
    return _BLOCK.sub(b"", before)


def _with_pam_env(before: bytes | None) -> bytes:
    text = _BLOCK.sub(b"", before or b"")
    if re.search(rb"^\s*PYTHONPATH\b", text, re.M):
        raise NotUsable(HostFault.SETS_PYTHONPATH)
    return with_block(text, _PAM_ENV)


def _with_fallback(path: Path, root: Path, before: bytes | None) -> bytes:
    """Return the new content of a base Python's sitecustomize.py. Debian's file in /etc keeps its own text."""
    text = (template_folder() / "base_python.py").read_bytes()
    if root / "etc" not in path.parents:
        return own(before, text)
    if before is None:
        raise NotUsable(HostFault.NO_TARGET)
    return with_block(before, text.partition(_ONLY_OF_OURS)[0].rstrip() + b"\n")
