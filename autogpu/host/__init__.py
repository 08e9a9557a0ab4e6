"""Prepare a host for all its users: one lease folder that root owns, made anew at every boot, and a system policy.

Without it autogpu works in a folder of the first user's; :func:`parts` says what that one can't do. Looking
(:func:`observe`), planning and doing are apart. Returns values and prints nothing; the command line words them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from autogpu.errors import InstallError
from autogpu.host.condition import BOOT_LINE, FALLBACK_LIMITS, parts
from autogpu.host.model import TMPFILES, Host, Part, Places, Step
from autogpu.host.observation import observe
from autogpu.host.plan import plan_setup, plan_undo
from autogpu.host.proposal import policy_text, tmpfiles_text
from autogpu.host.steps import apply, remove_file, remove_folder

__all__ = [
    "BOOT_LINE",
    "FALLBACK_LIMITS",
    "TMPFILES",
    "Host",
    "Part",
    "Places",
    "Setup",
    "Step",
    "Undone",
    "apply",
    "observe",
    "parts",
    "plan_setup",
    "plan_undo",
    "policy_text",
    "setup",
    "tmpfiles_text",
    "undo",
]


@dataclass(frozen=True)
class Setup:
    """What a setup did, and how the host is now.

    Attributes:
        steps: None if everything was in place.
        notes: What went another way than planned, as sentences.
    """

    host: Host
    steps: tuple[Step, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Undone:
    """What an undo removed and what it left.

    Attributes:
        in_use: Why the lease folder is still there, of those in ``left``; ``""`` if it is gone or not ours.
    """

    host: Host
    removed: tuple[Path, ...]
    left: tuple[Step, ...]
    in_use: str


def setup(root: Path = Path("/")) -> Setup:
    """Make what is missing and repair what is ours. Twice is the same as once.

    Raises:
        InstallError: Not root, something foreign is in the way (nothing has been changed), or the system
            refused.
    """
    host = observe(root)
    steps = plan_setup(host)
    notes = apply(steps, host)
    host = observe(root)
    for part in parts(host):
        if part.is_required and part.problem:
            raise InstallError(f"{part.path} {part.problem}, after all", remedy=f"see {host.command('--check')}")
    return Setup(host, steps, notes)


def undo(root: Path = Path("/")) -> Undone:
    """Remove what setup wrote and nobody changed, and the folder if nobody is using it.

    Raises:
        InstallError: Not root, or the system refused.
    """
    host = observe(root)
    left = []
    removed = []
    in_use = ""
    for step in plan_undo(host):
        if step.action == "leave":
            left.append(step)
        elif step.path == host.places.folder:
            in_use = remove_folder(step.path, host)
            if in_use:
                left.append(Step("leave", step.path, why=in_use))
            else:
                removed.append(step.path)
        else:
            remove_file(step.path, host)
            removed.append(step.path)
    return Undone(observe(root), tuple(removed), tuple(left), in_use)
