"""The facts that the doctor judges, and the finding of a check."""

from __future__ import annotations

import enum
import shlex
from functools import partial
from typing import Any, Mapping, Sequence

from autogpu.devices.enumeration import named_uuids
from autogpu.devices.model import Inventory
from autogpu.devices.nvml import NO_ANSWER
from autogpu.frozen import Value
from autogpu.install import FreshStart
from autogpu.lease import Folder, LeaseProblem
from autogpu.policy import Resolved
from autogpu.selection.grants import NO_ENGINE, Grant
from autogpu.snippet import TIMED_OUT
from autogpu.variables import CUDA_DEVICE_ORDER, CUDA_VISIBLE_DEVICES


class State(enum.Enum):
    """The result of a check."""

    PASSED = "passed"
    WARNING = "warning"
    FAILED = "failed"
    NOT_APPLICABLE = "not applicable"


class Finding(Value):
    """One check saw ``what``, a sentence; the ``remedy`` is what to type or change, if anything has to be done."""

    state: State
    what: str
    remedy: str = ""


passed = partial(Finding, State.PASSED)
not_applicable = partial(Finding, State.NOT_APPLICABLE)


def failed(what: str, remedy: str) -> Finding:
    """A fault, or a warning of what did not answer in time: slowness is no fault."""
    if TIMED_OUT in what or NO_ANSWER in what:
        later = "run `autogpu doctor` again when the machine is less busy; if it stays so"
        return Finding(State.WARNING, what, f"{later}: {remedy}")
    return Finding(State.FAILED, what, remedy)


class Facts(Value):
    """All that the checks judge.

    Attributes:
        pythons: By name on ``PATH`` (``python``, ``python3``), what they start, where that is another environment.
        cuda_count: How many GPUs CUDA has in a fresh process that sees all; ``None`` where it does not start.
        frameworks: By module, its own answers, or an ``error``; ``None`` where it is not installed.
        lease_problem: Why this user's jobs can't coordinate.
        is_folder_on_fuse: They may not see each other in it.
        unreadable_files: Sentences about files in the folder that can't be read.
        hook_is_current: The hook that a fresh Python loads is the one of this package.
    """

    environ: Mapping[str, str]
    executable: str
    start: FreshStart
    pythons: Mapping[str, str]
    inventory: Inventory
    cuda_count: int | None
    cuda_error: str
    frameworks: Mapping[str, Any]
    folder: Folder | None
    lease_problem: LeaseProblem | None
    is_in_container: bool
    resolved: Resolved
    is_folder_on_fuse: bool = False
    unreadable_files: Sequence[str] = ()
    grant: Grant = NO_ENGINE
    hook_is_current: bool = True
    has_pip: bool = True
    sudo: str = "sudo "

    @property
    def hides_all_gpus(self) -> bool:
        order = self.environ.get(CUDA_DEVICE_ORDER)
        value = self.environ.get(CUDA_VISIBLE_DEVICES)
        return value is not None and named_uuids(value, self.inventory, order) == ()

    def pip(self, action: str) -> str:
        """The command that installs or removes packages of this environment; those that uv makes have no pip."""
        program = shlex.quote(self.executable)
        return f"{program} -m pip {action}" if self.has_pip else f"uv pip {action} --python {program}"
