"""The moments at which autogpu acts in a process that imports a framework, and the guard around each of them.

The start-up hook calls ``before_import`` and ``after_import`` around the framework's body; from then on the framework's
own functions call the :class:`autogpu.allocation.Allocation` when they make a context.
"""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager

from autogpu.devices import probe
from autogpu.errors import EXIT_TRY_AGAIN, AutoGpuError, NoEligibleDevice, WaitTimeout
from autogpu.reporting.stderr import say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType
    from typing import Iterator

    from autogpu.allocation import Allocation

# Of this process; ``None`` where autogpu does nothing.
allocation: Allocation | None = None


def before_import(framework: str, started_with: str | None) -> None:
    """Begin to read the driver and the policy, beside an import that takes seconds.

    Args:
        framework: The top-level package that is about to run.
        started_with: ``CUDA_VISIBLE_DEVICES`` when the interpreter started, ``None`` if it was not set.
    """
    global allocation
    if not sys.platform.startswith("linux"):
        return  # no framework has CUDA there; WSL2 counts as Linux
    with guard():
        reading = probe.start(os.environ)
        # Not at the top of the file: the driver is read while the rest of the package is imported.
        from autogpu import engines, policy
        from autogpu.allocation import Allocation
        from autogpu.frameworks import registry

        resolved = policy.resolve(os.environ, script=_script(), working_directory=_working_directory())
        grant = engines.granted_here(os.environ)
        for problem in resolved.problems if grant.is_first else ():
            say(str(problem))
        if resolved.policy.enabled:
            allocation = Allocation(
                registry.load(framework),
                resolved,
                os.environ,
                guard,
                grant=grant,
                started_with=started_with,
                first_reading=reading,
            )
        else:
            reading.close()


def after_import(framework: str, module: ModuleType) -> None:
    """Order the visible GPUs, idlest first, and hook into the framework. Nothing is claimed."""
    with guard():
        if allocation:
            allocation.imported()


@contextmanager
def guard() -> Iterator[None]:
    """Let the framework go on whatever becomes of us: its import and its context are worth more than our choice."""
    try:
        yield
    except NoEligibleDevice:
        raise  # the policy asks for it
    except WaitTimeout as error:  # and for this
        say(f"{error.what}; {error.remedy}")
        raise SystemExit(EXIT_TRY_AGAIN) from None
    except AutoGpuError as error:  # a disk that is full, a folder that has gone: known, and not for a bug report
        say(f"{error.what}; {error.remedy}")
    except Exception as error:  # the one place: anything may break in a process that is not ours
        if _is_of_the_script(error):
            raise
        from autogpu.reporting import messages

        file, line = _raised_at(error)
        say(messages.internal_error(error, f"{os.path.basename(file)}:{line}"))


def _is_of_the_script(error: BaseException) -> bool:
    """Whether code of the script raised it, as a handler of a signal does: at any moment, and for the script alone."""
    file, _ = _raised_at(error)
    # autogpu, the standard library and what pip installs; "<frozen importlib>" and its like.
    known = (os.path.dirname(os.path.abspath(__file__)), os.path.dirname(os.__file__), "<frozen ")
    return not file.startswith(known) and "site-packages" not in file and "dist-packages" not in file


def _raised_at(error: BaseException) -> tuple[str, int]:
    trace = error.__traceback__
    assert trace is not None  # it was caught
    while trace.tb_next is not None:
        trace = trace.tb_next
    return trace.tb_frame.f_code.co_filename, trace.tb_lineno


def _script() -> Path | None:
    """The file of the running script; ``None`` in a REPL, with ``-c`` and where there is no such file."""
    from pathlib import Path

    argv = getattr(sys, "argv", None)
    name = argv[0] if argv else ""
    return Path(os.path.realpath(name)) if name and os.path.isfile(name) else None


def _working_directory() -> Path:
    from pathlib import Path

    try:
        return Path.cwd()
    except OSError:  # removed while the process was in it
        return Path(os.sep)
