"""Give autogpu to every Python of a host, show what would be changed for that, and take all of it away again."""

from __future__ import annotations

import difflib
import os
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Callable, Iterator, Sequence

from autogpu.atomic_file import write_file
from autogpu.errors import InstallError
from autogpu.frozen import Value
from autogpu.host import edits, hook_folder
from autogpu.host.edits import Edit, Plan
from autogpu.host.hook_folder import HookFolder
from autogpu.host.pythons import BasePython, find_pythons
from autogpu.install import SITECUSTOMIZE

# What autogpu does not set itself, because it is the administrator's decision, by what starts Python.
RECIPES = {
    "a systemd service": f"Environment=PYTHONPATH={hook_folder.LINK}",
    "Slurm's TaskProlog": f'echo "export PYTHONPATH=${{PYTHONPATH:+$PYTHONPATH:}}{hook_folder.LINK}"',
    "JupyterHub": f'c.Spawner.environment = {{"PYTHONPATH": "{hook_folder.LINK}"}}',
    "docker run": f"-v {hook_folder.LINK}:{hook_folder.LINK}:ro -e PYTHONPATH={hook_folder.LINK}",
    "sudo -u NAME": "--preserve-env=PYTHONPATH",
}


class HookPlan(Value):
    """What is to be done.

    Attributes:
        folder: That of the version to be built; ``None`` if it is in place and whole.
        now: What is in place.
        left_out: A line for each Python that is not looked at, and for each file that is left alone.
    """

    link: Path
    folder: Path | None
    now: HookFolder | None
    pythons: tuple[BasePython, ...]
    edits: tuple[Edit, ...]
    left_out: tuple[str, ...]


def plan(root: Path, named: Sequence[str] = (), owner_uid: int = 0) -> HookPlan:
    """Look for Pythons and plan; changes nothing."""
    link = root / hook_folder.LINK.relative_to("/")
    pythons, left_out = find_pythons(root, named)
    now = hook_folder.examine(link, owner_uid)
    planned = edits.plan(root, pythons, base_files=now.base_files if now else ())
    wanted = hook_folder.place_of(link, hook_folder.sources(), sorted({python.tag for python in pythons}))
    is_in_place = now is not None and not now.problem and now.folder == wanted.resolve()
    left = (*left_out, *planned.left_alone)
    return HookPlan(link, None if is_in_place else wanted, now, tuple(pythons), planned.edits, left)


def set_up(planned: HookPlan, tell: Callable[[str], None]) -> list[str]:
    """Do what is planned; returns a line for each change. A run that is killed is completed by the next one."""
    link = planned.link
    done = []
    with hook_folder.changing(link):
        if planned.folder is not None:
            before = planned.now.base_files if planned.now else ()
            libraries = [str(edit.path) for edit in planned.edits if edit.path.name == SITECUSTOMIZE]
            base_files = list(dict.fromkeys([*before, *libraries]))
            folder = hook_folder.build(link, hook_folder.sources(), planned.pythons, base_files, tell)
            versions = ", ".join(sorted({python.version for python in planned.pythons}, key=_as_numbers))
            done.append(f"built {folder} for Python {versions}")
        done += [f"removed {path}" for path in hook_folder.remove_old(link, hook_folder.booted_s())]
        done += _apply(planned.edits, planned.pythons)
    return done


def undo(root: Path, owner_uid: int = 0) -> list[str]:
    """Give every file back as it was, and remove the folder; returns a line for each change."""
    link = root / hook_folder.LINK.relative_to("/")
    now = hook_folder.examine(link, owner_uid)
    pythons, _ = find_pythons(root)
    planned: Plan = edits.plan(root, pythons, is_undo=True, base_files=now.base_files if now else ())
    if now is None and not planned.edits and not hook_folder.versions(link):
        return []
    with hook_folder.changing(link):
        done = _apply(planned.edits, pythons)
        return done + [f"removed {path}" for path in hook_folder.remove_all(link)]


def preview(planned: HookPlan) -> Iterator[str]:
    """Yield the lines of what :func:`set_up` would do, the change of each file as a diff."""
    if planned.folder is not None:
        yield f"# a new folder {planned.folder}, and {planned.link} as a link to it"
    for edit in planned.edits:
        old, new = ((text or b"").decode(errors="replace").splitlines() for text in (edit.before, edit.after))
        yield from difflib.unified_diff(old, new, str(edit.path), str(edit.path), lineterm="")


def _as_numbers(version: str) -> list[int]:
    return [int(part) for part in version.split(".")]


def _apply(changes: Sequence[Edit], pythons: Sequence[BasePython]) -> list[str]:
    done = []
    for edit in changes:
        # Another program may have written it since the plan.
        now = edit.path.read_bytes() if edit.path.exists() else None
        if now != edit.before:
            raise InstallError(f"{edit.path} has changed meanwhile", remedy="run the command again")
        if edit.after is None:
            edit.path.unlink()
            done.append(f"removed {edit.path}")
        elif edit.before is None:
            write_file(edit.path, edit.after, 0o644)
            done.append(f"wrote {edit.path}")
        else:
            _rewrite(edit.path, edit.after)
            done.append(f"changed {edit.path}")
        if edit.path.name == SITECUSTOMIZE:
            _compile_again(edit, pythons)
    return done


def _rewrite(path: Path, content: bytes) -> None:
    """Write other bytes into a file of the host, which keeps its owner, its permissions and its time."""
    status = path.stat()
    write_file(path, content, status.st_mode & 0o7777)
    os.chown(str(path), status.st_uid, status.st_gid)
    # What Python has compiled of it holds the time, and is to be the same again after the undo.
    os.utime(str(path), ns=(status.st_atime_ns, status.st_mtime_ns))


def _compile_again(edit: Edit, pythons: Sequence[BasePython]) -> None:
    """Bring the compiled files of a base Python's sitecustomize up to date: its users can't write them."""
    if edit.after is None:
        for compiled in edit.path.parent.glob("__pycache__/sitecustomize.*.pyc"):
            compiled.unlink()
        with suppress(OSError):  # others are in there
            (edit.path.parent / "__pycache__").rmdir()
        return
    for python in pythons:
        shown = python.library / SITECUSTOMIZE
        if shown.resolve() != edit.path.resolve():
            continue
        # Debian's has those that it came with, and one of autogpu's gets all.
        levels = {0: "", 1: ".opt-1", 2: ".opt-2"}
        if edit.before is not None:
            cache = shown.parent / "__pycache__"
            levels = {
                level: name
                for level, name in levels.items()
                if (cache / f"{shown.stem}.{python.tag}{name}.pyc").exists()
            }
        program = f"import py_compile; [py_compile.compile({str(shown)!r}, optimize=n) for n in {[*levels]}]"
        subprocess.run(
            [python.executable, "-I", "-S", "-c", program],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=60,
            check=False,
        )
