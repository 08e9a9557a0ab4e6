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

# Of a script, what is looked through for the GPU that it names.
_TEXT_BYTES = 256 << 10


def process_command() -> list[str]:
    """The words with which this process was started, Python's own included; ``[]`` where the system does not tell."""
    try:
        words = Path("/proc/self/cmdline").read_bytes().split(b"\0")
    except OSError:
        return []
    return [os.fsdecode(word) for word in words[:-1]]


def script_text() -> str:
    """The program that runs, or its first 256 KiB; empty where it is not a file, as in a notebook."""
    path = getattr(sys.modules.get("__main__"), "__file__", None)
    if path is None:
        command = process_command()
        return command[command.index("-c") + 1] if "-c" in command[1:-1] else ""
    try:
        # Not what would wait for another process, or come to an end only once.
        if not Path(path).is_file():
            return ""
        with Path(path).open("rb") as file:
            return file.read(_TEXT_BYTES).decode("utf-8", "replace")
    except (OSError, TypeError, ValueError):
        return ""


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
