"""``make lab``: a shell on a simulated GPU server on which other people's jobs come and go.

When the shell ends, the server and every process on it end too. Nothing on the machine changes.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from autogpu.install import run_folder
from demo.lab.scene import PEOPLE
from demo.lab.stage import JOB, ROOT, started_stage
from demo.pythons import pythons_with_torch
from tests.gpusim.fleets import FLEETS
from tests.support import environments

FLEET = "rtx-4090"
OF_AUTOGPU_AND_CUDA = ("AUTOGPU", "CUDA_", "GPUSIM", "NVIDIA_")
ADOPT_ORPHANS = 36  # PR_SET_CHILD_SUBREAPER

TORCH = "\n  ./torch-python train_torch.py         run a PyTorch script with the PyTorch of your `python`"

SHELL = """\
#!/bin/sh
{exports}
export PATH={commands}:$PATH PYTHONPATH={hook}${{PYTHONPATH:+:$PYTHONPATH}}
cd {home}
exec bash --rcfile {home}/.labrc
"""

RC = """\
[ -f ~/.bashrc ] && . ~/.bashrc
PATH={commands}:$PATH
PS1='lab$ '
"""

WELCOME = """
A simulated server with {gpus} GPUs ({fleet}). Jobs of other people come and go:
{people}. All run as you; a script's name begins with its user.

  autogpu status                        show the jobs on each GPU and the queue; -w: watch
  autogpu pick --explain                show which GPU you would get, and why
  autogpu run --hold -- python job.py   run a program that uses CUDA
  autogpu wait --count 2                wait until two GPUs are free
  python train.py                       run a Keras script that names no GPU; needs `make demo`{torch}
  AUTOGPU=0 python train.py             the same without autogpu: on GPU 0, beside dora's job

To open another shell on this server, run in another terminal: {shell}
`exit` ends the server. Other servers, such as dgx-a100: make lab FLEET=dgx-a100.
"""


def main() -> int:
    """Become a process on a simulated server, start the jobs there, and run a shell until it ends."""
    parser = argparse.ArgumentParser(prog="python -m demo.lab", description="Open a shell on a simulated GPU server.")
    parser.add_argument("--fleet", choices=FLEETS, default=FLEET, help=f"the server (default: {FLEET})")
    parser.add_argument("--on-server", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not options.on_server:
        _become_process_on_server(options.fleet)
    ctypes.CDLL(None).prctl(ADOPT_ORPHANS, 1, 0, 0, 0)
    for number in (signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, lambda *_: sys.exit(0))
    folder = Path(os.environ["GPUSIM_FLEET"]).parent
    python = Path(sys.executable)
    if environments.tensorflow_if_there():
        python = environments.tensorflow_with_autogpu()
    home = folder / "home"
    home.mkdir()
    torch = pythons_with_torch()
    for script in (JOB, ROOT / "demo" / "train.py", ROOT / "demo" / "train_torch.py"):
        shutil.copy(script, home)
    # The history of the visitor's runs is deleted with the server's folder.
    os.environ["XDG_STATE_HOME"] = str(home)
    shell = _write_shell(home, python, torch[1] if torch else None)
    try:
        with started_stage(os.environ, folder, options.fleet):
            shown = {"gpus": len(FLEETS[options.fleet].gpus), "fleet": options.fleet, "people": ", ".join(PEOPLE)}
            print(WELCOME.format(**shown, shell=shell, torch=TORCH if torch else ""), flush=True)
            signal.signal(signal.SIGINT, lambda *_: None)  # Ctrl-C is for the shell alone
            subprocess.call([str(shell)])
    finally:
        _end_children()
    return 0


def _become_process_on_server(fleet: str) -> None:
    environ = {name: value for name, value in os.environ.items() if not name.startswith(OF_AUTOGPU_AND_CUDA)}
    environ["AUTOGPU_TEST_CACHE"] = str(environments.CACHE)  # the folder of the environment with TensorFlow
    again = [sys.executable, "-m", "demo.lab", "--fleet", fleet, "--on-server"]
    os.execve(sys.executable, [sys.executable, "-m", "tests.gpusim", "--fleet", fleet, "--", *again], environ)


def _write_shell(home: Path, python: Path, torch: Path | None) -> Path:
    """Write a script that opens a shell on the server from any terminal; return its path."""
    if torch:
        wrapper = home / "torch-python"
        wrapper.write_text(f'#!/bin/sh\nexec {shlex.quote(str(torch))} "$@"\n', encoding="utf-8")
        wrapper.chmod(0o755)
    commands = shlex.quote(str(python.parent))
    (home / ".labrc").write_text(RC.format(commands=commands), encoding="utf-8")
    exports = "\n".join(f"export {name}={shlex.quote(value)}" for name, value in os.environ.items())
    shell = home.parent / "shell"
    hook, quoted_home = shlex.quote(str(run_folder())), shlex.quote(str(home))
    script = SHELL.format(exports=exports, commands=commands, hook=hook, home=quoted_home)
    shell.write_text(script, encoding="utf-8")
    shell.chmod(0o755)
    return shell


def _end_children() -> None:
    """Kill every descendant. A process whose parent has ended becomes our child, as we are a subreaper."""
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    while True:
        pids = children.read_text().split()
        if not pids:
            return
        for pid in map(int, pids):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


if __name__ == "__main__":
    sys.exit(main())
