"""``torch.multiprocessing.spawn`` and its kin, which start several workers by one call: worker r uses GPU r."""

from __future__ import annotations

import os
import sys
from typing import Any

from autogpu.frameworks.base import hooked
from autogpu.selection.ranks import worker_of
from autogpu.variables import WORKER

TYPE_CHECKING = False
if TYPE_CHECKING:
    from autogpu.frameworks.base import GpuAllocator

# Called by ``torch.multiprocessing.spawn``, by Lightning and by notebook launchers.
START = "start_processes"

_MODULES = ("torch.multiprocessing.spawn", "torch.multiprocessing")

# Among the arguments without a name.
_COUNT = 2


class Numbered:
    """A worker's function that first tells its process which of the workers it is; pickled like the function."""

    def __init__(self, function: Any, count: int, job: str) -> None:
        """Wrap ``function`` for ``count`` workers; ``job`` names this start, and no other of the host."""
        self.function = function
        self.count = count
        self.job = job

    def __call__(self, number: int, *args: Any) -> Any:
        """Run the function as worker ``number``."""
        os.environ[WORKER] = worker_of(number, self.count, self.job)
        return self.function(number, *args)


def has_start() -> bool:
    """This PyTorch has the function."""
    return callable(getattr(sys.modules.get(_MODULES[0]), START, None))


def follow_start(allocator: GpuAllocator) -> None:
    """Replace the function wherever PyTorch itself names it."""
    original = getattr(sys.modules.get(_MODULES[0]), START, None)
    replaced = None if original is None else hooked(original, _start_processes, allocator)
    for name in _MODULES:
        module = sys.modules.get(name)
        if replaced is not None and getattr(module, START, None) is original:
            setattr(module, START, replaced)


def _start_processes(original: Any, allocator: GpuAllocator, fn: Any, *args: Any, **kwargs: Any) -> Any:
    with allocator.guard():
        count = kwargs.get("nprocs", args[_COUNT - 1] if len(args) >= _COUNT else 1)
        job = allocator.on_workers(count) if isinstance(count, int) and _runs_this_python() else ""
        if job:
            fn = Numbered(fn, count, job)
    return original(fn, *args, **kwargs)


def _runs_this_python() -> bool:
    """Workers run in this environment; a program may have named another Python, which may have no autogpu."""
    spawn = sys.modules.get("multiprocessing.spawn")
    return spawn is None or os.fsdecode(spawn.get_executable() or "") == sys.executable
