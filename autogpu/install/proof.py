"""Which hook a fresh interpreter really loads, and which ``sitecustomize`` it would find."""

from __future__ import annotations

import ast
import os
import subprocess
from pathlib import Path
from typing import Mapping, NamedTuple

TIMEOUT_S = 60
TIMED_OUT = "timed out"

# Answers on the last line, in ASCII: other start-up code may print, and paths need not be UTF-8.
_QUESTION = """
import sys
hooks = [getattr(f, "__file__", None) for f in sys.meta_path if getattr(f, "__name__", "") == "_autogpu_hook"]
from importlib.machinery import PathFinder
spec = PathFinder.find_spec("sitecustomize")
print()
print(ascii((hooks[0] if hooks else None, spec and spec.origin)))
"""


class FreshStart(NamedTuple):
    """One start of an interpreter.

    Attributes:
        hook: The file of the autogpu hook among the finders; ``None`` without one.
        sitecustomize: The file that ``import sitecustomize`` finds first, ours or not.
        complaint: What it printed on stderr, or that it failed; empty if all was quiet.
    """

    hook: Path | None
    sitecustomize: Path | None
    complaint: str


def fresh_start(executable: str, environ: Mapping[str, str]) -> FreshStart:
    """Start ``executable`` once and look; ``environ`` is the whole environment it gets."""
    try:
        done = subprocess.run(
            [executable, "-c", _QUESTION],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=dict(environ),
            cwd=os.path.dirname(executable) or None,  # noqa: PTH120  (with -c it comes first in sys.path)
            timeout=TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return FreshStart(None, None, f"{executable} {TIMED_OUT} after {TIMEOUT_S} s")
    except OSError as error:
        return FreshStart(None, None, f"{executable} does not start: {error.strerror}")
    complaint = done.stderr.decode(errors="replace").strip()
    try:
        hook, sitecustomize = ast.literal_eval(done.stdout.decode().strip().splitlines()[-1])
    except (ValueError, SyntaxError, IndexError):
        return FreshStart(None, None, complaint or f"{executable} ended with status {done.returncode}")
    return FreshStart(Path(hook) if hook else None, Path(sitecustomize) if sitecustomize else None, complaint)
