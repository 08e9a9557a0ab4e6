"""A shell on the lab's server, and the end of everything that was started in it."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import termios
from pathlib import Path
from typing import Iterator, Mapping

from demo.lab import people

RC = """\
[ -f ~/.bashrc ] && . ~/.bashrc
PATH={commands}:$PATH
PS1='lab$ '
"""


def open_shell(environ: Mapping[str, str], folder: Path) -> subprocess.Popen[bytes]:
    """Start a shell in ``folder/home``; it is told to end when this process is gone."""
    rc = folder / f"rc.{os.getpid()}"
    rc.write_text(RC.format(commands=folder / "bin"), encoding="utf-8")
    bash = shutil.which("bash")
    # For a person; a file of commands on stdin needs none of it.
    command = [bash, "--rcfile", str(rc), "-i"] if bash and sys.stdin.isatty() else [bash or "/bin/sh"]
    own = {"VIRTUAL_ENV": str(folder), "PATH": f"{folder / 'bin'}{os.pathsep}{environ.get('PATH', '')}"}
    parent = os.getpid()

    def prepare() -> None:
        for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGTTOU):
            signal.signal(number, signal.SIG_DFL)
        people.end_with_parent(parent, signal.SIGHUP)

    return subprocess.Popen(command, env={**environ, **own}, cwd=folder / "home", preexec_fn=prepare)


@contextlib.contextmanager
def terminal_as_before() -> Iterator[None]:
    """Give the terminal back as it was: a shell that is killed leaves it as it has set it."""
    if not sys.stdin.isatty():
        yield
        return
    before = termios.tcgetattr(0)
    try:
        yield
    finally:
        # It may belong to a group that is gone, or be closed.
        signal.signal(signal.SIGTTOU, signal.SIG_IGN)
        with contextlib.suppress(OSError, termios.error):
            os.tcsetpgrp(0, os.getpgrp())
            termios.tcsetattr(0, termios.TCSADRAIN, before)


def end_all_below() -> None:
    """Kill every process below this one; after ``people.adopt_orphans`` also those whose own parent has ended."""
    while True:
        below = _below(os.getpid())
        if not below:
            return
        for pid in below:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        # Those of which we are not the parent yet come with the next look.
        for pid in below:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)


def _below(pid: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for each in Path("/proc").iterdir():
        if each.name.isdigit():
            with contextlib.suppress(OSError):
                parent = (each / "stat").read_text(errors="replace").rpartition(")")[2].split()[1]
                children.setdefault(int(parent), []).append(int(each.name))
    found = list(children.get(pid, ()))
    for one in found:
        found += children.get(one, ())
    return found
