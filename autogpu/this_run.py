"""The run of a script that this process is: what its last runs took, and what this one took, at its end."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Mapping, Sequence

from autogpu import history, uncaught
from autogpu.devices.model import Device, Inventory
from autogpu.policy.model import Policy
from autogpu.process import is_worker
from autogpu.reporting.text import GIB, size
from autogpu.selection.grants import Grant, is_engine_worker
from autogpu.selection.memory import CONTEXT_BYTES
from autogpu.selection.model import MemoryDemand

TYPE_CHECKING = False
if TYPE_CHECKING:
    from autogpu.frameworks.base import Framework

# Of a GPU that a script needs nearly whole, the rest is of no use to others.
_WORTH_SHARING = 0.75


class ThisRun:
    """One run; its script, arguments, policy and GPUs say which others were runs of the same job.

    Attributes:
        key: The job's, for its lease; ``""`` until the GPUs are known, and where nothing is kept.
    """

    def __init__(self, policy: Policy, environ: Mapping[str, str], grant: Grant) -> None:
        """Nothing is read yet. The arguments are those of now: a script may change them later."""
        # What a worker of an engine runs is not told by its arguments.
        self._arguments = _script_arguments() if policy.history and not is_engine_worker(environ) else ()
        self._history = history.History(environ)
        self._policy = policy
        self._ranks = grant.rank.size if grant.rank is not None else 1
        self._job: Sequence[object] = ()
        self._peaks: Sequence[int] = ()
        self._frameworks: list[Framework] = []
        self._is_limited = False
        self._pid: int | None = None
        self.key = ""

    def learned(self, inventory: Inventory | None, uuids: Sequence[str]) -> MemoryDemand | None:
        """The claim of a script that may have these GPUs, where the policy wants it by the script's last runs."""
        self._know(inventory)
        if self._policy.need_bytes != "learned" or not self._need_bytes or inventory is None:
            return None
        totals = [device.memory_total_bytes or 0 for device in inventory.devices if device.uuid in uuids]
        # Where none has the tenth that is added, the runs were right all the same.
        return MemoryDemand(bytes=self._need_bytes, is_limit=self._need_bytes > max(totals, default=0))

    def line(self, taken: Sequence[Device], *, by_script: bool) -> str:
        """The end of the line that names the GPUs; ``""`` where the last runs are of no use."""
        policy, least = self._policy, min((device.memory_total_bytes or 0 for device in taken), default=0)
        if policy.need_bytes == "learned":
            return self._how_learned(least)
        is_told = by_script or policy.need_bytes is not None or policy.limit is not None
        if is_told or not 0 < self._need_bytes <= _WORTH_SHARING * least:
            return ""
        took = history.took_at_most(self._peak_bytes or 0, CONTEXT_BYTES)
        return f"{took}: AUTOGPU_NEED={-(-self._need_bytes // GIB)}GiB lets others share this GPU"

    def _how_learned(self, total_bytes: int) -> str:
        if not self._policy.history:
            return "select.need is not learned, for report.history is false"
        if not self._arguments:
            return "select.need is learned only from runs of a script's file"
        if self._policy.limit is not None:
            return "select.need is not learned under memory.limit"
        if self._peak_bytes is None:
            runs = len(self._peaks) // self._ranks
            there_are = f"there {'is' if runs == 1 else 'are'} {runs}"
            return f"select.need is learned from {history.RUNS} runs, of which {there_are}"
        return f"claims {size(min(self._need_bytes, total_bytes))}, learned from {history.RUNS} runs"

    def uses(self, framework: Framework, *, is_limited: bool) -> None:
        """A framework takes GPUs: at the end it will have counted how much. A forked child calls this itself."""
        if not self._job:
            return
        if self._pid != os.getpid():
            self._pid, self._frameworks, self._is_limited = os.getpid(), [], False
            # Later than those of the framework, so that it runs before them.
            uncaught.at_end(self._at_end)
        self._is_limited |= is_limited
        if framework not in self._frameworks:
            self._frameworks.append(framework)

    @property
    def _peak_bytes(self) -> int | None:
        return history.peak_of(self._peaks, self._ranks)

    @property
    def _need_bytes(self) -> int:
        """A tenth more than it took at most, and the CUDA context; 0 where that is not known."""
        return self._peak_bytes * 11 // 10 + CONTEXT_BYTES if self._peak_bytes else 0

    def _know(self, inventory: Inventory | None) -> None:
        if self._job or not self._arguments or inventory is None:
            return
        policy, models = self._policy, sorted({device.name for device in inventory.devices})
        memory = policy.growth, str(policy.limit), policy.limit_includes, policy.virtual_gpus
        # Workers that a program starts do something else than the program.
        self._job = (*self._arguments, *memory, policy.count, self._ranks, is_worker(), *models)
        kept = self._history.read()
        self.key = history.key_of(kept, *self._job)
        self._peaks = history.peaks_of(kept, self.key)

    def _at_end(self, error: BaseException | None) -> None:
        if self._pid == os.getpid():
            with suppress(BaseException):  # a full disk, or what a script has broken
                self._keep(error)

    def _keep(self, error: BaseException | None) -> None:
        ran_out = any(used.out_of_memory(each) for each in uncaught.chain(error) for used in self._frameworks)
        # An error or Ctrl-C may have come before the memory was needed, and a limit hides what would have been taken.
        if ran_out:
            self._history.keep(self._job, 0)
        elif error is None and not self._is_limited:
            needed = [framework.needed_bytes(growth=self._policy.growth) for framework in self._frameworks]
            if all(needed):
                self._history.keep(self._job, sum(needed))


def _script_arguments() -> tuple[str, ...]:
    """The file of the running script and its arguments; ``()`` at a prompt, in a notebook, and for ``-c`` and stdin."""
    argv = [str(each) for each in getattr(sys, "argv", None) or ()]
    try:
        is_script = bool(argv) and not hasattr(sys, "ps1") and Path(argv[0]).is_file()
    except (OSError, ValueError):  # a folder that may not be entered, or no name at all
        is_script = False
    return (os.path.realpath(argv[0]), *argv[1:]) if is_script else ()
