"""The change of one folder's start-up files, which is taken back where it can't be completed."""

from __future__ import annotations

from pathlib import Path
from typing import Sequence

from autogpu.atomic_file import write_file
from autogpu.install import files
from autogpu.install.files import File, files_of_ours


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
        self._before = {path: path.read_bytes() for path in planned | set(files_of_ours(folder)) if path.is_file()}
        self.written = tuple(file.path for file in plan if self._before.get(file.path) != file.content)
        self.unchanged = tuple(file.path for file in plan if file.path not in self.written)
        # Other Pythons, and -O, have their own compiled files of a source. They stay while the source does;
        # those of an earlier source would run on unnoticed, since install makes them unchecked.
        kept = set(self.unchanged)
        self.obsolete = tuple(
            path for path in self._before if path not in planned and not _is_compiled_from(path, kept)
        )

    def __enter__(self) -> None:
        try:
            for file in self._plan:
                if file.path in self.written:
                    _write(file.path, file.content)
            for path in self.obsolete:
                files.remove(path)
        except BaseException:
            self._undo()
            raise

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._undo()

    def _undo(self) -> None:
        """Go on where one file resists, since the error on its way is more important."""
        for path in [file.path for file in reversed(self._plan) if file.path not in self._before]:
            try:
                files.remove(path)
            except OSError:
                continue
        for path, content in self._before.items():
            try:
                if not path.exists() or path.read_bytes() != content:
                    _write(path, content)
            except OSError:
                continue


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(exist_ok=True)
    write_file(path, content)


def _is_compiled_from(path: Path, sources: set[Path]) -> bool:
    return path.suffix in (".pyc", ".pyo") and any(
        source.suffix == ".py" and path.name.startswith(f"{source.stem}.") for source in sources
    )
