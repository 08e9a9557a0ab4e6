"""Which hook a fresh interpreter really loads, and which ``sitecustomize`` it would find."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any, Mapping, NamedTuple

TIMEOUT_S = 60
TIMED_OUT = "timed out"

_QUESTION = """
import json, sys
hooks = [f for f in sys.meta_path if getattr(f, "__name__", "") == "_autogpu_hook"]
for hook in hooks:
    hook.find_spec(hook.frameworks[0] + ".")  # this loads the second file, which Python compiles for later starts
from importlib.machinery import PathFinder
spec = PathFinder.find_spec("sitecustomize")
print()
print(json.dumps((getattr(hooks[0], "__file__", None) if hooks else None, spec and spec.origin)))
"""


class Answer(NamedTuple):
    """The ``value`` that a program printed as JSON, or an ``error`` that says why there is none."""

    value: Any = None
    error: str = ""
    stderr: str = ""


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


def ask(executable: str, program: str, environ: Mapping[str, str], deadline_s: float) -> Answer:
    """Start a Python with ``environ``, and read the last line of what ``program`` prints: start-up code may print."""
    try:
        done = subprocess.run(
            [executable, "-c", program],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=dict(environ),
            # Not the current folder, which would come first in sys.path.
            cwd=os.path.dirname(executable) or None,  # noqa: PTH120
            timeout=deadline_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Answer(error=f"{TIMED_OUT} after {deadline_s:.0f} s")
    except OSError as error:
        return Answer(error=f"it does not start: {error.strerror}")
    stderr = done.stderr.decode(errors="replace").strip()
    try:
        return Answer(json.loads(done.stdout.decode(errors="replace").strip().splitlines()[-1]), stderr=stderr)
    except (ValueError, IndexError):
        if done.returncode < 0:
            return Answer(error=f"it ended by signal {-done.returncode}")
        return Answer(error=stderr.rpartition("\n")[2] or f"it ended with status {done.returncode}")


def fresh_start(executable: str, environ: Mapping[str, str]) -> FreshStart:
    """Start ``executable`` once and look."""
    answer = ask(executable, _QUESTION, environ, TIMEOUT_S)
    hook, sitecustomize = (path and Path(path) for path in answer.value or (None, None))
    return FreshStart(hook, sitecustomize, answer.error or answer.stderr)
