"""Run a short program in a new Python and read its answer."""

from __future__ import annotations

import os

from autogpu.errors import raise_if_from_script
from autogpu.frozen import Value
from autogpu.process import copy_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Mapping, Sequence


class Answer(Value):
    """The value that a program printed, or the reason why there is no value.

    Attributes:
        value: The JSON in the last line that the program printed; ``None`` if there is none.
        error: Why there is no value; ``""`` if there is one.
        stderr: The text that the program printed on stderr; ``""`` if there is no value.
        timed_out: True if the program had not ended at the deadline, perhaps only because the machine is busy.
    """

    value: Any = None
    error: str = ""
    stderr: str = ""
    timed_out: bool = False


def run_snippet(
    executable: str, program: str, environ: Mapping[str, str], deadline_s: float = 60.0, options: Sequence[str] = ()
) -> Answer:
    """Run ``program`` in a new Python, and read the JSON in the last line that it prints.

    Earlier lines may come from start-up code of that Python.
    """
    import json  # few processes run a snippet
    import subprocess

    try:
        done = subprocess.run(
            [executable, *options, "-c", program],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=copy_of(environ),
            # Run in another folder, because the current one would come first in sys.path.
            cwd=os.path.dirname(executable) or None,
            timeout=deadline_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise_if_from_script(error)
        return Answer(error=f"timed out after {deadline_s:.0f} s", timed_out=True)
    except OSError as error:
        raise_if_from_script(error)
        return Answer(error=f"the process does not start: {error.strerror}")
    stderr = done.stderr.decode(errors="replace").strip()
    try:
        value = json.loads(done.stdout.decode(errors="replace").strip().splitlines()[-1])
    except (ValueError, IndexError) as error:
        raise_if_from_script(error)
        if done.returncode < 0:
            return Answer(error=f"the process was killed by signal {-done.returncode}")
        return Answer(error=stderr.rpartition("\n")[2] or f"the process ended with status {done.returncode}")
    return Answer(value, stderr=stderr)
