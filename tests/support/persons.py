"""A person of this host: a user whom a host's hook folder serves, which root is not."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any, Sequence

PERSON = 4711
_READS_ALL = ("--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search")


def as_user(uid: int, command: Sequence[str], capabilities: Sequence[str] = _READS_ALL) -> list[str]:
    """The command as another user, who can read what is in a home folder of root, such as a Python."""
    if uid == os.geteuid():
        return list(command)
    return ["setpriv", "--clear-groups", f"--reuid={uid}", f"--regid={uid}", *capabilities, "--", *command]


def as_person(command: Sequence[str]) -> list[str]:
    own = os.geteuid()
    return as_user(own if own >= 1000 else PERSON, command)


def as_person_alone(command: Sequence[str]) -> list[str]:
    """As one who can't read what is root's."""
    own = os.geteuid()
    return as_user(own if own >= 1000 else PERSON, command, ())


def give(path: Path) -> None:
    """Make a folder the person's."""
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
    return f"this machine lets root become no other user: {done.stderr.strip()}" if done.returncode else ""


# Why no process here can be a person's; empty if one can.
NO_PERSON = _why_none()
