"""The entry points of autogpu in a process that imports a framework, and the guard around each of them.

The start-up hook calls ``before_import`` before Python runs the framework's module, and ``after_import`` afterwards.
Later, when the framework creates a context, its own functions call its
:class:`autogpu.frameworks.base.HookedFramework`.
"""

from __future__ import annotations

import os
import sys

from autogpu import frameworks, process
from autogpu.devices import probe
from autogpu.errors import (
    EXIT_TRY_AGAIN,
    AutoGpuError,
    NoEligibleDevice,
    WaitTimeout,
    raise_if_from_script,
    where_raised,
)
from autogpu.stderr import say
from autogpu.text import printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType, TracebackType

    from autogpu.allocation import Allocation
    from autogpu.frameworks.base import HookedFramework

# In a worker process of Ray, the start-up hook calls before_import and after_import for the package ``ray`` too.
RAY = "ray"

# The allocation of this process; ``None`` if autogpu does nothing in it.
allocation: Allocation | None = None

# The frameworks that this process has imported, keyed by their top-level package.
imported: dict[str, HookedFramework] = {}

# Runs the step that makes the allocation.
_beginning = process.OncePerProcess()

# Two frameworks may be used for the first time in two threads.
_lock = process.fork_safe_rlock(sys.modules[__name__], "_lock")


class _SwitchedOff(Exception):
    """The policy switches autogpu off. A late framework learns this only when it is used."""


# A class, not a generator: importing contextlib would delay the reading of the driver by 4 ms.
class guard:
    """A context manager that catches every error of autogpu.

    The framework then goes on with its import, or with the creation of its context, without autogpu.
    """

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: TracebackType | None) -> bool:
        """Report and suppress an error of autogpu, unless the policy asks for it, as ``busy = "error"`` does."""
        if isinstance(error, (NoEligibleDevice, KeyboardInterrupt)):
            if trace is not None:
                trace.tb_next = None  # the traceback ends where the framework called us
            return False
        if isinstance(error, WaitTimeout):
            import threading

            say(f"{error.what}; {error.remedy}")
            # SystemExit would end a thread silently. It would end a worker of a process pool, and the script would wait
            # for the worker's result forever.
            if threading.current_thread() is not threading.main_thread() or process.is_worker():
                return False
            raise SystemExit(EXIT_TRY_AGAIN) from None
        if not isinstance(error, Exception):
            return False
        raise_if_from_script(error)
        if isinstance(error, AutoGpuError):  # an expected failure, such as a full disk: not a bug
            say(f"{error.what}; {error.remedy}")
        elif not isinstance(error, _SwitchedOff):  # a bug, or something that broke in the user's process
            _report(error)
        return True


def before_import(framework: str, started_with: str | None) -> None:
    """Prepare autogpu for a framework that is about to be imported.

    Start to read the driver and the policy now, because the import takes seconds. Frameworks in ``frameworks.LATE``
    start the reading at their first use. All frameworks of a process share one reading.

    Args:
        framework: The top-level package that is about to run.
        started_with: ``CUDA_VISIBLE_DEVICES`` when the interpreter started, ``None`` if it was not set.
    """
    if not sys.platform.startswith("linux"):
        return  # autogpu supports only Linux; WSL2 counts as Linux
    with guard():
        # Skip other packages: the hook also calls this for Ray, and a later hook may list more frameworks.
        if framework in imported or framework not in frameworks.FRAMEWORKS:
            return
        begun = None if framework in frameworks.LATE else _begin(started_with)
        new = frameworks.load(framework)(lambda: _begin(started_with), guard)
        if begun is not None:
            new.join(begun)
        imported[framework] = new


def after_import(framework: str, module: ModuleType) -> None:
    """Order the visible GPUs, idlest first, and hook into the framework. Nothing is claimed."""
    with guard():
        if framework == RAY:
            from autogpu.engines import ray_tasks

            ray_tasks.before_each_task(ray_tasks.pass_on)
        elif framework in imported:
            imported[framework].imported()


def _begin(started_with: str | None) -> Allocation:
    """Return the allocation of this process; the first framework that is imported or used makes it."""
    with _lock:
        _beginning.run(lambda: _read_and_resolve(started_with))
    if allocation is None:
        raise _SwitchedOff
    return allocation


def _read_and_resolve(started_with: str | None) -> None:
    global allocation
    reading = probe.start(os.environ)
    # Not at the top of the file: the driver is read while the rest of the package is imported.
    from pathlib import Path

    from autogpu import policy
    from autogpu.allocation import Allocation
    from autogpu.engines.facts import granted_here
    from autogpu.selection.visible_devices import initial_visibility

    file = process.script_file()
    resolved = policy.resolve(
        os.environ, script=Path(file) if file else None, working_directory=policy.working_directory()
    )
    initial = initial_visibility(os.environ, started_with)
    grant = granted_here(os.environ, initial)
    if resolved.problems and grant.is_first:
        from autogpu.reporting.mistakes import policy_problem

        for problem in resolved.problems:
            say(policy_problem(problem))
    if not resolved.policy.enabled:
        reading.close()
        return
    allocation = Allocation(resolved, os.environ, guard, grant=grant, initial=initial, first_reading=reading)


def _report(error: Exception) -> None:
    try:
        say(
            f"internal error ({type(error).__name__} at {where_raised(error)}: {printable(str(error))}); "
            "the framework continues with its defaults; AUTOGPU=0 turns autogpu off"
        )
    except Exception as broken:  # what broke in the script's process may break this as well
        raise_if_from_script(broken)
