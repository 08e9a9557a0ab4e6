"""Run commands as a person, which is a user whom a host's hook folder serves. Root and system users are not persons."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any, Sequence

PERSON = 4711
_READS_ALL = ("--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search")


def as_user(uid: int, command: Sequence[str], capabilities: Sequence[str] = _READS_ALL) -> list[str]:
    """Prefix ``command`` to run as user ``uid``, who by default can read all files, also a Python below /root."""
    if uid == os.geteuid():
        return list(command)
    return ["setpriv", "--clear-groups", f"--reuid={uid}", f"--regid={uid}", *capabilities, "--", *command]


def as_person(command: Sequence[str]) -> list[str]:
    own = os.geteuid()
    return as_user(own if own >= 1000 else PERSON, command)


def as_person_alone(command: Sequence[str]) -> list[str]:
    """Return the command that runs ``command`` as a person who may not read files of root."""
    own = os.geteuid()
    return as_user(own if own >= 1000 else PERSON, command, ())


def give(path: Path) -> None:
    """Change the owner of a folder to the person."""
    if os.geteuid() < 1000:
        os.chown(str(path), PERSON, PERSON)


def run(command: Sequence[str], **options: Any) -> subprocess.CompletedProcess:
    settings = {"capture_output": True, "text": True, "timeout": 120, "check": False, **options}
    return subprocess.run(command, **settings)


def _why_none() -> str:
    if os.geteuid() >= 1000:
        return ""
    if shutil.which("setpriv") is None:
        return "no setpriv on this machine"
    done = run(as_user(PERSON, ["true"]))
    return f"root can't become another user on this machine: {done.stderr.strip()}" if done.returncode else ""


# The reason why this machine can't run a command as a person; empty if it can.
NO_PERSON = _why_none()
