"""A process that imports a framework and forks a child for each script. ``forkserver.py`` starts it.

The Python of the environment under test runs this file, so it uses only the standard library of 3.7.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import json
import os
import runpy
import signal
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any, Mapping

# From linux/prctl.h: sets the signal that a child gets when its parent has ended.
PR_SET_PDEATHSIG = 1


def serve(framework: str) -> dict[str, Any]:
    """Fork a child for each line of stdin. Return only in a child, with its case; the parent exits at the end of stdin.

    The status pipe of a child gets two lines: the child writes its pid when it begins, and the parent the exit status.
    """
    # Replace this file's name and folder by the values of plain `python`.
    sys.argv, sys.path[0] = [""], ""
    __import__(framework)
    statuses: dict[int, int] = {}

    def tell_ends(*_: Any) -> None:
        for child in list(statuses):
            # The handler of a signal that interrupted this loop may have reaped the child already.
            with suppress(ChildProcessError):
                pid, status = os.waitpid(child, os.WNOHANG)
                if pid:
                    # The exit status as in subprocess: negative for a signal.
                    code = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
                    with suppress(BrokenPipeError):
                        os.write(statuses[child], b"%d\n" % code)
                    os.close(statuses.pop(child))

    signal.signal(signal.SIGCHLD, tell_ends)
    # A garbage collection in a child writes to all objects that it visits, and so would copy their memory.
    gc.freeze()
    for line in sys.stdin:
        case: dict[str, Any] = json.loads(line)
        case["status"] = os.open(case["status"], os.O_WRONLY)
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for status in statuses.values():
                os.close(status)
            return case
        statuses[pid] = case["status"]
        # The child may have ended before it was in `statuses`.
        tell_ends()
    sys.exit(0)


class ImportedBefore:
    """An import finder and loader for one imported module. It does not run the module's body again."""

    def __init__(self, module: Any) -> None:
        self._module = module

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != self._module.__name__:
            return None
        from importlib.machinery import ModuleSpec

        loader: Any = self
        spec = ModuleSpec(name, loader, origin=self._module.__file__)
        spec.submodule_search_locations = list(self._module.__path__)
        return spec

    def create_module(self, spec: Any) -> Any:
        return self._module

    def exec_module(self, module: Any) -> None:
        pass


def begin(case: Mapping[str, Any], framework: str) -> None:
    """Make this fork look like a process that has just been started as ``python script``."""
    os.setsid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    files = [os.open(case["input"], os.O_RDONLY)]
    files += [os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600) for path in case["outputs"]]
    for descriptor, file in enumerate(files):
        os.dup2(file, descriptor)
        os.close(file)
    sys.stdin = open(0)  # noqa: SIM115
    os.write(case["status"], b"%d\n" % os.getpid())
    os.close(case["status"])
    os.environ.clear()
    os.environ.update(case["environ"])
    os.chdir(case["folder"])
    sys.argv[:] = [case["script"], *case["arguments"]]
    sys.path[0] = str(Path(case["script"]).parent)
    module = sys.modules.pop(framework)
    hook = sys.modules.pop("_autogpu_hook", None)
    if hook is not None:
        # Import the hook again: its import records the initial environment and the frameworks imported before.
        sys.meta_path.remove(hook)
        sys.modules.pop("_autogpu_hook._autogpu_steps", None)
        __import__("_autogpu_hook")
    if framework != "tensorflow":
        # Insert the finder after the hook, and before the finder that would load the framework's file.
        sys.meta_path.insert(1 if hook is not None else 0, ImportedBefore(module))


def run(script: str, framework: str) -> int:
    """Run ``script`` as ``__main__`` and return its exit status."""
    status = 0
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as error:
        if isinstance(error.code, str):
            sys.stderr.write(error.code + "\n")
            return 1
        status = int(error.code or 0)
    except BaseException as error:
        sys.excepthook(*sys.exc_info())
        return -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    if framework not in sys.modules:
        # The script used submodules that the parent had imported, so the hook did not run. A fresh process lacks them.
        sys.stderr.write(f"AssertionError: a script that is forked has to say `import {framework}`\n")
        return 1
    return status


def tell_lease(file: str) -> None:
    """If this process has a lease, write the GPU UUIDs in the lease to ``file``, sorted and as JSON."""
    for record in Path(os.environ["AUTOGPU_LEASE_DIR"]).glob("job.*"):
        fields = json.loads(record.read_text())
        if fields["pid"] == os.getpid():
            Path(file).write_text(json.dumps(sorted(fields["gpus"])))


def end(exit_status: int) -> None:
    """End as an interpreter does, but without the teardown of modules.

    The teardown would first copy all memory that a child shares with its parent. That takes several times as long as
    most scripts.
    """
    getattr(threading, "_shutdown")()  # noqa: B009
    getattr(atexit, "_run_exitfuncs")()  # noqa: B009
    sys.stdout.flush()
    sys.stderr.flush()
    # Write out what TensorFlow's C++ code has printed.
    ctypes.CDLL(None).fflush(None)
    if exit_status == -signal.SIGINT:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(exit_status)


def main(framework: str) -> None:
    """Run the parent. Each forked child returns from :func:`serve` and runs its script."""
    case = serve(framework)
    begin(case, framework)
    status = run(case["script"], framework)
    if case.get("lease_file"):
        tell_lease(case["lease_file"])
    end(status)


if __name__ == "__main__":
    main(sys.argv[1])
