"""The lines about one framework of a process: which GPUs it takes and why, and why its memory ran out."""

from __future__ import annotations

import os
from itertools import takewhile

from autogpu import uncaught
from autogpu.devices.model import Inventory
from autogpu.frameworks.base import Assignment, Usage
from autogpu.reporting import messages, stderr
from autogpu.reporting.text import printable
from autogpu.selection.model import Decision, SelectionRequest, Verdict

TYPE_CHECKING = False
if TYPE_CHECKING:
    from autogpu.allocation import Allocation
    from autogpu.frameworks.base import Framework


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
        allocation.this_run.uses(self._framework, is_limited=is_limited)
        if allocation.policy.level != "quiet" and self._watching_pid != os.getpid():
            self._watching_pid = os.getpid()
            uncaught.Watch(self.on_uncaught)

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
            last = allocation.this_run.line(own.devices, by_script=self._is_limited_by_script)
            lines[0] += f"; {last}" if last else ""
        if decision is None and visible.names_none and inventory is not None:
            last_index = max([device.index for device in inventory.devices], default=0)
            lines.append(
                f"CUDA_VISIBLE_DEVICES={printable(visible.spec.value or '')} names no GPU here, {name} starts on CPU; "
                f"there are the indices 0 to {last_index}"
            )
        if visible.ignored_value is not None:
            lines.append(
                f"CUDA_VISIBLE_DEVICES={printable(visible.ignored_value)} was set after CUDA had read it and has no "
                f"effect, as without autogpu; set it before {name} lists GPUs"
            )
        allocation.say(lines)

    def on_uncaught(self, error: BaseException) -> None:
        """Say why memory ran out, if that is what ``error`` came from."""
        selection, assignment = self._selection, self._assignment
        of_this_process = takewhile(lambda each: not uncaught.is_of_another_process(each), uncaught.chain(error))
        found = next(filter(None, map(self._framework.out_of_memory, of_this_process)), None)
        if found is not None and selection is not None and assignment is not None:
            from autogpu.out_of_memory import lines_of

            lines = lines_of(found, self._framework, self._allocation, selection, assignment)
            if lines:
                stderr.forget()
                self._allocation.say_in_each_rank("\nautogpu: ".join(lines))  # in one piece: others print there as well
