"""A process that imports a framework and forks a child for each script; see ``forkserver.py``, which starts it.

Run by the Python of the environment under test: nothing but the standard library of 3.7.
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

# Of linux/prctl.h: what a child gets when its parent has ended.
PR_SET_PDEATHSIG = 1


def serve(framework: str) -> dict[str, Any]:
    """Fork a child for each line of stdin; returns in the child, with its case. Ends with its input.

    The first line of a child's status is its pid, which it writes when it has begun; the second how it ended.
    """
    # As with `python`, and not with this file's name and folder.
    sys.argv, sys.path[0] = [""], ""
    __import__(framework)
    statuses: dict[int, int] = {}

    def tell_ends(*_: Any) -> None:
        for child in list(statuses):
            # None any more where a signal came while this looked.
            with suppress(ChildProcessError):
                pid, status = os.waitpid(child, os.WNOHANG)
                if pid:
                    # As subprocess gives it.
                    code = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
                    with suppress(BrokenPipeError):
                        os.write(statuses[child], b"%d\n" % code)
                    os.close(statuses.pop(child))

    signal.signal(signal.SIGCHLD, tell_ends)
    # A collection in a child would copy what it looks at.
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
        # It may have ended by now.
        tell_ends()
    sys.exit(0)


class ImportedBefore:
    """Finds one module that is there, and loads it without running its body again."""

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
    """Be the process that has just been started as ``python script``."""
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
        # It notes what the process was started with, and which frameworks were there before it.
        sys.meta_path.remove(hook)
        sys.modules.pop("_autogpu_hook._autogpu_steps", None)
        __import__("_autogpu_hook")
    if framework != "tensorflow":
        # Behind the hook, and before what finds the file.
        sys.meta_path.insert(1 if hook is not None else 0, ImportedBefore(module))


def run(script: str, framework: str) -> int:
    """Run ``script`` as ``__main__``; returns the exit status."""
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
        # It found the parts of the framework in place, without the hook: not what it would do by itself.
        sys.stderr.write(f"AssertionError: a script that is forked has to say `import {framework}`\n")
        return 1
    return status


def tell_lease(file: str) -> None:
    """Write the UUIDs in this process's lease to ``file``, if it has one."""
    for record in Path(os.environ["AUTOGPU_LEASE_DIR"]).glob("job.*"):
        fields = json.loads(record.read_text())
        if fields["pid"] == os.getpid():
            Path(file).write_text(json.dumps(sorted(fields["gpus"])))


def end(exit_status: int) -> None:
    """End as an interpreter does, but for taking every module apart.

    That would first copy the whole memory that a child shares with its parent: it takes several times as long as
    what most scripts do.
    """
    getattr(threading, "_shutdown")()  # noqa: B009
    getattr(atexit, "_run_exitfuncs")()  # noqa: B009
    sys.stdout.flush()
    sys.stderr.flush()
    # What TensorFlow's own code has printed.
    ctypes.CDLL(None).fflush(None)
    if exit_status == -signal.SIGINT:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(exit_status)


def main(framework: str) -> None:
    """Be the parent, and then each of its children."""
    case = serve(framework)
    begin(case, framework)
    status = run(case["script"], framework)
    if case.get("lease_file"):
        tell_lease(case["lease_file"])
    end(status)


if __name__ == "__main__":
    main(sys.argv[1])
