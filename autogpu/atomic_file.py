"""Replace files in one step, so that a reader sees either the old content or the new one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Callable


def write_file(path: Path, content: bytes, mode: int | None = None) -> None:
    """Write a temporary file next to ``path``, flush it to disk, and rename it to ``path``.

    Never write into the existing file: package managers hard-link it to a cache that other environments share.

    Args:
        mode: The permissions; ``None`` for those that the umask gives.
    """
    _write(path, content, mode, os.replace)


def new_file(path: Path, content: bytes, mode: int | None = None) -> None:
    """Do the same as :func:`write_file`, but only if ``path`` does not exist.

    Raises:
        FileExistsError: ``path`` exists; another process may have just made it.
        OSError: The file can't be written, or the file system has no hard links.
    """
    _write(path, content, mode, os.link)


def remove_leftovers(path: Path) -> None:
    """Remove the temporary files that killed processes left next to ``path``."""
    for left in path.parent.glob(f".{path.name}.*.tmp"):
        left.unlink()


def _write(path: Path, content: bytes, mode: int | None, put: Callable[[str, str], None]) -> None:
    # Python ignores .pth files whose name begins with a dot, and files that end in .tmp.
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        if os.path.lexists(str(temporary)):  # a killed process had the same pid
            temporary.unlink()
        # O_EXCL does not follow a link. Another user may have put one here, to have root overwrite its target.
        number = os.open(str(temporary), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        with os.fdopen(number, "wb") as stream:
            stream.write(content)
            stream.flush()
            if mode is not None:
                os.fchmod(stream.fileno(), mode)
            os.fsync(stream.fileno())
        put(str(temporary), str(path))
    finally:
        if temporary.exists():
            temporary.unlink()
