"""The facts that the doctor judges, and the finding of a check."""

from __future__ import annotations

import enum
from functools import partial
from typing import Any, Mapping, Sequence

from autogpu.devices.enumeration import named_uuids
from autogpu.devices.model import Inventory
from autogpu.engines.model import NO_ENGINE, Grant
from autogpu.frozen import Value
from autogpu.host.hook_folder import HookFolder
from autogpu.install import FreshStart, pip_command
from autogpu.lease import Folder, LeaseProblem, UnreadableFile
from autogpu.lease.folder import FALLBACK_FOLDER, FolderOrigin
from autogpu.policy import Resolved
from autogpu.selection.model import VisibleSpec
from autogpu.snippet import Answer
from autogpu.variables import CUDA_DEVICE_ORDER, CUDA_VISIBLE_DEVICES, LEASE_DIR

# The Python versions that autogpu's tests run on.
OLDEST = (3, 7)
NEWEST_TESTED = (3, 15)


class State(enum.Enum):
    """The outcome of a check."""

    PASSED = "passed"
    WARNING = "warning"
    FAILED = "failed"
    NOT_APPLICABLE = "not applicable"


class Cause(enum.Enum):
    """The reason for the outcome of a check. Each block has the causes of one check.

    Scripts compare the values in the output of ``doctor --json``, so never change one.
    """

    PYTHON_TESTED = "python_tested"
    PYTHON_TOO_OLD = "python_too_old"
    PYTHON_UNTESTED = "python_untested"

    HOOK_LOADED = "hook_loaded"
    HOOK_MISSING = "hook_missing"
    HOOK_NEEDS_NEWER_PYTHON = "hook_needs_newer_python"
    HOOK_OF_OTHER_VERSION = "hook_of_other_version"
    FRESH_PYTHON_FAILS = "fresh_python_fails"
    HOST_HOOK_LOADED = "host_hook_loaded"
    HOST_HOOK_HIDDEN = "host_hook_hidden"
    HOST_HOOK_NOT_COMPILED = "host_hook_not_compiled"
    HOST_HOOK_NOT_ON_PATH = "host_hook_not_on_path"
    HOST_HOOK_SKIPS_USER = "host_hook_skips_user"
    HOST_HOOK_UNUSABLE = "host_hook_unusable"

    ENVIRONMENT_FIRST_ON_PATH = "environment_first_on_path"
    ENVIRONMENT_NOT_CHECKED = "environment_not_checked"
    OTHER_ENVIRONMENT_ON_PATH = "other_environment_on_path"
    OTHER_ENVIRONMENT_WITH_HOST_HOOK = "other_environment_with_host_hook"

    POLICY_VALID = "policy_valid"
    POLICY_MISTAKES = "policy_mistakes"
    POLICY_MISTAKES_OF_USER_AND_HOST = "policy_mistakes_of_user_and_host"
    POLICY_MISTAKES_OF_HOST = "policy_mistakes_of_host"

    DRIVER_WORKS = "driver_works"
    DRIVER_FAILS = "driver_fails"
    DRIVER_MISSING = "driver_missing"
    GPUS_UNREADABLE = "gpus_unreadable"
    NVML_MISSING = "nvml_missing"
    PYNVML_UNUSABLE = "pynvml_unusable"

    GPUS_HEALTHY = "gpus_healthy"
    GPUS_FAULTY = "gpus_faulty"
    GPUS_WITHOUT_INSTANCE = "gpus_without_instance"
    NO_GPU_TO_EXAMINE = "no_gpu_to_examine"

    CUDA_WORKS = "cuda_works"
    CUDA_DIFFERS_FROM_NVML = "cuda_differs_from_nvml"
    CUDA_DOES_NOT_START = "cuda_does_not_start"
    CUDA_HAS_NO_GPU = "cuda_has_no_gpu"
    CUDA_NEEDS_DRIVER = "cuda_needs_driver"

    GPUS_VISIBLE = "gpus_visible"
    GPUS_HIDDEN = "gpus_hidden"
    GPUS_NOT_GRANTED = "gpus_not_granted"
    GPUS_NOT_RESTRICTED = "gpus_not_restricted"

    LEASES_WORK = "leases_work"
    LEASE_FILES_UNREADABLE = "lease_files_unreadable"
    LEASE_FOLDER_OF_CONTAINER = "lease_folder_of_container"
    LEASE_FOLDER_OF_FIRST_USER = "lease_folder_of_first_user"
    LEASE_FOLDER_ON_FUSE = "lease_folder_on_fuse"
    LEASE_FOLDER_UNUSABLE = "lease_folder_unusable"
    NO_GPU_TO_LEASE = "no_gpu_to_lease"

    FRAMEWORK_MISSING = "framework_missing"
    NO_FRAMEWORK_BESIDE_HOST_HOOK = "no_framework_beside_host_hook"

    FRAMEWORK_BUILT_FOR_CUDA = "framework_built_for_cuda"
    FRAMEWORK_BUILT_FOR_ROCM = "framework_built_for_rocm"
    FRAMEWORK_FINDS_NO_GPU = "framework_finds_no_gpu"
    FRAMEWORK_UNSUPPORTED = "framework_unsupported"
    FRAMEWORK_UNUSABLE = "framework_unusable"
    FRAMEWORK_WITHOUT_CUDA = "framework_without_cuda"
    FRAMEWORK_WITHOUT_CUDA_OR_GPU = "framework_without_cuda_or_gpu"

    FRAMEWORK_HOOKS_FOUND = "framework_hooks_found"
    FRAMEWORK_HOOKS_MISSING = "framework_hooks_missing"
    FRAMEWORK_HOOKS_NEED_CUDA = "framework_hooks_need_cuda"


class Finding(Value):
    """The result of one check. ``autogpu.reporting.doctor`` has its sentences.

    Attributes:
        module: The framework's top-level module; ``""`` if the finding is not about one framework.
        is_slow: True if no answer came in time. The state is then a warning, because the machine may just be busy.
    """

    state: State
    cause: Cause
    module: str = ""
    is_slow: bool = False


passed = partial(Finding, State.PASSED)
warning = partial(Finding, State.WARNING)
failed = partial(Finding, State.FAILED)
not_applicable = partial(Finding, State.NOT_APPLICABLE)


def failed_or_slow(cause: Cause, module: str = "", *, is_slow: bool) -> Finding:
    return warning(cause, module, is_slow=True) if is_slow else failed(cause, module)


class Facts(Value):
    """The facts that the checks judge.

    Attributes:
        pythons: Paths of the Pythons on ``PATH`` that belong to another environment, keyed by ``python``, ``python3``.
        cuda: The answer to :data:`autogpu.devices.cuda.START` from a fresh process that sees all GPUs.
        frameworks: The answers of fresh processes that import a framework, keyed by module. An answer's value is
            ``None`` if the module is not installed, and has an ``error`` if the import fails.
        lease_problem: The problem that prevents claims of GPUs by this user's jobs; ``None`` if there is none.
        is_folder_on_fuse: True if the lease folder is on FUSE, where jobs may not see each other's locks.
        unreadable_files: Files in the folder that can't be read; there may be thousands.
        system_policy_owner: Name of the user who can correct the system policy; ``""`` if this user can.
        hook_is_current: False if a fresh Python loads a hook that differs from this package's hook.
        version: The version of the examined Python, such as ``(3, 11)``.
        is_own_python: True if the examined Python runs this command; False if ``--python`` names another one.
        tag: The cache tag of the examined Python, such as ``"cpython-311"``.
        has_hosts_hook: True if a fresh Python loads the hook of the host.
        hosts_folder: The folder of `autogpu host-setup --all-pythons`; ``None`` if there is none.
        user_is_person: True if this user is neither root nor a system user. The hook in ``hosts_folder`` does not load
            autogpu for root and system users.
        sudo: The prefix of a command that needs root; ``""`` for root.
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
    unreadable_files: Sequence[UnreadableFile] = ()
    grant: Grant = NO_ENGINE
    system_policy_owner: str = ""
    hook_is_current: bool = True
    version: tuple[int, int] = (3, 11)
    tag: str = ""
    is_own_python: bool = True
    has_hosts_hook: bool = False
    hosts_folder: HookFolder | None = None
    user_is_person: bool = True
    has_pip: bool = True
    sudo: str = "sudo "

    @property
    def cuda_count(self) -> int | None:
        """Return the number of GPUs that CUDA finds; ``None`` if CUDA does not start."""
        count: int | None = self.cuda.value and self.cuda.value[0]
        return count

    @property
    def nvml_count(self) -> int:
        """Return the number of GPUs that NVML finds, readable or not."""
        return len(self.inventory.devices) + len(self.inventory.unreadable)

    @property
    def are_all_gpus_hidden(self) -> bool:
        order = self.environ.get(CUDA_DEVICE_ORDER)
        value = self.visible.value
        return value is not None and named_uuids(value, self.inventory, order) == ()

    @property
    def lease_path(self) -> str:
        """Return the path of the lease folder, which may not exist yet."""
        return str(self.folder.path if self.folder else self.environ.get(LEASE_DIR) or FALLBACK_FOLDER)

    @property
    def is_fallback_folder(self) -> bool:
        if self.folder:
            return self.folder.origin is FolderOrigin.FALLBACK
        return not self.environ.get(LEASE_DIR)

    @property
    def visible(self) -> VisibleSpec:
        return VisibleSpec(self.environ.get(CUDA_VISIBLE_DEVICES))

    def answer_of(self, module: str) -> Mapping[str, Any]:
        """Return a fresh process's answer about an installed framework; only an ``error`` if there is no answer."""
        answer = self.frameworks[module]
        return answer.value or {"error": answer.error}

    def pip(self, action: str) -> str:
        return pip_command(self.executable, action, has_pip=self.has_pip)
