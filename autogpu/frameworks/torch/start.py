"""From the moment before PyTorch initialises CUDA to that when its allocators are there."""

from __future__ import annotations

import os
import re
import sys
import threading

import autogpu
from autogpu import process
from autogpu.frameworks.base import DeviceRequest, Usage
from autogpu.reporting.text import memory_in_words

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any, Callable, Iterator, Mapping

    from autogpu.frameworks.base import Assignment, GpuAllocator
    from autogpu.selection.number import Call

# Both are read by PyTorch, of which the second is newer.
_ALLOCATOR_SETTINGS = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")

# Up to here a limit makes a context, and its GPU the thread's current device.
_LIMIT_MAKES_CONTEXTS = (2, 8)


class CudaStart:
    """CUDA in one process, as PyTorch starts it; ``set_fraction`` is PyTorch's own function that limits a GPU."""

    def __init__(self, allocator: GpuAllocator, core: Any, version: str) -> None:
        """Start nothing yet; ``core`` is ``torch._C``."""
        number = re.match(r"(\d+)\.(\d+)", version)
        self._limit_makes_contexts = number is not None and (int(number[1]), int(number[2])) <= _LIMIT_MAKES_CONTEXTS
        self.set_fraction: Callable[[float, int], None] | None = None
        self._allocator = allocator
        self._core = core
        self._number = 0
        self._by_script = 0.0
        self._lock = process.renewed_in_children(self, "_lock")

    def put_back(self, name: str, ours: Any, original: Any) -> None:
        """Let a function of ``torch._C`` be itself again, where no one else has replaced it since."""
        if getattr(self._core, name, None) is ours:
            setattr(self._core, name, original)

    def certain_count(self) -> int | None:
        """How many GPUs CUDA will count, where that is certain before it is started; else ``None``."""
        count, torch = None, sys.modules["torch"]
        with self._lock, self._allocator.guard():
            built_for = re.match(r"(\d+)\.(\d+)", str(torch.version.cuda))
            if built_for is not None and not _is_asked_by_a_library(torch):
                count = self._allocator.certain_gpu_count((int(built_for[1]), int(built_for[2])))
        return count

    def before(self) -> None:
        """CUDA is about to be initialised, if it is not already."""
        with self._lock, self._allocator.guard():
            # Not at the top: many processes import PyTorch and never start CUDA.
            from autogpu.selection.number import number_of_process

            torch, arguments = sys.modules["torch"], getattr(sys, "argv", [])[1:]
            number = number_of_process(_calls(torch), arguments, _index_in(torch))
            self._number = number or 0
            self._by_script = fraction_of_settings(os.environ) or fraction_of_caller(sys._getframe())
            ordinal = None if number is None and _is_worker() else self._number
            self._allocator.prepare(DeviceRequest(0, fraction=self._by_script, ordinal=ordinal))
            self._allocator.hide_where_none_is_taken()

    def on_failure(self) -> None:
        """There is no CUDA, or no GPU: of the policy's doing, or of the machine's."""
        with self._lock, self._allocator.guard():
            self._allocator.on_unused()
            self._allocator.on_usage(Usage((), ""))

    def after_counting(self) -> bool:
        """Assign the GPUs that CUDA has counted; false if the process is to have none."""
        with self._lock, self._allocator.guard():
            count = self._allocator.gpu_count or 0
            request = DeviceRequest(count, fraction=self._by_script, ordinal=self._number)
            self._report(self._allocator.assign(request))
        assigned = self._allocator.assignment
        return assigned is None or assigned.ordinals != ()

    def _report(self, assignment: Assignment) -> None:
        ordinals = assignment.ordinals
        if ordinals is None:
            ordinals = (self._number if self._number < (self._allocator.gpu_count or 0) else 0,)
        caps = [_caps(assignment).get(ordinal) for ordinal in ordinals]
        self._allocator.on_usage(Usage(ordinals, memory_in_words(caps, self._by_script, grows=True)))

    def after_init(self) -> None:
        """PyTorch's allocators are there: limit them."""
        with self._lock, self._allocator.guard():
            limits = self._limits(self._allocator.assignment)
            if self._limit_makes_contexts and limits:
                # Each would make its GPU the thread's current one.
                thread = threading.Thread(target=self._limit, args=(limits,))
                thread.start()
                thread.join()
            else:
                self._limit(limits)

    def _limits(self, assignment: Assignment | None) -> Mapping[int, float]:
        if assignment is None:
            return {}
        by_settings = fraction_of_settings(os.environ)
        limits = {}
        for ordinal, size in (assignment.ceilings if by_settings else _caps(assignment)).items():
            total = assignment.totals.get(ordinal)
            if total and (not self._limit_makes_contexts or ordinal in (assignment.ordinals or ())):
                limits[ordinal] = min(by_settings or 1.0, size / total)
        return limits

    def _limit(self, limits: Mapping[int, float]) -> None:
        with self._allocator.guard():
            for ordinal, part in limits.items():
                if self.set_fraction is not None:
                    self.set_fraction(part, ordinal)

    def allowed_fraction(self, fraction: float, ordinal: int) -> float:
        """Cut a script's own limit to the most that it may come to."""
        with self._allocator.guard():
            assignment = self._allocator.assignment
            total = assignment.totals.get(ordinal) if assignment else None
            ceiling = assignment.ceilings.get(ordinal) if assignment else None
            if total and ceiling is not None:
                return min(fraction, ceiling / total)
        return fraction


def _calls(torch: Any) -> Iterator[Call]:
    """The calls that lead here, innermost first, but for our own."""
    from autogpu.selection.number import Call

    own, its = (str(file).rpartition(os.sep)[0] + os.sep for file in (autogpu.__file__, torch.__file__))
    frame = sys._getframe()
    while frame is not None:
        code = frame.f_code
        if not code.co_filename.startswith(own):
            yield Call(code.co_name, dict(frame.f_locals), code.co_consts, code.co_filename.startswith(its))
        frame = frame.f_back  # type: ignore[assignment]


def _is_asked_by_a_library(torch: Any) -> bool:
    """A module asks while it is imported, for a default of its own.

    Keras 3 does, and C++ then starts CUDA without a word to Python, by ``torch.Generator("cuda")``.
    """
    for call in _calls(torch):
        if not call.is_frameworks:
            return call.function == "<module>" and call.variables.get("__name__") not in ("__main__", "__mp_main__")
    return False


def _is_worker() -> bool:
    """Python's ``multiprocessing`` started this process."""
    process: Any = sys.modules.get("multiprocessing.process")
    return process is not None and getattr(process.current_process(), "_parent_pid", None) is not None


def _index_in(torch: Any) -> Callable[[object], int | None]:
    def index(value: Any) -> int | None:
        return (value.index or 0) if type(value) is torch.device and value.type == "cuda" else None

    return index


def _caps(assignment: Assignment) -> Mapping[int, int]:
    return {ordinal: size * assignment.logical_gpus for ordinal, size in assignment.caps.items()}


def fraction_of_settings(environ: Mapping[str, str]) -> float:
    """The part of each GPU to which the script's or the shell's settings limit the allocator; 0 where they don't."""
    texts = (environ.get(name, "") for name in _ALLOCATOR_SETTINGS)
    found = (re.search(r"\bper_process_memory_fraction\s*:\s*([0-9.eE+-]+)", text) for text in texts)
    try:
        return next((_part(each.group(1)) for each in found if each), 0.0)
    except ValueError:  # for PyTorch to complain about
        return 0.0


def fraction_of_caller(frame: FrameType | None) -> float:
    """The part to which a script is just limiting the allocator, where that is what starts CUDA; 0 where it is not."""
    while frame is not None and frame.f_code.co_name != "set_per_process_memory_fraction":
        frame = frame.f_back
    fraction = frame.f_locals.get("fraction") if frame is not None else None
    return _part(fraction) if isinstance(fraction, (int, float)) else 0.0


def _part(fraction: str | float) -> float:
    return min(max(float(fraction), 0.0), 1.0)
