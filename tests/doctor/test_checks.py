"""The doctor's checks: the state and the cause for given facts."""

import errno
import os
from pathlib import Path

import pytest

from autogpu.devices.model import FailureCause
from autogpu.doctor.checks import owner_to_ask, run_checks
from autogpu.doctor.model import Cause, Finding, State, failed, not_applicable, passed, warning
from autogpu.engines.model import Denial, Grant
from autogpu.frozen import replace
from autogpu.lease import UnreadableFile
from autogpu.snippet import Answer
from tests.lease.conftest import ALICE, needs_root
from tests.support import environments
from tests.support.doctor_facts import (
    CONDA,
    CUT,
    DEBIAN,
    FALLBACK,
    HOSTS,
    JAX,
    LINK,
    LOST,
    NO_DRIVER,
    NO_PYNVML,
    SILENT,
    TENSORFLOW,
    TORCH,
    WHOLE,
    Changes,
    answer,
    cuda,
    driver,
    gpus,
    healthy_facts,
    jax,
    no_cuda,
    policy,
    start,
    tensorflow,
    torch,
    visible,
)
from tests.support.processes import in_a_fork
from tests.support.values import cut, gpu, inventory


@pytest.fixture
def healthy(tmp_path):
    return healthy_facts(tmp_path)


def test_healthy_machine_passes_every_check(healthy):
    states = {name: finding.state for name, finding in run_checks(healthy).items()}
    others = {name: state for name, state in states.items() if state is not State.PASSED}
    assert others == {"visible": State.NOT_APPLICABLE}


NOT_GRANTED = {"grant": Grant("Slurm", Denial.SLURM_GRANTED_NONE)}
UNREADABLE = UnreadableFile("job.7.7.a", 4711, PermissionError(errno.EACCES, "no"))

# Changed facts and the finding, keyed by check.
OUTCOMES: dict[str, list[tuple[Changes, Finding]]] = {
    "python": [
        ({}, passed(Cause.PYTHON_TESTED)),
        ({"version": (3, 6)}, failed(Cause.PYTHON_TOO_OLD)),
        ({"version": tuple(map(int, environments.SUPPORTED[-1].split(".")))}, passed(Cause.PYTHON_TESTED)),
        ({"version": (3, 99)}, warning(Cause.PYTHON_UNTESTED)),
    ],
    "hook": [
        ({}, passed(Cause.HOOK_LOADED)),
        ({"version": (3, 6)}, not_applicable(Cause.HOOK_NEEDS_NEWER_PYTHON)),
        ({"hook_is_current": False}, failed(Cause.HOOK_OF_OTHER_VERSION)),
        (start(), failed(Cause.HOOK_MISSING)),
        (start(DEBIAN), failed(Cause.HOOK_MISSING)),
        (start(complaint="OSError: x timed out"), failed(Cause.FRESH_PYTHON_FAILS)),
        ({**HOSTS, "hosts_folder": WHOLE}, passed(Cause.HOST_HOOK_LOADED)),
        ({**HOSTS, "hosts_folder": WHOLE, "tag": "cpython-312"}, warning(Cause.HOST_HOOK_NOT_COMPILED)),
        (HOSTS, failed(Cause.HOST_HOOK_UNUSABLE)),
        ({**HOSTS, "hosts_folder": replace(WHOLE, problem=CUT)}, failed(Cause.HOST_HOOK_UNUSABLE)),
        ({**start(DEBIAN), "hosts_folder": WHOLE}, failed(Cause.HOST_HOOK_HIDDEN)),
        ({**start(), "hosts_folder": WHOLE}, failed(Cause.HOST_HOOK_NOT_ON_PATH)),
        ({**start(), "hosts_folder": WHOLE, "user_is_person": False}, warning(Cause.HOST_HOOK_SKIPS_USER)),
    ],
    "environment": [
        ({}, passed(Cause.ENVIRONMENT_FIRST_ON_PATH)),
        ({"is_own_python": False}, not_applicable(Cause.ENVIRONMENT_NOT_CHECKED)),
        (CONDA, failed(Cause.OTHER_ENVIRONMENT_ON_PATH)),
        ({**CONDA, "hosts_folder": WHOLE}, warning(Cause.OTHER_ENVIRONMENT_WITH_HOST_HOOK)),
    ],
    # An error text with "timed out" is no sign of a timeout of the doctor: drivers and libraries write such texts, too.
    "driver": [
        ({}, passed(Cause.DRIVER_WORKS)),
        (driver("NVML reports: x timed out"), failed(Cause.DRIVER_FAILS)),
        (driver("NVML reports: Driver/library version mismatch"), failed(Cause.DRIVER_FAILS)),
        ({**NO_DRIVER, **no_cuda()}, not_applicable(Cause.DRIVER_MISSING)),
        (NO_DRIVER, failed(Cause.NVML_MISSING)),
        (NO_PYNVML, failed(Cause.PYNVML_UNUSABLE)),
        (gpus(unreadable=(LOST, SILENT)), failed(Cause.GPUS_UNREADABLE)),
    ],
    "health": [
        ({}, passed(Cause.GPUS_HEALTHY)),
        (NO_DRIVER, not_applicable(Cause.NO_GPU_TO_EXAMINE)),
        (gpus(gpu(1, remapping_failed=True)), failed(Cause.GPUS_FAULTY)),
        (gpus(gpu(1, uncorrected_errors=3)), failed(Cause.GPUS_FAULTY)),
        (gpus(gpu(1, remapping_pending=True)), failed(Cause.GPUS_FAULTY)),
        (gpus(*cut(1), gpu(2, remapping_failed=True)), failed(Cause.GPUS_FAULTY)),
        (gpus(*cut(1)), failed(Cause.GPUS_WITHOUT_INSTANCE)),
        ({"inventory": inventory(*cut(0, 5, 5), gpu(1))}, passed(Cause.GPUS_HEALTHY)),
    ],
    "cuda": [
        ({}, passed(Cause.CUDA_WORKS)),
        (NO_DRIVER, not_applicable(Cause.CUDA_NEEDS_DRIVER)),
        ({"inventory": inventory(), **NOT_GRANTED}, not_applicable(Cause.CUDA_HAS_NO_GPU)),
        ({"inventory": inventory(denied=2)}, not_applicable(Cause.CUDA_HAS_NO_GPU)),
        (no_cuda("x timed out"), failed(Cause.CUDA_DOES_NOT_START)),
        (no_cuda("no such file"), failed(Cause.CUDA_DOES_NOT_START)),
        (cuda(1), failed(Cause.CUDA_DIFFERS_FROM_NVML)),
        ({**cuda(1), **gpus(unreadable=(LOST,))}, failed(Cause.CUDA_DIFFERS_FROM_NVML)),
        ({**cuda(1), **driver("no answer")}, passed(Cause.CUDA_WORKS)),
        ({**cuda(1), **gpus(*cut(1, 5, 5))}, passed(Cause.CUDA_WORKS)),
    ],
    "visible": [
        ({}, not_applicable(Cause.GPUS_NOT_RESTRICTED)),
        ({**visible("0"), **NO_DRIVER}, not_applicable(Cause.GPUS_NOT_RESTRICTED)),
        ({**visible("0"), **NOT_GRANTED}, not_applicable(Cause.GPUS_NOT_GRANTED)),
        (visible("0"), passed(Cause.GPUS_VISIBLE)),
        (visible("-1"), failed(Cause.GPUS_HIDDEN)),
        (visible("99"), failed(Cause.GPUS_HIDDEN)),
        (visible("abc"), failed(Cause.GPUS_HIDDEN)),
    ],
    "leases": [
        ({}, passed(Cause.LEASES_WORK)),
        ({"is_in_container": True}, passed(Cause.LEASES_WORK)),
        ({"folder": None, "environ": {"AUTOGPU_LEASE_DIR": "/x"}}, passed(Cause.LEASES_WORK)),
        (NO_DRIVER, not_applicable(Cause.NO_GPU_TO_LEASE)),
        ({"folder": None, "lease_problem": LINK}, failed(Cause.LEASE_FOLDER_UNUSABLE)),
        ({"unreadable_files": (UNREADABLE,)}, warning(Cause.LEASE_FILES_UNREADABLE)),
        ({"is_folder_on_fuse": True}, warning(Cause.LEASE_FOLDER_ON_FUSE)),
        ({"folder": FALLBACK}, passed(Cause.LEASE_FOLDER_OF_FIRST_USER)),
        ({"folder": None}, passed(Cause.LEASE_FOLDER_OF_FIRST_USER)),
        ({"folder": FALLBACK, "is_in_container": True}, failed(Cause.LEASE_FOLDER_OF_CONTAINER)),
    ],
    "frameworks": [
        (answer(None), failed(Cause.FRAMEWORK_MISSING)),
        ({**answer(None), "hosts_folder": WHOLE}, not_applicable(Cause.NO_FRAMEWORK_BESIDE_HOST_HOOK)),
        ({**answer(None), "hosts_folder": WHOLE, "is_own_python": False}, failed(Cause.FRAMEWORK_MISSING)),
    ],
    "tensorflow": [
        ({}, passed(Cause.FRAMEWORK_BUILT_FOR_CUDA, "tensorflow")),
        (answer(None, "it was killed by signal 11"), failed(Cause.FRAMEWORK_UNUSABLE, "tensorflow")),
        (answer({"error": "OSError: Connection timed out"}), failed(Cause.FRAMEWORK_UNUSABLE, "tensorflow")),
        (answer({"error": "ImportError: numpy"}), failed(Cause.FRAMEWORK_UNUSABLE, "tensorflow")),
        (tensorflow(build="", gpus=0), failed(Cause.FRAMEWORK_WITHOUT_CUDA, "tensorflow")),
        (tensorflow(obstacle="built for ROCm"), failed(Cause.FRAMEWORK_BUILT_FOR_ROCM, "tensorflow")),
        (tensorflow(gpus=0), failed(Cause.FRAMEWORK_FINDS_NO_GPU, "tensorflow")),
        ({**tensorflow(gpus=0), **visible("-1")}, passed(Cause.FRAMEWORK_BUILT_FOR_CUDA, "tensorflow")),
    ],
    "tensorflow-hooks": [
        ({}, passed(Cause.FRAMEWORK_HOOKS_FOUND, "tensorflow")),
        (tensorflow(build="", gpus=0), not_applicable(Cause.FRAMEWORK_HOOKS_NEED_CUDA, "tensorflow")),
        (tensorflow(missing={"Context.x": "claims nothing"}), failed(Cause.FRAMEWORK_HOOKS_MISSING, "tensorflow")),
    ],
    "torch": [
        (torch(), passed(Cause.FRAMEWORK_BUILT_FOR_CUDA, "torch")),
        (torch(build="", gpus=0), failed(Cause.FRAMEWORK_WITHOUT_CUDA, "torch")),
        (torch(gpus=0), failed(Cause.FRAMEWORK_FINDS_NO_GPU, "torch")),
        (torch(error="ImportError: libc10"), failed(Cause.FRAMEWORK_UNUSABLE, "torch")),
        (torch(obstacle="built for ROCm"), failed(Cause.FRAMEWORK_BUILT_FOR_ROCM, "torch")),
        (torch(obstacle="no torch._C.x"), failed(Cause.FRAMEWORK_UNSUPPORTED, "torch")),
    ],
    "torch-hooks": [(torch(missing={"torch._C.x": "limit"}), failed(Cause.FRAMEWORK_HOOKS_MISSING, "torch"))],
    "jax": [
        (jax(), passed(Cause.FRAMEWORK_BUILT_FOR_CUDA, "jax")),
        (jax(build=""), failed(Cause.FRAMEWORK_WITHOUT_CUDA, "jax")),
        ({**jax(build=""), **NO_DRIVER}, passed(Cause.FRAMEWORK_WITHOUT_CUDA_OR_GPU, "jax")),
        (jax(error="ImportError: jaxlib"), failed(Cause.FRAMEWORK_UNUSABLE, "jax")),
    ],
    "jax-hooks": [(jax(missing={"xla_bridge.backends": "x"}), failed(Cause.FRAMEWORK_HOOKS_MISSING, "jax"))],
}


def finding_of(healthy, check, **changes):
    return run_checks(replace(healthy, **changes))[check]


@pytest.mark.parametrize(
    ("check", "changes", "finding"),
    [
        pytest.param(check, changes, finding, id=f"{check}-{finding.cause.value}")
        for check, cases in OUTCOMES.items()
        for changes, finding in cases
    ],
)
def test_check_finds_the_cause(healthy, check, changes, finding):
    assert finding_of(healthy, check, **changes) == finding


MISSPELT, NO_SUCH_GPU, OFF = "[select]\nmood = 'calm'\n", "[select]\nexclude = ['9', '7']\n", "enabled = false\n"
OF_HOST = warning(Cause.POLICY_MISTAKES_OF_HOST)
OF_USER = failed(Cause.POLICY_MISTAKES)

# The policy, the owner of its system file if this user can't write it, and the finding. A test writes the files.
POLICIES: dict[str, tuple[Changes, str, Finding]] = {
    "none": ({}, "", passed(Cause.POLICY_VALID)),
    # A later version may have this key, so only the doctor reports an unknown key in the system file.
    "unknown-key": ({"system": MISSPELT}, "", OF_USER),
    "valid": ({"project": "[select]\ncount = 2\n"}, "", passed(Cause.POLICY_VALID)),
    "file-that-others-can-write": ({"project": "[select]\ncount = 2\n", "mode": 0o666}, "", OF_USER),
    "no-such-gpu": ({"environ": {"AUTOGPU_DEVICES": "7"}}, "", OF_USER),
    "switched-off": ({"environ": {"AUTOGPU": "0"}}, "", OF_USER),
    "unknown-key-of-root": ({"system": MISSPELT}, "root", OF_HOST),
    "syntax-of-root": ({"system": "[select\n"}, "root", OF_HOST),
    "no-such-gpu-of-root": ({"system": NO_SUCH_GPU}, "root", OF_HOST),
    "switched-off-by-root": ({"system": OFF}, "root", OF_HOST),
    "own-mistake": ({"environ": {"AUTOGPU_COUNT": "x"}}, "root", OF_USER),
    "mistakes-of-both": (
        {"system": MISSPELT, "environ": {"AUTOGPU_COUNT": "x"}},
        "root",
        failed(Cause.POLICY_MISTAKES_OF_USER_AND_HOST),
    ),
}


@pytest.mark.parametrize(("files", "owner", "finding"), POLICIES.values(), ids=list(POLICIES))
def test_mistake_in_the_policy_fails_only_if_the_user_can_correct_it(healthy, tmp_path, files, owner, finding):
    changes = {**policy(tmp_path, **files), "system_policy_owner": owner}
    assert finding_of(healthy, "policy", **changes) == finding


def test_each_cause_is_the_outcome_of_some_check():
    findings = [finding for cases in OUTCOMES.values() for _, finding in cases]
    findings += [finding for _, _, finding in POLICIES.values()]
    assert {finding.cause for finding in findings} == {*Cause}


@needs_root
def test_owner_to_ask_is_empty_if_the_user_can_write_the_file():
    file = Path("/etc/passwd")

    def as_user():
        os.setuid(ALICE)
        return owner_to_ask(file)

    assert (owner_to_ask(file), in_a_fork(as_user)) == ("", "root")
    assert owner_to_ask(file.parent / "autogpu" / "none.toml") == ""


FOR_CPU = {"tensorflow": tensorflow(gpus=0), "tensorflow-for-cpu": tensorflow(build="", gpus=0)}
FOR_CPU |= {"torch": torch(build="", gpus=0), "jax": jax(build="")}


@pytest.mark.parametrize("found", FOR_CPU.values(), ids=list(FOR_CPU))
def test_machine_without_a_driver_has_no_failures(healthy, found):
    facts = replace(healthy, **NO_DRIVER, **no_cuda("no library"), **found)
    assert not [finding for finding in run_checks(facts).values() if finding.state is State.FAILED]


@pytest.mark.parametrize(
    ("installed", "rows"),
    [
        (("torch",), ["torch", "torch-hooks"]),
        (("torch", "jax"), ["torch", "torch-hooks", "jax", "jax-hooks"]),
        (("tensorflow",), ["tensorflow", "tensorflow-hooks"]),
        ((), ["frameworks"]),
    ],
    ids=lambda value: "-".join(value) or "none",
)
def test_only_installed_frameworks_have_findings(healthy, installed, rows):
    answers = {"tensorflow": TENSORFLOW, "torch": TORCH, "jax": JAX}
    there = {name: Answer(answer if name in installed else None) for name, answer in answers.items()}
    found = run_checks(replace(healthy, frameworks=there))
    assert [*found][-len(rows) - 1 :] == ["leases", *rows]
    failed = {name for name, finding in found.items() if finding.state is State.FAILED}
    assert failed == (set() if installed else {"frameworks"})


@pytest.mark.parametrize(
    ("check", "changes", "cause"),
    [
        ("driver", gpus(unreadable=(SILENT,)), Cause.GPUS_UNREADABLE),
        ("driver", driver("no answer", FailureCause.TIMEOUT), Cause.DRIVER_FAILS),
        ("cuda", no_cuda("no answer", timed_out=True), Cause.CUDA_DOES_NOT_START),
        ("hook", start(complaint="no answer", timed_out=True), Cause.FRESH_PYTHON_FAILS),
        ("tensorflow", answer(None, "no answer", timed_out=True), Cause.FRAMEWORK_UNUSABLE),
    ],
    ids=lambda value: value if isinstance(value, str) else getattr(value, "value", ""),
)
def test_timeout_is_a_warning_and_not_a_failure(healthy, check, changes, cause):
    findings = run_checks(replace(healthy, **changes))
    found = findings[check]
    assert (found.state, found.cause, found.is_slow) == (State.WARNING, cause, True)
    assert State.FAILED not in {finding.state for finding in findings.values()}
