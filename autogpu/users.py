"""Names of users, and what a user types to run a command as root."""

from __future__ import annotations

import os

from autogpu.errors import raise_if_from_script
from autogpu.text import printable


def sudo() -> str:
    """What to type before a command for root: nothing in a shell of root's, which sudo's is not."""
    is_root = hasattr(os, "geteuid") and os.geteuid() == 0
    return "" if is_root and "SUDO_USER" not in os.environ else "sudo "


def host_setup_command(sudo: str) -> str:
    """Prepare the host: sudo has a PATH of its own, in which an environment's autogpu is not."""
    return "sudo $(command -v autogpu) host-setup" if sudo else "autogpu host-setup"


def user_name(uid: int) -> str:
    """The name of a user; ``uid 4711`` for one that this host does not know."""
    try:
        import pwd  # not on Windows

        return printable(pwd.getpwuid(uid).pw_name, 32)
    except (ImportError, KeyError) as error:
        raise_if_from_script(error)
        return f"uid {uid}"
