"""``torch.multiprocessing.spawn`` and its kin, which start several workers by one call: worker r uses GPU r."""

from __future__ import annotations

import functools
import re
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from autogpu.frameworks.base import GpuAllocator

# Called by ``torch.multiprocessing.spawn``, by Lightning and by notebook launchers.
START = "start_processes"

_MODULES = ("torch.multiprocessing.spawn", "torch.multiprocessing")

# Among the arguments without a name.
_COUNT = 2


def has_start() -> bool:
    """Whether this PyTorch has the function."""
    return callable(getattr(sys.modules.get(_MODULES[0]), START, None))


def follow_start(allocator: GpuAllocator) -> None:
    """Replace the function wherever PyTorch itself names it."""
    original = getattr(sys.modules.get(_MODULES[0]), START, None)
    replaced = None if original is None else _start_processes(original, allocator)
    for name in _MODULES:
        module = sys.modules.get(name)
        if replaced is not None and getattr(module, START, None) is original:
            setattr(module, START, replaced)


def _start_processes(original: Any, allocator: GpuAllocator) -> Any:
    @functools.wraps(original)
    def start_processes(*args: Any, **kwargs: Any) -> Any:
        with allocator.guard():
            count = kwargs.get("nprocs", args[_COUNT] if len(args) > _COUNT else 1)
            if isinstance(count, int):
                allocator.on_workers(count, _next_number())
        try:
            return original(*args, **kwargs)
        finally:
            with allocator.guard():
                allocator.on_workers_started()

    return start_processes


def _next_number() -> int:
    """What ``multiprocessing`` will number the next process; 1 where it does not tell."""
    counter = getattr(sys.modules.get("multiprocessing.process"), "_process_counter", None)
    found = re.fullmatch(r"count\(([0-9]+)\)", repr(counter))
    return int(found.group(1)) if found else 1
