"""From the moment before PyTorch initialises CUDA to the last of its contexts."""

from __future__ import annotations

import atexit
import os
import re
import sys
import threading

from autogpu import threads
from autogpu.frameworks.base import DeviceRequest, Usage
from autogpu.frameworks.torch.program import sources
from autogpu.frameworks.words import memory_in_words

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Iterable, Mapping

    from autogpu.frameworks.base import Assignment, GpuAllocator
    from autogpu.frameworks.torch.names import Named

# A tensor makes a context without a word to Python. Soon after the start most of them come; from then on the lease is
# half a second behind at most, at some 20 microseconds for each look.
_FIRST_LOOK_S = 0.02
_SLOWER = 1.3
_LAST_PAUSE_S = 0.5

# Both are read by PyTorch, of which the second is newer.
_ALLOCATOR_SETTINGS = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")

# Up to here a limit makes a context, and its GPU the thread's current device.
_LIMIT_MAKES_CONTEXTS = (2, 8)


class CudaStart:
    """CUDA in one process, as PyTorch starts it.

    Attributes:
        set_fraction: PyTorch's own function: a part of a GPU's memory, 0 to 1, and the GPU's ordinal.
    """

    def __init__(self, allocator: GpuAllocator, core: Any, version: str) -> None:
        """Nothing has been started.

        Args:
            core: ``torch._C``.
            version: PyTorch's.
        """
        number = re.match(r"(\d+)\.(\d+)", version)
        self._limit_makes_contexts = number is not None and (int(number[1]), int(number[2])) <= _LIMIT_MAKES_CONTEXTS
        self.set_fraction: Callable[[float, int], None] | None = None
        self._allocator = allocator
        self._core = core
        self._named: Named | None = None
        self._by_script: set[int] = set()
        self._limited: dict[int, float] = {}
        self._followed_in: int | None = None
        self._stop = threading.Event()
        self._lock = threading.RLock()
        threads.in_forked_children(self._unlock_in_child)

    def _unlock_in_child(self) -> None:
        self._lock, self._stop = threading.RLock(), threading.Event()

    def _end(self) -> None:
        self._stop.set()

    def put_back(self, name: str, ours: Any, original: Any) -> None:
        """Let a function of ``torch._C`` be itself again, where no one else has replaced it since."""
        if getattr(self._core, name, None) is ours:
            setattr(self._core, name, original)

    def before(self) -> None:
        """CUDA is about to be initialised, if it is not already."""
        with self._lock, self._allocator.guard():
            if self._named is None:
                # Not at the top: many processes import PyTorch and never start CUDA.
                from autogpu.frameworks.torch.names import named
                from autogpu.frameworks.torch.text import read

                self._named = named(getattr(sys, "argv", [])[1:], read(sources()))
            fraction = fraction_of_settings(os.environ)
            said = DeviceRequest(0, fraction=fraction, ordinal=self._named.ordinal, is_told=self._named.is_told)
            self._allocator.prepare(said)
            self._allocator.hide_where_none_is_taken()

    def on_failure(self) -> None:
        """There is no CUDA, or no GPU: of the policy's doing, or of the machine's."""
        with self._lock, self._allocator.guard():
            self._allocator.on_unused()
            self._allocator.on_usage(Usage((), ""))

    def after_counting(self) -> bool:
        """CUDA has counted the GPUs; whether the process is to have any."""
        with self._lock, self._allocator.guard():
            fraction = fraction_of_settings(os.environ)
            count = self._allocator.gpu_count or 0
            assignment = self._allocator.assign(DeviceRequest(count, fraction=fraction))
            self._report(assignment, fraction)
        assigned = self._allocator.assignment
        return assigned is None or assigned.ordinals != ()

    def _report(self, assignment: Assignment, fraction: float) -> None:
        ordinals = assignment.ordinals
        if ordinals is None:
            # A worker is told by its parent which GPU to use; others begin with the first.
            ordinals = () if self._allocator.follows_parent else (0,)
        caps = [_cap(assignment, ordinal) for ordinal in ordinals]
        self._allocator.on_usage(Usage(ordinals, memory_in_words(caps, fraction, grows=True)))

    def after_init(self) -> None:
        """PyTorch's allocators are there: limit them, and follow what they use."""
        with self._lock, self._allocator.guard():
            self._follow_contexts()
            assignment = self._allocator.assignment
            fraction = fraction_of_settings(os.environ)
            if assignment is None or (fraction and not assignment.ceilings) or not assignment.caps:
                return
            in_use, ordinals = self._allocator.follow_contexts(), assignment.ordinals or ()
            if self._limit_makes_contexts and 0 not in ordinals:
                return  # that GPU would become the thread's current one: as soon as the script has a context there
            # The first one comes last, and is the current one as before.
            self._limit(sorted(ordinals, reverse=True))
            if self._allocator.follow_contexts() == in_use:
                self._limit(assignment.caps)

    def allowed_fraction(self, fraction: float, ordinal: int) -> float:
        """What a script's own limit may come to."""
        allowed = fraction
        with self._allocator.guard():
            self._by_script.add(ordinal)
            assignment = self._allocator.assignment
            total = assignment.totals.get(ordinal) if assignment else None
            if assignment is not None and total:
                ceiling = assignment.ceilings.get(ordinal)
                allowed = fraction if ceiling is None else min(fraction, ceiling / total)
                self._allocator.on_limit(ordinal, int(allowed * total))
        return allowed

    def _limit(self, ordinals: Iterable[int]) -> None:
        assignment, fraction = self._allocator.assignment, fraction_of_settings(os.environ)
        if assignment is None or self.set_fraction is None:
            return
        for ordinal in ordinals:
            cap, total = _cap(assignment, ordinal), assignment.totals.get(ordinal)
            if fraction:
                cap = assignment.ceilings.get(ordinal)
            part = fraction or 1.0
            if cap is not None and total:
                part = min(part, cap / total)
            # Without one PyTorch allocates all, which needs no word to it; it does once others have gone.
            if ordinal not in self._by_script and part != self._limited.get(ordinal, fraction or 1.0):
                self._limited[ordinal] = part
                self.set_fraction(part, ordinal)

    def _follow_contexts(self) -> None:
        """Look from now on for contexts, in a thread; it does not survive a fork, nor do they."""
        if self._followed_in == os.getpid():
            return
        self._followed_in = os.getpid()
        atexit.register(self._end)
        try:
            threads.start_unlisted(self._look_again_and_again)
        except RuntimeError:  # no more threads for this user, or the interpreter is at its end
            self._allocator.follow_contexts()

    def _look_again_and_again(self) -> None:
        pause_s = _FIRST_LOOK_S
        while not self._stop.wait(pause_s):
            with self._allocator.guard():
                self._limit(self._allocator.follow_contexts())
            pause_s = min(pause_s * _SLOWER, _LAST_PAUSE_S)


def _cap(assignment: Assignment, ordinal: int) -> int | None:
    size = assignment.caps.get(ordinal)
    return None if size is None else size * assignment.logical_gpus


def fraction_of_settings(environ: Mapping[str, str]) -> float:
    """The part of each GPU to which the script's or the shell's settings limit the allocator; 0 where they don't."""
    for name in _ALLOCATOR_SETTINGS:
        found = re.search(r"\bper_process_memory_fraction\s*:\s*([0-9.eE+-]+)", environ.get(name, ""))
        if found:
            try:
                return min(max(float(found.group(1)), 0.0), 1.0)
            except ValueError:  # for PyTorch to complain about
                return 0.0
    return 0.0
