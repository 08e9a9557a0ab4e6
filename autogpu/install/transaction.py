"""The change of one folder's start-up files: whole or not at all, one at a time, and repeatable after a kill.

New files are written beside the old ones first, then put in their place one by one, what switches on last. A process
that is killed in between leaves files that :func:`autogpu.install.files.files_of_ours` knows.
"""

from __future__ import annotations

import os
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Iterator, Sequence

from autogpu.atomic_file import write_whole
from autogpu.errors import InstallError
from autogpu.install import files
from autogpu.install.files import File, files_of_ours
from autogpu.lease import locks

_DEADLINE_S = 120.0
_LOOK_AGAIN_S = 0.05


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Keep other installs and uninstalls away from ``folder``, by a lock on the folder itself, which makes no file.

    Raises:
        InstallError: Another one does not come to its end.
    """
    descriptor = os.open(str(folder), os.O_RDONLY)
    try:
        begun_s = time.monotonic()
        while not _is_locked(descriptor):
            if time.monotonic() - begun_s > _DEADLINE_S:
                raise InstallError(
                    f"another autogpu install or uninstall has been at work in {folder} for {_DEADLINE_S:.0f} s",
                    remedy="wait for it, or end it, and run this again",
                )
            time.sleep(_LOOK_AGAIN_S)
        yield
    finally:
        os.close(descriptor)


def _is_locked(descriptor: int) -> bool:
    try:
        return not locks.IS_AVAILABLE or locks.try_exclusive(descriptor)
    except OSError:  # a file system without locks
        return True


class Transaction:
    """Writes and removes files on entering the block; what the block raises has them put back as they were.

    Attributes:
        written: New or changed files.
        unchanged: Files that were right already.
        obsolete: Files of an earlier version or another method, which are removed.
    """

    def __init__(self, folder: Path, plan: Sequence[File]) -> None:
        self._plan = plan
        planned = {file.path for file in plan}
        ours = files_of_ours(folder)
        self._before = {path: path.read_bytes() for path in planned | set(ours) if path.is_file()}
        self.written = tuple(file.path for file in plan if self._before.get(file.path) != file.content)
        self.unchanged = tuple(file.path for file in plan if file.path not in self.written)
        # Other Pythons, and -O, have their own compiled files of a source. They stay while the source does;
        # those of an earlier source would run on unnoticed, since install makes them unchecked.
        kept = set(self.unchanged)
        needed = planned | {path.parent for path in planned} | {files.temporary_of(path) for path in self.written}
        self.obsolete = tuple(path for path in ours if path not in needed and not _is_compiled_from(path, kept))
        self._prepared: list[Path] = []
        self._made: list[Path] = []
        self._folders: list[Path] = []

    def __enter__(self) -> None:
        try:
            for file in self._plan:
                if file.path in self.written:
                    self._prepare(file)
            for temporary in list(self._prepared):
                path = files.target_of(temporary)
                if path in self._before:
                    # With a second name an old file needs no space to be put back.
                    with suppress(OSError):
                        os.link(str(path), str(files.backup_of(path)))
                # One call that replaces on every system.
                os.replace(str(temporary), str(path))  # noqa: PTH105
                self._prepared.remove(temporary)
                self._made.append(path)
            for path in self.obsolete:
                files.remove(path)
        except BaseException:
            self._undo()
            raise

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._undo()
        for path in self._before:
            with suppress(OSError):
                files.backup_of(path).unlink()

    def _prepare(self, file: File) -> None:
        folder = file.path.parent
        if not folder.exists():
            folder.mkdir()
            self._folders.append(folder)
        temporary = files.temporary_of(file.path)
        self._prepared.append(temporary)
        write_whole(temporary, file.content)

    def _undo(self) -> None:
        """Go on where one file resists, since the error on its way is more important."""
        for path in self._prepared:
            with suppress(OSError):
                path.unlink()
        for path in reversed(self._made):
            if path not in self._before:
                with suppress(OSError):
                    files.remove(path)
        for path, content in self._before.items():
            with suppress(OSError):
                _put_back(path, content)
        for folder in reversed(self._folders):
            with suppress(OSError):
                folder.rmdir()


def _put_back(path: Path, content: bytes) -> None:
    backup = files.backup_of(path)
    if path.is_file() and path.read_bytes() == content:
        return
    path.parent.mkdir(exist_ok=True)
    if not backup.exists():
        backup.write_bytes(content)
    os.replace(str(backup), str(path))  # noqa: PTH105  (as above)


def _is_compiled_from(path: Path, sources: set[Path]) -> bool:
    return path.suffix in (".pyc", ".pyo") and any(
        source.suffix == ".py" and path.name.startswith(f"{source.stem}.") for source in sources
    )
