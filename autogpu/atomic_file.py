"""Files that are put in place in one step: readers see the old one or the new one, whatever happens."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path


def write_file(path: Path, content: bytes, mode: int | None = None) -> None:
    """Write ``content`` to ``path``, whose folder exists.

    Args:
        mode: The permissions; ``None`` for those of the umask.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        write_whole(temporary, content, mode)
        os.replace(str(temporary), str(path))  # noqa: PTH105  (one call that replaces on every system)
    except BaseException:
        if temporary.exists():
            temporary.unlink()
        raise


def write_whole(temporary: Path, content: bytes, mode: int | None = None) -> None:
    """Write a file that is to take the place of another one, down to the disk.

    Never through the existing file: package managers hard-link site-packages to a cache that others share.

    Args:
        temporary: In the same folder; Python skips dot-files, and reads no ``.tmp``.
        mode: As for :func:`write_file`.
    """
    with temporary.open("wb") as stream:
        stream.write(content)
        stream.flush()
        if mode is not None:
            os.fchmod(stream.fileno(), mode)
        os.fsync(stream.fileno())
