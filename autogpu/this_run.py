"""The run of a script that this process is: what its last runs took, and what this one took, at its end."""

from __future__ import annotations

import os
import sys
from contextlib import suppress

from autogpu import history, uncaught
from autogpu.frozen import replace
from autogpu.selection.grants import is_engine_worker
from autogpu.selection.memory import CONTEXT_BYTES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Mapping, Sequence

    from autogpu.devices.model import Device, Inventory
    from autogpu.frameworks.base import Framework
    from autogpu.policy import Policy
    from autogpu.selection.grants import Grant

# Of a GPU that a script needs nearly whole, the rest is of no use to others.
_WORTH_SHARING = 0.75


class ThisRun:
    """One run; its script, arguments, policy and GPUs say which others were runs of the same job."""

    def __init__(self, policy: Policy, environ: Mapping[str, str], grant: Grant) -> None:
        """Nothing is read yet. The arguments are those of now: a script may change them later."""
        # What a worker of an engine runs is not told by its arguments.
        is_script = policy.history and not is_engine_worker(environ)
        self._arguments = history.script_arguments() if is_script else ()
        # As its lease shows it; not of the file that a link leads to.
        self._name = str(sys.argv[0]).rpartition(os.sep)[2] if self._arguments else ""
        self._history = history.History(environ)
        self._policy = policy
        self._ranks = grant.rank.size if grant.rank is not None else 1
        self._models: Sequence[str] = ()
        self._peaks: Sequence[int] | None = None
        self._frameworks: list[Framework] = []
        self._is_limited = False
        self._pid: int | None = None

    def policy_for(self, inventory: Inventory | None) -> Policy:
        """The policy with what was learned as its need: the whole GPU where that is nothing yet."""
        if self._policy.need_bytes != "learned":
            return self._policy
        return replace(self._policy, need_bytes=self._need_bytes(inventory))

    def _need_bytes(self, inventory: Inventory | None) -> int | None:
        peak_bytes = self._peak_bytes(inventory)
        return None if peak_bytes is None else history.need_of(peak_bytes, CONTEXT_BYTES)

    def line(self, inventory: Inventory | None, taken: Sequence[Device], *, by_script: bool) -> str:
        """What the line that names the GPUs says of the last runs; ``""`` where that is of no use."""
        if self._policy.need_bytes == "learned":
            if not self._policy.history:
                return "select.need is not learned, for report.history is false"
            if not self._arguments:
                return "select.need is learned only from runs of a script's file"
            if self._policy.limit is not None:
                return "select.need is not learned under memory.limit"
            need_bytes = self._need_bytes(inventory)
            return history.learned(len(self._peaks or ()) // self._ranks, need_bytes)
        peak_bytes = self._peak_bytes(inventory)
        totals = [device.memory_total_bytes or 0 for device in taken]
        is_told = by_script or self._policy.need_bytes is not None or self._policy.limit is not None
        if peak_bytes is None or is_told or not totals:
            return ""
        is_worth_it = history.need_of(peak_bytes, CONTEXT_BYTES) <= _WORTH_SHARING * min(totals)
        return history.advice(peak_bytes, CONTEXT_BYTES) if is_worth_it else ""

    def uses(self, framework: Framework, inventory: Inventory | None, *, is_limited: bool) -> None:
        """A framework takes GPUs: at the end it will have counted how much. A forked child calls this itself."""
        if not self._arguments:
            return
        if self._pid != os.getpid():
            self._pid, self._frameworks, self._is_limited = os.getpid(), [], False
            # Later than those of the framework, so that it runs before them.
            uncaught.at_end(self._at_end)
        self._know(inventory)
        self._is_limited |= is_limited
        if framework not in self._frameworks:
            self._frameworks.append(framework)

    def _peak_bytes(self, inventory: Inventory | None) -> int | None:
        if self._peaks is None:
            self._know(inventory)
            peaks = self._history.peaks(*self._job) if self._arguments else ()
            self._peaks = history.since_out_of_memory(peaks)
        return history.peak_of(self._peaks, self._ranks)

    def _know(self, inventory: Inventory | None) -> None:
        if not self._models and inventory is not None:
            self._models = sorted({device.name for device in inventory.devices})

    @property
    def _job(self) -> tuple[object, ...]:
        policy = self._policy
        memory = policy.growth, str(policy.limit), policy.limit_includes, policy.virtual_gpus
        return (*self._arguments, *memory, policy.count, self._ranks, *self._models)

    def _at_end(self, error: BaseException | None) -> None:
        if self._pid == os.getpid():
            with suppress(BaseException):  # a full disk, or what a script has broken
                self._keep(error)

    def _keep(self, error: BaseException | None) -> None:
        ran_out = any(used.out_of_memory(each) for each in uncaught.chain(error) for used in self._frameworks)
        # An error or Ctrl-C may have come before the memory was needed, and a limit hides what would have been taken.
        if not ran_out and (error is not None or self._is_limited):
            return
        peak_bytes = 0 if ran_out else sum(framework.peak_bytes() for framework in self._frameworks)
        if peak_bytes or ran_out:
            self._history.keep(self._job, self._name, peak_bytes)
