"""``make lab``: a shell on a simulated GPU server on which other people's jobs come and go.

The first shell has the server, and its end is the end of everything. A second ``make lab``, in another terminal, is a
shell on the same server. Nothing is installed or downloaded, and nothing of the machine changes.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import shlex
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import IO, Any, Mapping

from autogpu.install import template_folder
from autogpu.text import counted
from demo.lab import people
from demo.lab.scene import PEOPLE
from demo.lab.shell import end_all_below, open_shell, terminal_as_before
from demo.lab.stage import Orders
from tests.gpusim.__main__ import fleet_named
from tests.gpusim.build import BuildError
from tests.gpusim.fleet import Fleet, FleetError
from tests.gpusim.fleets import FLEETS
from tests.gpusim.server import lay_out, with_libraries_in_front
from tests.support import environments

ROOT = Path(__file__).resolve().parents[2]
FLEET = "rtx-4090"
OF_AUTOGPU_AND_CUDA = ("AUTOGPU", "CUDA_", "GPUSIM", "NVIDIA_")

JOB = '''\
"""A program that uses CUDA and no framework: takes 2 GiB of a GPU for a minute."""

import ctypes
import time

cuda = ctypes.CDLL("libcuda.so.1")
device, context, memory = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
assert cuda.cuInit(0) == 0 and cuda.cuDeviceGet(ctypes.byref(device), 0) == 0, "no GPU"
cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
cuda.cuCtxSetCurrent(context)
assert cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(2 << 30)) == 0, "no memory"
print("computing for a minute; autogpu status shows it", flush=True)
time.sleep(60)
'''


class Ended(Exception):
    """The terminal was closed, or we were told to end."""


def main(arguments: list[str] | None = None) -> int:
    """Have a server and a shell on it, or a shell on the one that there is."""
    parser = argparse.ArgumentParser(prog="python -m demo.lab", description="A shell on a living simulated GPU server.")
    parser.add_argument(
        "--fleet", help=f"{', '.join(FLEETS)}, or a file as tests/gpusim/lab.toml; else {FLEET}, or the one that runs"
    )
    parser.add_argument("--seed", type=int, default=1, help="of what comes and goes")
    options = parser.parse_args(arguments)
    people.adopt_orphans()
    for number in (signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, _end)
    try:
        while True:
            registered = _registered()
            with registered.open("a+") as lab:
                try:
                    fcntl.flock(lab, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    return _join(lab, options.fleet)
                if not registered.exists() or not os.path.samestat(registered.stat(), os.fstat(lab.fileno())):
                    continue  # that of a server which has just ended
                try:
                    return _have(lab, options.fleet or FLEET, options.seed)
                finally:
                    registered.unlink()
                    with contextlib.suppress(OSError):  # the next one has come meanwhile
                        registered.parent.rmdir()
    except (FleetError, BuildError, OSError) as error:
        print(f"lab: {error}", file=sys.stderr)
        return 2
    except (Ended, KeyboardInterrupt):
        return 0
    finally:
        end_all_below()


def _end(number: int, _: object) -> None:
    signal.signal(number, signal.SIG_IGN)
    raise Ended


def _registered() -> Path:
    """The file that is locked for as long as there is a server of this user; it says how to get there."""
    folder = Path(tempfile.gettempdir()) / f"autogpu-lab.{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise OSError(f"{folder} belongs to another user; remove it, or set TMPDIR")
    return folder / "lab.json"


def _have(lab: IO[str], name: str, seed: int) -> int:
    lab.truncate(0)  # what an earlier server left
    fleet = fleet_named(name)
    cleaned = tempfile.TemporaryDirectory(prefix="autogpu-lab-", ignore_cleanup_errors=True)
    with contextlib.ExitStack() as opened, cleaned as made:
        folder = Path(made)
        folder.chmod(0o755)
        users = people.add_users(PEOPLE, folder)
        other = environments.tensorflow_if_there()
        python = opened.enter_context(people.opened_to_users(Path(other or sys.executable).resolve(), users))
        environ = _lay_out(fleet, folder, other, python)
        orders = Orders(str(folder), name if name in FLEETS else str(Path(name).resolve()), seed, users)
        command = [sys.executable, "-m", "demo.lab.stage", orders.text()]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        with terminal_as_before(), subprocess.Popen(command, env=environ, cwd=ROOT, **pipes) as stage:
            try:
                assert stage.stdout is not None
                if stage.stdout.readline() != b"ready\n":
                    return 1
                json.dump({"pid": os.getpid(), "fleet": name, "folder": made, "environ": environ}, lab)
                lab.flush()
                print(_welcome(name, fleet, users, python, has_tensorflow=other is not None), flush=True)
                _in_shell(environ, folder)
                return 0
            finally:
                # Before the folder goes, which they write to.
                end_all_below()


def _join(lab: IO[str], asked: str | None) -> int:
    told = _told(lab)
    if told is None:
        print("lab: the server that there was has ended; once more: make lab", file=sys.stderr)
        return 1
    if asked not in (None, told["fleet"]):
        what = f"a server runs already, and it is {shlex.quote(told['fleet'])}"
        print(f"lab: {what}; end that first (`exit` in its first shell)", file=sys.stderr)
        return 1
    people.join(told["pid"])
    print("A shell on the server that runs already; it ends with the first shell.")
    with terminal_as_before():
        _in_shell(told["environ"], Path(told["folder"]), lab)
    return 0


def _told(lab: IO[str]) -> dict | None:
    """What the server's own process has written, which takes it some seconds; ``None`` if it ends meanwhile."""
    while True:
        lab.seek(0)
        with contextlib.suppress(ValueError):
            return json.loads(lab.read())
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(lab, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return None
        time.sleep(0.1)


def _in_shell(environ: Mapping[str, str], folder: Path, until_free: IO[str] | None = None) -> None:
    """Have a shell until it ends, or until that file is no longer locked."""
    # The shell's own affair from now on.
    for number in (signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, lambda *_: None)
    shell = open_shell(environ, folder)

    def watch() -> None:
        assert until_free is not None
        fcntl.flock(until_free, fcntl.LOCK_SH)
        fcntl.flock(until_free, fcntl.LOCK_UN)
        print("\r\nThe server has ended.", file=sys.stderr)
        # A shell about to read a line may act on the first only when a key is pressed; on another it ends at once.
        while shell.poll() is None:
            shell.send_signal(signal.SIGHUP)
            time.sleep(0.2)

    if until_free is not None:
        threading.Thread(target=watch, daemon=True).start()
    shell.wait()


def _lay_out(fleet: Fleet, folder: Path, tensorflow: Path | None, python: Path) -> dict[str, str]:
    """Make the server, and what a visitor finds there; the environment of a process on it."""
    leases, home = folder / "leases", folder / "home"
    for each in (leases, home):
        each.mkdir()
    leases.chmod(0o1777)
    _make_environment(folder, environments.site_packages(tensorflow or Path(sys.executable)), python)
    (home / "job.py").write_text(JOB, encoding="utf-8")
    if tensorflow:
        (home / "train.py").write_text((ROOT / "demo" / "train.py").read_text(encoding="utf-8"), encoding="utf-8")
    given = {name: value for name, value in os.environ.items() if not name.startswith(OF_AUTOGPU_AND_CUDA)}
    # Behind the simulated ones; a Python looks for its own where it was built to be.
    given["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, [given.get("LD_LIBRARY_PATH"), f"{python.parents[1]}/lib"]))
    server = with_libraries_in_front(lay_out(fleet, folder, folder / "gpusim.log", device_nodes=True), given)
    paths = [str(template_folder()), given.get("PYTHONPATH", "")]
    return {
        **given,
        **server,
        "AUTOGPU_LEASE_DIR": str(leases),
        # What a visitor's runs took ends with the server.
        "XDG_STATE_HOME": str(home),
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
    }


def _make_environment(folder: Path, theirs: Path, python: Path) -> None:
    """Make ``folder`` a virtual environment of ``python`` that has autogpu and all that is in the folder ``theirs``."""
    packages, commands = folder / "lib" / theirs.parent.name / "site-packages", folder / "bin"
    for each in (packages, commands):
        each.mkdir(parents=True)
    (packages / "of_another.pth").write_text(f"{theirs}\n", encoding="utf-8")
    for name in ("autogpu", "sitecustomize_template"):
        (packages / name).symlink_to(ROOT / name)
    # TensorFlow's environment has no autogpu, and not all that this needs.
    for name in ("click", "pynvml"):
        file = Path(__import__(name).__file__ or "")
        own = file.parent if file.stem == "__init__" else file
        (packages / own.name).symlink_to(own)
    (folder / "pyvenv.cfg").write_text(f"home = {python.parent}\n", encoding="utf-8")
    for name in ("python", "python3"):
        (commands / name).symlink_to(python)
    (commands / "autogpu").write_text(f'#!/bin/sh\nexec {commands}/python -m autogpu "$@"\n', encoding="utf-8")
    (commands / "autogpu").chmod(0o755)


def _welcome(name: str, fleet: Fleet, users: Mapping[str, int], python: Path, *, has_tensorflow: bool) -> str:
    others = ", ".join(PEOPLE) + ("" if users else " (all are you here; a script's name says whose it is)")
    others += _about_su(users, python)
    script = (
        "python train.py                       a Keras script that names no GPU"
        if has_tensorflow
        else "(after `make demo` there is TensorFlow here as well, and a train.py)"
    )
    return f"""
A simulated server with {counted(len(fleet.gpus), "GPU")} ({shlex.quote(name)}), on which jobs of other people
come and go: {others}.

  autogpu status                        who has which GPU, who waits; -w: watch
  autogpu pick --explain                which GPU you would get, and why
  autogpu run --hold -- python job.py   a program that uses CUDA
  autogpu wait --count 2                until two GPUs are free
  {script}

Another shell on it: `make lab` in another terminal. `exit` ends the server.
Other servers: make lab FLEET=NAME; there are {", ".join(others_than(name)[:4])},
{", ".join(others_than(name)[4:])}.
"""


def _about_su(users: Mapping[str, int], python: Path) -> str:
    if users and people.is_reachable(ROOT / "autogpu") and people.is_reachable(python.parent):
        return f".\nTo be one of them: su {next(iter(users))}"
    why = "this checkout or its Python is closed to them" if users else "only root can"
    return f".\nYou can't become one of them with su: {why}"


def others_than(name: str) -> list[str]:
    """The fleets that could be chosen instead."""
    return [each for each in FLEETS if each != name]


if __name__ == "__main__":
    sys.exit(main())
