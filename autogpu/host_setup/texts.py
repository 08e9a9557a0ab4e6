"""The two files that host-setup writes, and how it recognises them."""

from __future__ import annotations

import hashlib
import re
import textwrap

from autogpu.lease.folder import HOST_FOLDER, MUTEX
from autogpu.policy import templates
from autogpu.policy.model import BY_DOTTED

MARKER = b"autogpu host file"

FOLDER_MODE = 0o1777
MUTEX_MODE = 0o444

# What an administrator comes for; these stand above the list of all keys in the proposed policy.
_EXPLAINED = {
    "limits.per_user": "how many GPUs one user may lease at a time",
    "locked": "what no other layer may change; without it every value here is only a default",
    "select.exclude": "GPUs that are never used, such as one that drives a display; written like devices",
}

_WIDTH = 110

MAKES_FOLDER = re.compile(rf"^[dDvqQ]\S*\s+{re.escape(str(HOST_FOLDER))}/?(\s|$)".encode(), re.MULTILINE)
_SEAL = re.compile(rb"# " + MARKER + rb" ([0-9a-f]{16}):[^\n]*\n")


def tmpfiles_text() -> bytes:
    """The file that has the folder made at every boot."""
    return (
        f"# {MARKER.decode()}: `autogpu host-setup` writes it, and --undo removes it. Without this line it is yours.\n"
        f"d {HOST_FOLDER} {FOLDER_MODE:o} root root -\n"
        f"f {HOST_FOLDER / MUTEX} {MUTEX_MODE:04o} root root -\n"
    ).encode("ascii")


def policy_text() -> bytes:
    """The proposed system policy: every key with its default, behind a ``#``. By itself it sets nothing.

    Only the tables are not commented out, so that removing one ``#`` is all it takes to set a key.
    """
    head = [
        "#",
        "# The policy of this host, below that of every user and project. Nothing is set here yet: remove the # from",
        "# a line and change its value. What an administrator mostly wants:",
    ]
    for dotted, purpose in _EXPLAINED.items():
        key = BY_DOTTED[dotted]
        table = f"under [{key.section}]" if key.section else "above all tables"
        head += ["#", f"#   {key.example.partition('#')[0].strip()}"]
        text = f"({table}) {purpose}. {key.more}"
        head += textwrap.wrap(text, _WIDTH, initial_indent="#     ", subsequent_indent="#     ")
    head += ["#", "# `autogpu config` shows the values in use and where they come from. All keys and their defaults:"]
    # The example begins with a paragraph for a user's own file.
    listing = templates.example().partition("\n\n")[2].splitlines()
    body = [line if not line or line.startswith("[") else "#" + line for line in listing]
    rest = "\n".join([*head, "", *body, ""]).encode("ascii")
    return seal(rest) + rest


def seal(rest: bytes) -> bytes:
    """The first line of a policy: it tells :func:`is_as_written` that ``rest`` is what was written."""
    promise = "host-setup --undo removes it as long as it is unchanged."
    return f"# {MARKER.decode()} {_digest(rest).decode()}: {promise}\n".encode("ascii")


def is_as_written(content: bytes) -> bool:
    """Whether some version of host-setup wrote the policy, and it is unchanged since."""
    found = _SEAL.match(content)
    return found is not None and found.group(1) == _digest(content[found.end() :])


def _digest(rest: bytes) -> bytes:
    return hashlib.sha256(rest).hexdigest()[:16].encode("ascii")
