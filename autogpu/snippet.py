"""Run a short program in a new Python and read its answer."""

from __future__ import annotations

import os

from autogpu.errors import raise_if_from_script
from autogpu.process import copy_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Mapping, Sequence

TIMED_OUT = "timed out"


def run_snippet(
    executable: str, program: str, environ: Mapping[str, str], deadline_s: float = 60.0, options: Sequence[str] = ()
) -> tuple[Any, str, str]:
    """Run ``program`` in a new Python, and read the JSON in the last line that it prints.

    Earlier lines may come from start-up code of that Python.

    Returns:
        The value, or ``None`` and the reason; and the text on stderr.
    """
    import json  # few processes run a snippet
    import subprocess

    try:
        done = subprocess.run(
            [executable, *options, "-c", program],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=copy_of(environ),
            # Not the current folder, which would come first in sys.path.
            cwd=os.path.dirname(executable) or None,
            timeout=deadline_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise_if_from_script(error)
        return None, f"{TIMED_OUT} after {deadline_s:.0f} s", ""
    except OSError as error:
        raise_if_from_script(error)
        return None, f"it does not start: {error.strerror}", ""
    stderr = done.stderr.decode(errors="replace").strip()
    try:
        return json.loads(done.stdout.decode(errors="replace").strip().splitlines()[-1]), "", stderr
    except (ValueError, IndexError) as error:
        raise_if_from_script(error)
        if done.returncode < 0:
            return None, f"it ended by signal {-done.returncode}", ""
        return None, stderr.rpartition("\n")[2] or f"it ended with status {done.returncode}", ""
