"""The set-up of the hook folder and of the files that lead to it, with a preview and an undo."""

from __future__ import annotations

import os
import struct
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Callable, Sequence

from autogpu.atomic_file import remove_leftovers, write_file
from autogpu.frozen import Value
from autogpu.host import edits, hook_folder
from autogpu.host.edits import Edit, Plan
from autogpu.host.hook_folder import HookFolder
from autogpu.host.model import Action, Change, HostFault, HostProblem, SetupStopped
from autogpu.host.pythons import OPTIONS, BasePython, find_pythons
from autogpu.install import SITECUSTOMIZE, has_marker

# Compile one file for each level of optimization among the arguments.
_COMPILE = """
import py_compile, sys
source, *levels = sys.argv[1:]
for level in levels:
    py_compile.compile(source, optimize=int(level))
"""


class Done(Value):
    """The result of a run of host-setup.

    Attributes:
        left_out: The Pythons that are left out and the files that are left alone.
        failures: The files that could not be written.
    """

    changes: tuple[Change, ...]
    failures: tuple[HostProblem, ...]
    left_out: tuple[HostProblem, ...] = ()


class HookPlan(Value):
    """The plan of a run of host-setup.

    Attributes:
        folder: The folder to build; ``None`` if the link leads to it already and it is complete.
        now: The folder to which the link leads.
        base_files: Paths of base Pythons' sitecustomize.py files. The folder records them for the undo.
        left_out: The Pythons that are left out and the files that are left alone.
    """

    link: Path
    folder: Path | None
    now: HookFolder | None
    pythons: tuple[BasePython, ...]
    base_files: tuple[str, ...]
    files: Plan
    left_out: tuple[HostProblem, ...]


def plan(root: Path, named: Sequence[str] = (), owner_uid: int = 0) -> HookPlan:
    link = root / hook_folder.LINK.relative_to("/")
    pythons, left_out = find_pythons(root, named)
    now = hook_folder.examine(link, owner_uid)
    planned = edits.plan(root, pythons, base_files=now.base_files if now else ())
    base_files = sorted({str(path) for path in planned.places if path.name == SITECUSTOMIZE})
    wanted = hook_folder.place_of(link, hook_folder.sources(), pythons, base_files)
    is_in_place = now is not None and not now.problem and now.folder == wanted.resolve()
    left = (*left_out, *planned.left_alone)
    return HookPlan(link, None if is_in_place else wanted, now, tuple(pythons), tuple(base_files), planned, left)


def set_up(root: Path, named: Sequence[str], owner_uid: int, tell: Callable[[str], None]) -> Done:
    """Plan a run and carry it out. If it is killed, the next run completes it."""
    done = []
    with hook_folder.changing(root):
        planned = plan(root, named, owner_uid)
        link = planned.link
        if planned.folder is not None:
            folder = hook_folder.build(link, hook_folder.sources(), planned.pythons, planned.base_files, tell)
            versions = sorted({python.version for python in planned.pythons}, key=_as_numbers)
            done.append(Change(Action.BUILT, str(folder), tuple(versions)))
        done += _removed(hook_folder.remove_old(link, hook_folder.booted_s()))
        files = _apply(planned.files, planned.pythons)
    return Done((*done, *files.changes), files.failures, planned.left_out)


def plan_undo(root: Path, owner_uid: int = 0) -> HookPlan:
    link = root / hook_folder.LINK.relative_to("/")
    now = hook_folder.examine(link, owner_uid)
    pythons, _ = find_pythons(root)
    planned = edits.plan(root, pythons, is_undo=True, base_files=now.base_files if now else ())
    return HookPlan(link, None, now, tuple(pythons), (), planned, ())


def undo(root: Path, owner_uid: int = 0) -> Done:
    """Restore every file; then remove the folder, unless a file could not be restored and still leads to it."""
    with hook_folder.changing(root):
        planned = plan_undo(root, owner_uid)
        files = _apply(planned.files, planned.pythons)
        removed = [] if files.failures else hook_folder.remove_all(planned.link)
        return Done((*files.changes, *_removed(removed)), files.failures)


def is_set_up(root: Path) -> bool:
    """True if the link to the hook folder exists, or if the link is gone but a file still leads to it."""
    link = root / hook_folder.LINK.relative_to("/")
    return os.path.lexists(str(link)) or bool(edits.plan(root, (), is_undo=True).edits)


def problem(root: Path, owner_uid: int = 0) -> HostProblem | None:
    """Return the first fault that another run of :func:`set_up` would repair; ``None`` if there is none.

    Call this only for a host that :func:`is_set_up`.
    """
    now = hook_folder.examine(root / hook_folder.LINK.relative_to("/"), owner_uid)
    if now is None:
        left = edits.plan(root, (), is_undo=True).edits
        return HostProblem(HostFault.LINK_GONE, str(left[0].path)) if left else None
    if now.problem:
        return now.problem
    changed = edits.plan(root, (), base_files=now.base_files).edits
    return HostProblem(HostFault.FILE_DIFFERS, str(changed[0].path)) if changed else None


def _removed(paths: Sequence[Path]) -> list[Change]:
    return [Change(Action.REMOVED, str(path)) for path in paths]


def _as_numbers(version: str) -> list[int]:
    return [int(part) for part in version.split(".")]


def _apply(planned: Plan, pythons: Sequence[BasePython]) -> Done:
    """Make all planned changes, even if one fails because its file is on a read-only disk."""
    changes, failures = [], []
    for place in planned.places:
        with suppress(OSError):
            remove_leftovers(place)
    for edit in planned.edits:
        try:
            changes.append(Change(_change(edit), str(edit.path)))
        except OSError as error:
            failures.append(HostProblem(HostFault.NOT_WRITTEN, str(edit.path), str(error.strerror)))
    edited = {edit.path for edit in planned.edits}
    for python in pythons:
        source = python.library / SITECUSTOMIZE
        if source.exists():
            _compile_sitecustomize(python, source, is_edited=source.resolve() in edited)
    return Done(tuple(changes), tuple(failures))


def _change(edit: Edit) -> Action:
    # Another program may have changed the file since the plan was made.
    now = edit.path.read_bytes() if edit.path.exists() else None
    if now != edit.before:
        raise SetupStopped(HostProblem(HostFault.PLAN_OUTDATED, str(edit.path)))
    if edit.after is None:
        _remove_start_up_file(edit.path)
        return Action.REMOVED
    if edit.before is None:
        write_file(edit.path, edit.after, 0o644)
        return Action.WROTE
    _rewrite(edit.path, edit.after)
    return Action.CHANGED


def _rewrite(path: Path, content: bytes) -> None:
    status = path.stat()
    write_file(path, content, status.st_mode & 0o7777)
    os.chown(str(path), status.st_uid, status.st_gid)
    # The compiled file stores this time. Keep the time, so that an undo can restore the compiled file byte for byte.
    os.utime(str(path), ns=(status.st_atime_ns, status.st_mtime_ns))


def _compile_sitecustomize(python: BasePython, source: Path, *, is_edited: bool) -> None:
    """Compile a base Python's sitecustomize.py, because its users can't write the compiled files.

    A file that autogpu made gets compiled files for -O, -OO and neither. For Debian's file, only compiled files that
    exist already are renewed.
    """
    is_own = has_marker(source)
    if not is_own and not source.is_symlink():  # another program wrote this file; Debian's is a link into /etc
        return
    levels = []
    for level, name in enumerate(("", ".opt-1", ".opt-2")):
        compiled = source.parent / "__pycache__" / f"{source.stem}.{python.tag}{name}.pyc"
        if (is_own or compiled.exists()) and (is_edited or _is_stale(compiled, source)):
            levels.append(str(level))
    if levels:
        command = [python.executable, *OPTIONS, "-c", _COMPILE, str(source), *levels]
        subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=False)


def _is_stale(compiled: Path, source: Path) -> bool:
    """True if a compiled file is missing, or was compiled from another source. Source: PEP 552."""
    status = source.stat()
    try:
        _, flags, time_s, size = struct.unpack("<4sIII", compiled.read_bytes()[:16])
    except (OSError, struct.error):
        return True
    return flags != 0 or (time_s, size) != (int(status.st_mtime) & 0xFFFFFFFF, status.st_size & 0xFFFFFFFF)


def _remove_start_up_file(path: Path) -> None:
    """Remove a file that autogpu made. Remove its compiled files first, so that a killed run leaves none."""
    for compiled in path.parent.glob(f"__pycache__/{path.stem}.*.pyc") if path.name == SITECUSTOMIZE else ():
        compiled.unlink()
    with suppress(OSError):  # the folder is not empty, or does not exist
        (path.parent / "__pycache__").rmdir()
    path.unlink()
