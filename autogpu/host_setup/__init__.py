"""Prepare a host for all its users: one lease folder that root owns, made anew at every boot, and a system policy.

Without it autogpu uses a folder of its first user. Returns values and prints nothing; the command line words them.
"""

from autogpu.host_setup.actions import Setup, Step, Undone, apply, plan_setup, plan_undo, setup, undo
from autogpu.host_setup.host import Host, HostPaths, observe
from autogpu.host_setup.parts import BOOT_LINE, Part, parts
from autogpu.host_setup.texts import policy_text, tmpfiles_text

__all__ = [
    "BOOT_LINE",
    "Host",
    "HostPaths",
    "Part",
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
