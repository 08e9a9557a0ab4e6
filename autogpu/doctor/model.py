"""The facts that the doctor judges, and the finding of a check."""

from __future__ import annotations

import enum
from functools import partial
from typing import Mapping, Sequence

from autogpu.devices.enumeration import named_uuids
from autogpu.devices.model import Inventory
from autogpu.engines.model import NO_ENGINE, Grant
from autogpu.frozen import Value
from autogpu.host.hook_folder import HookFolder
from autogpu.install import FreshStart, pip_command
from autogpu.lease import Folder, LeaseProblem
from autogpu.policy import Resolved
from autogpu.snippet import Answer
from autogpu.variables import CUDA_DEVICE_ORDER, CUDA_VISIBLE_DEVICES


class State(enum.Enum):
    """The outcome of a check."""

    PASSED = "passed"
    WARNING = "warning"
    FAILED = "failed"
    NOT_APPLICABLE = "not applicable"


class Finding(Value):
    """The result of one check: ``what`` is a sentence, and ``remedy`` the command or change that helps, if any."""

    state: State
    what: str
    remedy: str = ""


passed = partial(Finding, State.PASSED)
failed = partial(Finding, State.FAILED)
not_applicable = partial(Finding, State.NOT_APPLICABLE)


def failed_or_slow(what: str, remedy: str, *, is_slow: bool) -> Finding:
    """Return a failure; only a warning if no answer came in time, because the machine may just be busy."""
    if is_slow:
        later = "run `autogpu doctor` again when the machine is less busy; if the finding stays"
        return Finding(State.WARNING, what, f"{later}: {remedy}")
    return failed(what, remedy)


class Facts(Value):
    """The facts that the checks judge.

    Attributes:
        pythons: Paths of the Pythons on ``PATH`` that belong to another environment, keyed by ``python``, ``python3``.
        cuda: The answer to :data:`autogpu.devices.cuda.START` from a fresh process that sees all GPUs.
        frameworks: The answers of fresh processes that import a framework, keyed by module. An answer's value is
            ``None`` if the module is not installed, and has an ``error`` if the import fails.
        lease_problem: The problem that prevents claims of GPUs by this user's jobs; ``None`` if there is none.
        is_folder_on_fuse: True if the lease folder is on FUSE, where jobs may not see each other's locks.
        unreadable_files: Sentences about files in the folder that can't be read.
        system_policy_owner: Name of the user who can correct the system policy; ``""`` if this user can.
        hook_is_current: True if the hook that a fresh Python loads is equal to this package's hook.
        version: The version of the examined Python, such as ``(3, 11)``.
        is_own: True if the examined Python runs this command; False if ``--python`` names another one.
        tag: The cache tag of the examined Python, such as ``"cpython-311"``.
        has_hosts_hook: True if a fresh Python loads the hook of the host.
        hosts_folder: The folder of `autogpu host-setup --all-pythons`; ``None`` if there is none.
        is_person: True if this user is neither root nor a system user. The hook in ``hosts_folder`` does not load
            autogpu for root and system users.
    """

    environ: Mapping[str, str]
    executable: str
    start: FreshStart
    pythons: Mapping[str, str]
    inventory: Inventory
    cuda: Answer
    frameworks: Mapping[str, Answer]
    folder: Folder | None
    lease_problem: LeaseProblem | None
    is_in_container: bool
    resolved: Resolved
    is_folder_on_fuse: bool = False
    unreadable_files: Sequence[str] = ()
    grant: Grant = NO_ENGINE
    system_policy_owner: str = ""
    hook_is_current: bool = True
    version: tuple[int, int] = (3, 11)
    tag: str = ""
    is_own: bool = True
    has_hosts_hook: bool = False
    hosts_folder: HookFolder | None = None
    is_person: bool = True
    has_pip: bool = True
    sudo: str = "sudo "

    @property
    def cuda_count(self) -> int | None:
        """Return the number of GPUs that CUDA finds; ``None`` if CUDA does not start."""
        count: int | None = self.cuda.value and self.cuda.value[0]
        return count

    @property
    def hides_all_gpus(self) -> bool:
        order = self.environ.get(CUDA_DEVICE_ORDER)
        value = self.environ.get(CUDA_VISIBLE_DEVICES)
        return value is not None and named_uuids(value, self.inventory, order) == ()

    def pip(self, action: str) -> str:
        return pip_command(self.executable, action, has_pip=self.has_pip)
