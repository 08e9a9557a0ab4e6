"""``python -m tests.gpusim``: run a command on a simulated GPU server."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Sequence

from tests.gpusim.build import BuildError
from tests.gpusim.fleet import Fleet, FleetError, read_fleet
from tests.gpusim.fleets import FLEETS
from tests.gpusim.imports import record_torch
from tests.gpusim.server import lay_out, with_libraries_in_front

DEFAULT_FLEET = Path(__file__).resolve().parent / "lab.toml"
SECONDS_BETWEEN_LOOKS = 0.2
WRONG_USAGE, NOT_STARTED, NOT_FOUND = 2, 126, 127
HELP = """\
Run a command on a machine with simulated NVIDIA GPUs. Unmodified TensorFlow, PyTorch, JAX and NVML tools
believe in them: memory rises as programs allocate and falls when they end. Kernels are accepted and never
run, so every number that a program computes is garbage.
"""
EXAMPLE = f"""\
example:
  # four different GPUs, two of them busy
  python -m tests.gpusim -- python -c "import tensorflow as tf; print(tf.config.list_physical_devices('GPU'))"

  # your own machine
  cp {os.path.relpath(DEFAULT_FLEET)} my-lab.toml
  python -m tests.gpusim --fleet my-lab.toml --log calls.jsonl -- python train.py

  # a server as it is sold
  python -m tests.gpusim --fleet dgx-a100 -- python train.py

  # several programs on one server: start a shell on it
  python -m tests.gpusim --fleet my-lab.toml -- bash

The command's exit status, signals and input and output are its own.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the server's files, and replace this process by the command. Return an exit status only if that fails."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.gpusim",
        description=HELP,
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--fleet",
        default=str(DEFAULT_FLEET),
        metavar="FILE",
        help=f"the machine, as TOML, or one of {', '.join(FLEETS)}",
    )
    parser.add_argument("--log", type=Path, metavar="FILE", help="keep what the driver was asked, as JSON lines")
    parser.add_argument(
        "command", nargs=argparse.REMAINDER, metavar="-- COMMAND", help="what to run, and its arguments"
    )
    options = parser.parse_args(arguments)
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not command:
        parser.error("no command: python -m tests.gpusim -- python train.py")
    if options.log is not None and options.log.exists() and not options.log.is_file():
        parser.error(f"--log: {options.log} is not a plain file")
    try:
        fleet = fleet_named(options.fleet)
    except (FleetError, OSError) as error:
        return _fail(f"gpusim: {error}", WRONG_USAGE)
    folder = Path(tempfile.mkdtemp(prefix="gpusim-"))
    folder.chmod(0o755)
    try:
        preloaded = record_torch(command[0])
        log = (options.log or folder / "gpusim.log").resolve()
        environ = lay_out(fleet, folder, log, device_nodes=True, preloaded=preloaded)
    except (BuildError, OSError) as error:
        shutil.rmtree(folder)
        return _fail(str(error), NOT_STARTED)
    _remove_afterwards(folder)
    leases = folder / "leases"  # each machine has a lease folder of its own
    leases.mkdir()
    leases.chmod(0o1777)
    own = {"AUTOGPU_LEASE_DIR": str(leases), **os.environ}
    return _become(command, {**own, **with_libraries_in_front(environ, os.environ)})


def fleet_named(name: str) -> Fleet:
    """Return a fleet of ``FLEETS``, or else the fleet that a file describes.

    Raises:
        FleetError: No fleet and no file has this name, or the file describes no valid fleet.
        OSError: The file can't be read.
    """
    if name in FLEETS:
        return FLEETS[name]
    try:
        return read_fleet(Path(name))
    except FileNotFoundError:
        raise FleetError(f"{name}: no such server or file; servers: {', '.join(FLEETS)}") from None


def _become(command: Sequence[str], environ: dict[str, str]) -> int:
    # Replace this process instead of starting a child. The process that started us then sees the command's own
    # exit status, signals, terminal and pid.
    try:
        os.execvpe(command[0], list(command), environ)
    except FileNotFoundError:
        return _fail(f"gpusim: {command[0]}: no such command", NOT_FOUND)
    except OSError as error:
        return _fail(f"gpusim: {command[0]}: {error.strerror}", NOT_STARTED)


def _remove_afterwards(folder: Path) -> None:
    """Start a process that removes the folder after the command has ended.

    The process is no child of ours: the command takes our place, and must not find a child that it did not start.
    """
    served = os.getpid()
    middle = os.fork()
    if middle:
        os.waitpid(middle, 0)
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    # Close our copies of the command's streams: a reader of its output must not wait for this process.
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(nothing, stream)
    while Path(f"/proc/{served}").exists():
        time.sleep(SECONDS_BETWEEN_LOOKS)
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(0)


def _fail(message: str, status: int) -> int:
    print(message, file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
