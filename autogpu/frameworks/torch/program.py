"""The program that this process runs."""

from __future__ import annotations

import os
import sys
from pathlib import Path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Sequence

_LAUNCHERS = ("torchrun", "accelerate", "accelerate-launch", "deepspeed")
_LAUNCHER_MODULES = (
    *("torch/distributed/run.py", "torch/distributed/launch.py"),
    *("accelerate/commands/launch.py", "deepspeed/launcher/runner.py", "deepspeed/launcher/launch.py"),
)

# Of a script and its modules, what is looked through for the GPU that it names.
_MOST_BYTES = 256 << 10
_MOST_IMPORTS = 32


def process_command() -> list[str]:
    """The words with which this process was started, Python's own included; ``[]`` where the system does not tell."""
    try:
        words = Path("/proc/self/cmdline").read_bytes().split(b"\0")
    except OSError:
        return []
    return [os.fsdecode(word) for word in words[:-1]]


def sources() -> list[bytes]:
    """The program that runs, and those of its own modules beside it that may name a GPU; ``[]`` as in a notebook."""
    path = _script()
    if path is None:
        command = process_command()
        return [os.fsencode(command[command.index("-c") + 1])] if "-c" in command[1:-1] else []
    found = [_bytes(path, _MOST_BYTES)]
    room, folder = _MOST_BYTES - len(found[0]), path.parent
    from autogpu.frameworks.torch.text import local_imports

    for name in local_imports(found[0])[:_MOST_IMPORTS]:
        for file in (folder / f"{name}.py", folder / name / "__init__.py"):
            source = _bytes(file, room)
            if b"cuda" in source or b"device" in source:
                found.append(source)
                room -= len(source)
    return found


def _script() -> Path | None:
    """The file of the program; also below a profiler, and where a worker of ``multiprocessing`` imports it anew."""
    files = [getattr(sys.modules.get(name), "__file__", None) for name in ("__main__", "__mp_main__")]
    for file in (*getattr(sys, "argv", [])[:1], *files):
        try:
            if file and Path(file).is_file():
                return Path(file)
        except (OSError, TypeError, ValueError):  # of a script's own making
            continue
    return None


def _bytes(path: Path, most: int) -> bytes:
    """Of a file; nothing where it is no plain one, can't be read, or is longer than that."""
    try:
        # Not what would wait for another process, or come to an end only once.
        if not path.is_file() or path.stat().st_size > most:
            return b""
        with path.open("rb") as file:
            return file.read(most)
    except (OSError, ValueError):
        return b""


def is_launcher(argv: Sequence[str], command: Sequence[str] = ()) -> bool:
    """Whether the program starts the ranks of a job, and asks for GPUs only on their behalf.

    Args:
        argv: ``sys.argv``.
        command: The whole command of the process. While ``-m`` imports a module's package only that names the module.
    """
    path = str(argv[0]) if argv else ""
    if path == "-m" and path in command:
        following = command[list(command).index(path) + 1 :]
        path = following[0].replace(".", "/") + ".py" if following else ""
    return path.rpartition("/")[2] in _LAUNCHERS or path.endswith(_LAUNCHER_MODULES)
