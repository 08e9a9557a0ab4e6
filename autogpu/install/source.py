"""How a remedy installs packages: by which command, and autogpu itself from where it came."""

from __future__ import annotations

import importlib.util
import json
import shlex
from urllib.parse import unquote, urlsplit


def pip_command(executable: str, action: str, *, has_pip: bool) -> str:
    """``action``, such as ``install numpy``, for the environment of a Python; those that uv makes have no pip."""
    program = shlex.quote(executable)
    return f"{program} -m pip {action}" if has_pip else f"uv pip {action} --python {program}"


def has_pip() -> bool:
    """The environment of this Python has a pip of its own."""
    return importlib.util.find_spec("pip") is not None


def pip_source() -> str:
    """Name the same autogpu for ``pip install``, as a shell writes it: a folder, an address or the name.

    Source: ``direct_url.json`` (PEP 610), which pip writes for whatever does not come from an index.
    """
    try:
        from importlib.metadata import distribution  # Python 3.8

        told = json.loads(distribution("autogpu").read_text("direct_url.json") or "{}")
        return shlex.quote(_written(str(told["url"]), told.get("vcs_info", {}).get("vcs")))
    except (ImportError, ValueError, KeyError, TypeError, AttributeError):
        return "autogpu"


def _written(url: str, vcs: str | None) -> str:
    if vcs:
        return f"{vcs}+{url}"
    parts = urlsplit(url)
    return unquote(parts.path) if parts.scheme == "file" else url
