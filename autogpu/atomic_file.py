"""Files that are put in place in one step: readers see the old one or the new one, whatever happens."""

from __future__ import annotations

import os
from pathlib import Path


def write_file(path: Path, content: bytes, mode: int | None = None) -> None:
    """Write ``content`` beside ``path``, down to the disk, and rename; ``None`` for the permissions of the umask.

    Never through the existing file: package managers hard-link site-packages to a cache that others share.
    """
    # Python skips dot-files, and reads no .tmp.
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as stream:
            stream.write(content)
            stream.flush()
            if mode is not None:
                os.fchmod(stream.fileno(), mode)
            os.fsync(stream.fileno())
        os.replace(str(temporary), str(path))  # noqa: PTH105  (one call that replaces on every system)
    except BaseException:
        if temporary.exists():
            temporary.unlink()
        raise
