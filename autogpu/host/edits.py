"""The files of a host that lead its Pythons to the hook folder: what is written into each, and taken out again.

Each is planned from the bytes that are there, so that the plan can be shown before. Taking out gives back every byte.
"""

from __future__ import annotations

import functools
import os
import re
from pathlib import Path
from typing import Callable, Iterable

from autogpu.frozen import Value
from autogpu.host.hook_folder import LINK
from autogpu.host.pythons import BasePython, is_only_roots
from autogpu.install import MARKER, SITECUSTOMIZE, template_folder

_UNDO = b"`autogpu host-setup --undo`, as root, removes"
_HEAD = b"# " + MARKER + b", version 1. " + _UNDO + b" it.\n"
_BEGIN = b"# begin autogpu; " + _UNDO + b" these lines\n"
# In front of it stands the end of a line that had none.
_BEGIN_AFTER_TEXT = b"\n# begin autogpu, after a line without an end; " + _UNDO + b" these lines\n"
_END = b"# end autogpu\n"
_BLOCK = re.compile(b"(?:" + re.escape(_BEGIN_AFTER_TEXT) + b"|" + re.escape(_BEGIN) + b").*?" + re.escape(_END), re.S)

_FOLDER = str(LINK).encode()

# In front of what a user has there stands nothing: a sitecustomize of theirs stays the first.
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
_ONLY_OF_OURS = b"\n\n# What follows is only for a sitecustomize.py that autogpu made.\n"


class Edit(Value):
    """One file, as it is and as it is to be; ``None`` for one that does not exist."""

    path: Path
    before: bytes | None
    after: bytes | None


class Plan(Value):
    """What is to be changed, a line for each file that is left alone, and all files that were looked at."""

    edits: tuple[Edit, ...]
    left_alone: tuple[str, ...]
    places: tuple[Path, ...]


def plan(root: Path, pythons: Iterable[BasePython], *, is_undo: bool = False, base_files: Iterable[str] = ()) -> Plan:
    """What to write so that Pythons find the folder, or to take out again.

    Args:
        base_files: Files of base Pythons that an earlier run has written, whose Python may not be found any more.
    """
    edits: dict[Path, Edit] = {}
    left_alone = []
    places = []

    def add(path: Path, change: Callable[[bytes | None], bytes | None]) -> None:
        places.append(path)
        try:
            if os.path.lexists(str(path)) and not path.is_file():
                raise _Foreign("it is no file")
            before = path.read_bytes() if os.path.lexists(str(path)) else None
            after = undone(before) if is_undo else change(before)
        except (OSError, _Foreign) as error:
            left_alone.append(f"{path} is left alone: {getattr(error, 'strerror', None) or error}")
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
        # Root must not write where another user may put a link.
        if is_only_roots(real.parent, root) and is_only_roots(path.parent, root):
            add(real, functools.partial(_with_fallback, real, root))
        else:
            left_alone.append(f"{path} is left alone: not only root can change its folder")
    return Plan(tuple(edits.values()), tuple(left_alone), tuple(places))


class _Foreign(Exception):
    """What is there is not autogpu's to change."""


def own(before: bytes | None, content: bytes) -> bytes:
    """A file that is autogpu's alone."""
    if before is not None and not before.startswith(b"# " + MARKER):
        raise _Foreign("it exists and was not written by autogpu")
    return content


def with_block(before: bytes, lines: bytes) -> bytes:
    """Add lines at the end of a file of the host, in the place of those of an earlier version."""
    text = _BLOCK.sub(b"", before)
    begin = _BEGIN if not text or text.endswith(b"\n") else _BEGIN_AFTER_TEXT
    return text + begin + lines + _END


def undone(before: bytes | None) -> bytes | None:
    """The file as it was before autogpu; ``None`` if autogpu made it."""
    if before is None or before.startswith(b"# " + MARKER):
        return None
    return _BLOCK.sub(b"", before)


def _with_pam_env(before: bytes | None) -> bytes:
    text = _BLOCK.sub(b"", before or b"")
    if re.search(rb"^\s*PYTHONPATH\b", text, re.M):
        raise _Foreign(f"it sets PYTHONPATH; add :{LINK} to its value")
    return with_block(text, _PAM_ENV)


def _with_fallback(path: Path, root: Path, before: bytes | None) -> bytes:
    """The sitecustomize of a base Python: a new one, or lines in that of Debian, which lies in /etc for additions."""
    text = (template_folder() / "base_python.py").read_bytes()
    if root / "etc" not in path.parents:
        return own(before, text)
    if before is None:
        raise _Foreign("a link of this Python leads there, and it does not exist")
    return with_block(before, text.partition(_ONLY_OF_OURS)[0].rstrip() + b"\n")
