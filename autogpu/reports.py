"""The lines about one framework of a process: which GPUs it takes and why, and why its memory ran out."""

from __future__ import annotations

import atexit
import os
import sys
from contextlib import suppress

from autogpu.reporting import messages
from autogpu.selection.model import Verdict

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

    from autogpu.allocation import Allocation
    from autogpu.devices.model import Inventory
    from autogpu.frameworks.base import Assignment, Framework, Usage
    from autogpu.selection.model import Decision, SelectionRequest


class Reports:
    """Prints the lines about one framework, as far as ``report.level`` allows."""

    def __init__(self, allocation: Allocation, framework: Framework) -> None:
        self._allocation = allocation
        self._framework = framework
        self._selection: SelectionRequest | None = None
        self._assignment: Assignment | None = None
        self._watching_pid: int | None = None

    def begin(self, usage: Usage, selection: SelectionRequest | None, assignment: Assignment | None) -> None:
        """The framework takes GPUs: record its peak at the end, and watch for an out-of-memory error until then."""
        allocation = self._allocation
        self._selection, self._assignment = selection, assignment
        caps = assignment.caps if assignment is not None else {}
        is_limited = self._is_limited_by_script or not caps.keys().isdisjoint(usage.ordinals)
        allocation.this_run.uses(self._framework, allocation.readings.newest, is_limited=is_limited)
        if allocation.policy.level != "quiet" and self._watching_pid != os.getpid():
            self._watching_pid = os.getpid()
            Watch(self.on_uncaught)

    @property
    def _is_limited_by_script(self) -> bool:
        return self._selection is not None and self._selection.script_demand is not None

    def usage(self, usage: Usage, own: Decision | None, inventory: Inventory | None) -> None:
        """Say which GPUs are taken, and why; ``own`` is the framework's decision, if it came to one."""
        allocation, visible, name = self._allocation, self._allocation.visible, self._framework.NAME
        decision = own or allocation.decision
        lines = messages.outcome(decision, usage, allocation.resolved, inventory, name, allocation.grant.task)
        if allocation.policy.level == "quiet":
            allocation.say(lines)
            return
        if lines and own is not None and own.verdict is Verdict.TAKE and usage.ordinals:
            last = allocation.this_run.line(inventory, own.devices, by_script=self._is_limited_by_script)
            lines[0] += f"; {last}" if last else ""
        if decision is None and visible.names_none and inventory is not None:
            lines.append(messages.no_gpu_named(visible.spec.value or "", inventory, name))
        if visible.ignored_value is not None:
            lines.append(messages.visible_devices_ignored(visible.ignored_value, name))
        allocation.say(lines)

    def on_uncaught(self, error: BaseException) -> None:
        """Say why memory ran out, if ``error`` is the framework's out-of-memory error."""
        found, selection, assignment = self._framework.out_of_memory(error), self._selection, self._assignment
        if found is not None and selection is not None and assignment is not None:
            from autogpu.out_of_memory import lines_of

            by_cuda = self._framework.TAKES_FIRST_GPUS
            lines = lines_of(found, self._allocation, selection, assignment, by_cuda=by_cuda)
            if lines:  # in one piece: others print there as well
                self._allocation.say_in_each_rank("\nautogpu: ".join(lines))


class Watch:
    """Calls ``report`` with each exception that ends a script, a notebook's cell or a statement at the prompt.

    Source: ``sys.last_value``, which Python sets before it prints a traceback, whatever ``sys.excepthook`` is; not for
    ``SystemExit``, nor in other threads, whose errors end no process.
    """

    def __init__(self, report: Callable[[BaseException], None]) -> None:
        """Watch in this process; a forked child watches for itself."""
        self._report = report
        self._pid = os.getpid()
        self._told: int | None = None
        atexit.register(self.look)
        prompt: Any = getattr(sys, "ps1", None)
        shell: Any = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
        if shell is not None:
            shell.events.register("post_run_cell", self._after_cell)
        elif type(prompt) is str:
            # Python asks for its text before each prompt, which is the first moment after a traceback there.
            sys.ps1 = _Prompt(prompt, [self])
        elif type(prompt) is _Prompt:
            prompt.watches.append(self)

    def look(self) -> None:
        """Report the last exception that Python has printed, once."""
        self._tell(getattr(sys, "last_value", None))

    def _after_cell(self, result: Any = None) -> None:
        self._tell(getattr(result, "error_in_exec", None))

    def _tell(self, error: BaseException | None) -> None:
        # Not the exception itself: its frames hold what the script had on the GPU.
        if error is None or id(error) == self._told or os.getpid() != self._pid:
            return
        self._told = id(error)
        with suppress(Exception, KeyboardInterrupt):  # it would be printed below the script's own error
            self._report(error)


class _Prompt(str):
    """A prompt that looks first; in every other way the text that it was."""

    watches: list[Watch]

    def __new__(cls, text: str, watches: list[Watch]) -> _Prompt:
        prompt = super().__new__(cls, text)
        prompt.watches = watches
        return prompt

    def __str__(self) -> str:
        for watch in self.watches:
            watch.look()
        return self[:]
