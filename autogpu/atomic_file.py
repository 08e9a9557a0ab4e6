"""Files that are put in place in one step: readers see the old one or the new one, whatever happens."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Callable


def write_file(path: Path, content: bytes, mode: int | None = None) -> None:
    """Write ``content`` beside ``path``, down to the disk, and rename; ``None`` for the permissions of the umask.

    Never through the existing file: package managers hard-link site-packages to a cache that others share.
    """
    _write(path, content, mode, os.replace)


def new_file(path: Path, content: bytes, mode: int | None = None) -> None:
    """Do the same only if there is no such file.

    Raises:
        FileExistsError: There is one; another process may have just made it.
        OSError: It can't be written, or the file system has no hard links.
    """
    _write(path, content, mode, os.link)


def remove_leftovers(path: Path) -> None:
    """Remove what writers of this file that were killed have left beside it."""
    for left in path.parent.glob(f".{path.name}.*.tmp"):
        left.unlink()


def _write(path: Path, content: bytes, mode: int | None, put: Callable[[str, str], None]) -> None:
    # Python skips dot-files, and reads no .tmp.
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        if os.path.lexists(str(temporary)):  # of a process with this number that was killed
            temporary.unlink()
        # Never through a link that another user has put there.
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
