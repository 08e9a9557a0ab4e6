"""The doctor's checks: the finding for given facts, and a remedy for each failure."""

import os
from pathlib import Path

import pytest

from autogpu.devices.model import FailureCause, Inventory, UnreadableDevice
from autogpu.devices.nvml import NO_ANSWER
from autogpu.doctor.checks import examine, owner_to_ask
from autogpu.doctor.model import Facts, State
from autogpu.frozen import replace
from autogpu.host.hook_folder import HookFolder
from autogpu.install import FreshStart
from autogpu.lease import Fault, Folder, LeaseProblem
from autogpu.lease.folder import FolderOrigin
from autogpu.policy import resolve
from autogpu.snippet import Answer
from autogpu.variables import CUDA_VISIBLE_DEVICES
from tests.lease.conftest import ALICE, needs_root
from tests.support import environments
from tests.support.processes import in_a_fork
from tests.support.values import cut, gpu, inventory

# Answers of the frameworks of an environment. The functions below return changed fields for ``replace``.
HOOKED = {"missing": {}, "obstacle": ""}
TENSORFLOW = {"version": "2.21.0", "build": "built with CUDA", "gpus": 2, **HOOKED}
TORCH = {"version": "2.15.0", "build": "built for CUDA 13.2", "gpus": 2, **HOOKED}
JAX = {"version": "0.10.2", "build": "plug-in xla_cuda12", "gpus": None, **HOOKED}
NO_DRIVER = Inventory(failure="NVML reports: no library", failure_cause=FailureCause.NO_DRIVER)


def tensorflow(**changes):
    return {"frameworks": {"tensorflow": Answer({**TENSORFLOW, **changes})}}


def torch(**changes):
    return {"frameworks": {"torch": Answer({**TORCH, **changes})}}


def jax(**changes):
    return {"frameworks": {"jax": Answer({**JAX, **changes})}}


@pytest.fixture
def healthy(tmp_path):
    return Facts(
        environ={},
        executable="/env/bin/python",
        start=FreshStart(Path("/env/site-packages/_autogpu_hook.py"), None, ""),
        pythons={},
        inventory=inventory(gpu(0), gpu(1), driver_version="550.54.15"),
        cuda=cuda(2),
        **tensorflow(),
        folder=Folder(Path("/run/autogpu"), FolderOrigin.HOST, 0),
        lease_problem=None,
        is_in_container=False,
        resolved=resolve({}, script=None, working_directory=tmp_path, system_file=tmp_path / "none"),
    )


def test_healthy_machine_passes_every_check(healthy):
    states = {name: finding.state for name, finding in examine(healthy).items()}
    others = {name: state for name, state in states.items() if state is not State.PASSED}
    assert others == {"visible": State.NOT_APPLICABLE}


def test_cards_are_counted_instead_of_their_mig_instances(healthy):
    findings = examine(replace(healthy, inventory=inventory(*cut(0, 5, 5), gpu(1))))
    assert findings["health"].state is State.PASSED
    assert "reads 2 GPUs" in findings["driver"].what


def driver(said, cause=FailureCause.DRIVER):
    return {"inventory": Inventory(failure=said, failure_cause=cause)}


def gpus(*devices, **fields):
    return {"inventory": inventory(gpu(0), *devices, **fields)}


def start(hook=None, sitecustomize=None, complaint="", timed_out=False):
    return {"start": FreshStart(hook, sitecustomize, complaint, timed_out)}


def cuda(count):
    return Answer([count, 12040, []])


def no_cuda(error="no such file", timed_out=False):
    return {"cuda": Answer(error=error, timed_out=timed_out)}


def answer(said, error="", timed_out=False):
    return {"frameworks": {"tensorflow": Answer(said, error, timed_out=timed_out)}}


WHOLE = HookFolder(Path("/usr/local/lib/autogpu-1.2.3-abc"), "1.2.3", ("cpython-311",))
HOSTS = {**start(WHOLE.folder / "sitecustomize.py"), "has_hosts_hook": True, "tag": "cpython-311"}
DEBIAN, CONDA = Path("/usr/lib/python3.11/sitecustomize.py"), {"pythons": {"python": "/conda/bin/python"}}
SETUP = "sudo $(command -v autogpu) host-setup"
LINK = LeaseProblem(Fault.SYMLINK, "/x")
TF_PAGE, JAX_PAGE = "https://www.tensorflow.org/install/source#gpu", "https://docs.jax.dev/"
FALLBACK = Folder(Path("/var/tmp/autogpu.v1"), FolderOrigin.FALLBACK, 0)
LOST, SILENT = UnreadableDevice(1, "GPU is lost"), UnreadableDevice(2, NO_ANSWER)
NO_PYNVML = driver("pynvml (nvidia-ml-py) is not installed", FailureCause.PYNVML)

# Cases keyed by check: the changed facts, a part of the finding, and a part of the remedy.
WRONG = {
    "python": [({"version": (3, 6)}, "/env/bin/python is older than Python 3.7", "with Python 3.7 or newer")],
    "hook": [
        (start(sitecustomize=DEBIAN), f"does not load autogpu; its sitecustomize is {DEBIAN}", "-m autogpu install"),
        ({"hook_is_current": False}, "_autogpu_hook.py is from another version of autogpu than the", "autogpu install"),
        (start(complaint="OSError: x timed out"), "a fresh Python reports: OSError: x timed out", "autogpu install"),
        (HOSTS, "sitecustomize.py can't be used: /usr/local/lib/autogpu does not lead to it", "--all-pythons"),
        ({**HOSTS, "hosts_folder": replace(WHOLE, problem="cut")}, "can't be used: cut", "--all-pythons"),
        (
            {**start(sitecustomize=DEBIAN), "hosts_folder": WHOLE},
            f"its sitecustomize is {DEBIAN}, which hides the one in /usr/local/lib/autogpu",
            "-m autogpu install",
        ),
        (
            {**start(), "hosts_folder": WHOLE},
            "does not load autogpu; /usr/local/lib/autogpu is not on its PYTHONPATH",
            'log in again, or export PYTHONPATH="${PYTHONPATH:+$PYTHONPATH:}/usr/local/lib/autogpu"',
        ),
        ({**start(), "is_own": False}, "does not load autogpu", "-m pip install autogpu, then /env/bin/python -m"),
        (start(complaint="it did not start"), "a fresh Python reports: it did not start", "autogpu install"),
    ],
    "environment": [
        (
            CONDA,
            "but autogpu is installed in another environment (/env/bin/python)",
            'PATH="/env/bin:$PATH", or install autogpu in the other environment too',
        ),
    ],
    # An error text with "timed out" is no sign of a timeout of the doctor: drivers and libraries write such texts, too.
    "driver": [
        (driver("NVML reports: x timed out"), "x timed out", "sudo reboot"),
        (driver("NVML reports: Driver/library version mismatch"), "version mismatch", "sudo reboot"),
        ({"inventory": NO_DRIVER}, "NVML (libnvidia-ml.so.1) is missing", "DRIVER_CAPABILITIES=compute,utility"),
        (gpus(unreadable=(LOST, SILENT)), "GPU 1: GPU is lost", "sudo dmesg | grep -i xid; a lost"),
        (NO_PYNVML, "is not installed: autogpu can't tell which GPU is idle", "/env/bin/python -m pip install "),
    ],
    "health": [
        (gpus(gpu(1, remapping_failed=True)), "GPU 1: row remapping failed", "replace a card"),
        (gpus(gpu(1, uncorrected_errors=3)), "3 uncorrectable memory errors", "--gpu-reset"),
        (gpus(gpu(1, remapping_pending=True)), "pending until a reset", "--gpu-reset"),
        (gpus(*cut(1)), "GPU 1: in MIG mode without an instance", "sudo nvidia-smi -i 1 -mig 0"),
    ],
    "cuda": [
        (no_cuda("x timed out"), "CUDA does not start: x timed out", "--gpus all"),
        (no_cuda("no such file"), "CUDA does not start: no such file", "--gpus all"),
        ({"cuda": cuda(1)}, "CUDA sees 1 GPU and NVML 2", "/dev/nvidia"),
    ],
    "visible": [
        ({"environ": {CUDA_VISIBLE_DEVICES: text}}, f'CUDA_VISIBLE_DEVICES="{text}" hides every GPU', "unset CUDA_V")
        for text in ("-1", "99", "abc")
    ],
    "tensorflow": [
        (answer(None, "it was killed by signal 11"), "can't be used: it was killed by signal 11", "repair"),
        (answer({"error": "OSError: Connection timed out"}), "can't be used: OSError: Connection timed out", "repair"),
        (answer({"error": "ImportError: numpy"}), "can't be used: ImportError: numpy", "repair"),
        (tensorflow(build="", gpus=0), "built without CUDA", "pip install 'tensorflow[and-cuda]==2.21.0'"),
        (tensorflow(obstacle="built for ROCm"), "built for ROCm", "HIP_VISIBLE_DEVICES"),
        (
            tensorflow(gpus=0),
            "built with CUDA, lists no GPU, but the driver has 2 GPUs: it finds no",
            "[and-cuda]==2.21.0'; to see the reason: TF_CPP",
        ),
    ],
    "tensorflow-hooks": [
        (tensorflow(missing={"Context.x": "claims nothing"}), "lacks Context.x: claims nothing", "upgrade autogpu"),
    ],
    "frameworks": [
        (answer(None), "no supported framework (tensorflow) is installed", "pip install 'tensorflow[and-cuda]'")
    ],
    "torch": [
        (torch(build="", gpus=0), "built without CUDA and uses no GPU", "pytorch.org"),
        (
            torch(gpus=0),
            "built for CUDA 13.2, lists no GPU, but the driver has 2 GPUs: it",
            "each CUDA version; to see the reason: /",
        ),
        (torch(error="ImportError: libc10"), "can't be used: ImportError: libc10", "repair"),
        (torch(obstacle="built for ROCm"), "built for ROCm", "HIP_VISIBLE_DEVICES"),
        (torch(obstacle="no torch._C.x"), "no torch._C.x", "upgrade autogpu"),
    ],
    "torch-hooks": [(torch(missing={"torch._C.x": "limit"}), "lacks torch._C.x: limit", "upgrade")],
    "jax": [
        (jax(build=""), "built without CUDA and uses no GPU", "pip install 'jax[cuda12]==0.10.2'"),
        (jax(error="ImportError: jaxlib"), "can't be used: ImportError: jaxlib", "repair"),
    ],
    "jax-hooks": [(jax(missing={"xla_bridge.backends": "x"}), "lacks xla_bridge.backends: x", "upgrade")],
    "leases": [
        ({"folder": None, "lease_problem": LINK}, "/x is a symbolic link", "remove it"),
        ({"folder": FALLBACK, "is_in_container": True}, "of this container only", f"on the host: {SETUP}; then start"),
    ],
}


def found(healthy, check, **changes):
    return examine(replace(healthy, **changes))[check]


@pytest.mark.parametrize(
    ("check", "changes", "what", "remedy"),
    [pytest.param(check, *case, id=f"{check}: {case[1]}") for check, cases in WRONG.items() for case in cases],
)
def test_fault_is_found_and_has_a_remedy(healthy, check, changes, what, remedy):
    finding = found(healthy, check, **changes)
    assert finding.state is State.FAILED
    assert what in finding.what
    assert remedy in finding.remedy


@pytest.mark.parametrize(
    ("changes", "what", "remedy"),
    [
        ({"unreadable_files": ["job.7.7.a of bob can't be read (no)"]}, "of bob can't be read", "ask the owner"),
        ({"is_folder_on_fuse": True}, "is on a FUSE file system", "on a local file system (AUTOGPU_LEASE_DIR)"),
    ],
    ids=["unreadable-file", "fuse"],
)
def test_lease_folder_that_may_hide_claims_is_a_warning(healthy, changes, what, remedy):
    finding = found(healthy, "leases", **changes)
    assert finding.state is State.WARNING
    assert what in finding.what
    assert remedy in finding.remedy


@pytest.mark.parametrize(
    ("version", "package"),
    [
        ((3, 8), "tensorflow"),
        ((3, 9), "'tensorflow[and-cuda]'"),
        ((3, 14), "'tensorflow[and-cuda]'"),
        ((3, 15), "torch"),
    ],
    ids=str,
)
def test_suggested_framework_has_wheels_for_the_python(healthy, version, package):
    finding = found(healthy, "frameworks", **answer(None), version=version)
    assert finding.remedy == f"/env/bin/python -m pip install {package}"


def test_python_newer_than_the_tested_versions_is_a_warning(healthy):
    newest = tuple(map(int, environments.SUPPORTED[-1].split(".")))
    assert found(healthy, "python", version=newest).state is State.PASSED
    finding = found(healthy, "python", version=(3, 99))
    assert finding.state is State.WARNING
    assert finding.what.startswith("/env/bin/python is Python 3.99; this autogpu was not tested with it, only up to")
    assert finding.remedy.startswith("/env/bin/python -m pip install --upgrade autogpu; ")


def test_host_wide_doctor_suggests_a_check_of_the_shells_python(healthy):
    changes = {**CONDA, **answer(None), "hosts_folder": WHOLE}
    other, frameworks = found(healthy, "environment", **changes), found(healthy, "frameworks", **changes)
    assert (other.state, other.remedy) == (State.WARNING, "to examine it: autogpu doctor --python /conda/bin/python")
    assert frameworks.state is State.NOT_APPLICABLE


def test_root_gets_a_warning_that_the_host_hook_serves_only_people(healthy):
    finding = found(healthy, "hook", **start(), hosts_folder=WHOLE, is_person=False)
    assert finding.state is State.WARNING
    assert "does not load autogpu for root and system users" in finding.what


def test_hook_of_the_host_has_a_version_and_needs_compiled_files(healthy):
    finding = found(healthy, "hook", **HOSTS, hosts_folder=WHOLE)
    file = WHOLE.folder / "sitecustomize.py"
    assert finding.state is State.PASSED
    assert finding.what == f"a fresh /env/bin/python loads the host's hook {file} (autogpu 1.2.3)"
    newer = found(healthy, "hook", **{**HOSTS, "tag": "cpython-312"}, hosts_folder=WHOLE)
    assert (newer.state, "no compiled files for cpython-312" in newer.what) == (State.WARNING, True)
    assert newer.remedy.endswith("host-setup --all-pythons --python /env/bin/python")


def test_lease_folder_owned_by_its_first_user_gets_a_note(healthy):
    notes = [found(healthy, "leases", **each).what.partition(", ")[2] for each in ({}, {"folder": FALLBACK})]
    assert notes == ["", f"which belongs to its first user; to make one for all users: `{SETUP}`"]


@pytest.mark.parametrize(
    ("environ", "system", "project", "what"),
    [
        # A later version may have this key, so only the doctor reports an unknown key in the system file.
        pytest.param({}, "[select]\nmood = 'calm'\n", "", "select.mood", id="unknown-key"),
        pytest.param({}, "", "[select]\ncount = 2\n", "is not used as a project file", id="file-that-others-can-write"),
        pytest.param({"AUTOGPU_DEVICES": "7"}, "", "", "matches none of the GPUs here", id="no-such-gpu"),
        pytest.param({"AUTOGPU": "0"}, "", "", "switched off by AUTOGPU", id="switched-off"),
    ],
)
def test_mistake_in_a_policy_is_found(healthy, tmp_path, environ, system, project, what):
    (tmp_path / "system.toml").write_text(system)
    (tmp_path / "autogpu.toml").write_text(project)
    (tmp_path / "autogpu.toml").chmod(0o666 if project else 0o644)
    resolved = resolve(environ, script=None, working_directory=tmp_path, system_file=tmp_path / "system.toml")
    finding = found(healthy, "policy", resolved=resolved)
    assert (finding.state, what in finding.what) == (State.FAILED, True), finding.what
    assert finding.remedy.startswith("correct or unset it; ")


NOT_BUILT, LISTS_NONE = {"build": "", "gpus": 0}, {"gpus": 0}


@pytest.mark.parametrize(
    ("framework", "version", "changes", "installs", "names_page"),
    [
        pytest.param(tensorflow, "2.14.0", NOT_BUILT, "'tensorflow[and-cuda]==2.14.0'", False, id="first-with-extra"),
        pytest.param(tensorflow, "2.13.1", NOT_BUILT, "'tensorflow==2.13.1'", True, id="last-without-extra"),
        pytest.param(tensorflow, "2.1.0", NOT_BUILT, "'tensorflow==2.1.0'", True, id="first-with-one-package"),
        pytest.param(tensorflow, "1.15.5", NOT_BUILT, "'tensorflow-gpu==1.15.5'", True, id="package-for-gpus"),
        pytest.param(tensorflow, "2.16.0-rc0", LISTS_NONE, "'tensorflow[and-cuda]==2.16.0-rc0'", False, id="libraries"),
        pytest.param(tensorflow, "2.4.4", LISTS_NONE, None, True, id="libraries-without-extra"),
        pytest.param(tensorflow, "1.15.5+nv22.10", NOT_BUILT, "'tensorflow-gpu==1.15.5'", True, id="local-version"),
        pytest.param(jax, "0.4.23", {"build": ""}, "'jax[cuda12]==0.4.23'", False, id="jax-first-with-extra"),
        pytest.param(jax, "0.4.22", {"build": ""}, None, True, id="jax-without-extra"),
    ],
)
def test_remedy_fits_the_installed_version_of_the_framework(healthy, framework, version, changes, installs, names_page):
    facts = framework(version=version, **changes)
    (module,) = facts["frameworks"]
    remedy = found(healthy, module, **facts).remedy
    page = {"tensorflow": TF_PAGE, "jax": JAX_PAGE}[module]
    assert (page in remedy, "pip install" in remedy) == (names_page, installs is not None)
    assert installs is None or f"pip install {installs}" in remedy


MISSPELT, NO_SUCH_GPU, OFF = "[select]\nmood = 'calm'\n", "[select]\nexclude = ['9', '7']\n", "enabled = false\n"
CORRECT, ASK = "correct or unset it; ", "ask root, who owns /etc/autogpu/autogpu.toml, to correct it"


@pytest.mark.parametrize(
    ("system", "environ", "owner", "state", "remedies"),
    [
        pytest.param(MISSPELT, {}, "root", State.WARNING, [ASK], id="misspelt-key"),
        pytest.param("[select\n", {}, "root", State.WARNING, [ASK], id="syntax"),
        pytest.param(NO_SUCH_GPU, {}, "root", State.WARNING, [ASK], id="no-such-gpu"),
        pytest.param(OFF, {}, "root", State.WARNING, [ASK], id="switched-off"),
        pytest.param(MISSPELT, {}, "", State.FAILED, [CORRECT], id="can-be-written"),
        pytest.param(MISSPELT, {"AUTOGPU_COUNT": "x"}, "root", State.FAILED, [CORRECT, ASK], id="beside-own-mistake"),
        pytest.param("", {"AUTOGPU_COUNT": "x"}, "root", State.FAILED, [CORRECT], id="own-mistake"),
    ],
)
def test_mistake_in_the_system_file_fails_only_if_the_user_can_write_it(
    healthy, tmp_path, system, environ, owner, state, remedies
):
    (tmp_path / "system.toml").write_text(system)
    resolved = resolve(environ, script=None, working_directory=tmp_path, system_file=tmp_path / "system.toml")
    finding = found(healthy, "policy", resolved=resolved, system_policy_owner=owner)
    assert finding.state is state
    assert [each for each in (CORRECT, ASK) if each in finding.remedy] == remedies


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
    facts = replace(healthy, inventory=NO_DRIVER, **no_cuda("no library"), **found)
    assert not [finding for finding in examine(facts).values() if finding.state is State.FAILED]


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
    found = examine(replace(healthy, frameworks=there))
    assert [*found][-len(rows) - 1 :] == ["leases", *rows]
    failed = {name for name, finding in found.items() if finding.state is State.FAILED}
    assert failed == (set() if installed else {"frameworks"})


def test_finding_of_a_missing_driver_ends_with_the_option_of_docker(healthy):
    assert found(healthy, "driver", inventory=NO_DRIVER, **no_cuda()).what.endswith(
        " to give a container the host's driver: docker run --gpus all"
    )


def test_cuda_visible_devices_is_not_a_failure_without_a_driver(healthy):
    hidden = {"environ": {CUDA_VISIBLE_DEVICES: "0"}}
    finding = found(healthy, "visible", inventory=NO_DRIVER, **no_cuda(), **hidden)
    assert (finding.state, finding.what) == (State.NOT_APPLICABLE, "CUDA_VISIBLE_DEVICES hides no GPU")


@pytest.mark.parametrize(
    ("check", "changes", "remedy"),
    [
        ("driver", NO_PYNVML, "install --upgrade nvidia-ml-py"),
        ("frameworks", answer(None), "install 'tensorflow[and-cuda]'"),
    ],
)
def test_remedy_uses_uv_if_the_environment_has_no_pip(healthy, check, changes, remedy):
    changes = {**changes, "executable": "/env of mine/bin/python"}
    assert found(healthy, check, **changes).remedy == f"'/env of mine/bin/python' -m pip {remedy}"
    by_uv = found(healthy, check, **changes, has_pip=False).remedy
    assert by_uv == f"uv pip {remedy} --python '/env of mine/bin/python'"


def test_remedies_for_root_have_no_sudo_and_no_remedy_has_an_ellipsis(healthy):
    cases = [(check, changes) for check, cases in WRONG.items() for changes, _, _ in cases]
    whole = [found(healthy, check, **changes) for check, changes in cases]
    findings_of_root = [(check, found(healthy, check, **changes, sudo="")) for check, changes in cases]
    as_root = {check for check, finding in findings_of_root if "sudo " in finding.what + finding.remedy}
    assert sum("sudo " in each.remedy for each in whole) > 3
    # The exception is a command for the host: root of a container needs sudo there.
    assert as_root == {"leases"}
    assert not [each.remedy for each in whole if "..." in each.remedy]
    first_user = found(healthy, "leases", folder=FALLBACK, sudo="").what
    assert first_user.endswith("; to make one for all users: `autogpu host-setup`")


@pytest.mark.parametrize(
    ("check", "changes", "what"),
    [
        ("driver", gpus(unreadable=(SILENT,)), "GPU 2: the driver does not answer"),
        ("driver", driver("no answer", FailureCause.TIMEOUT), "no answer"),
        ("cuda", no_cuda("no answer", timed_out=True), "CUDA does not start: no answer"),
        ("hook", start(complaint="no answer", timed_out=True), "a fresh Python reports: no answer"),
        ("tensorflow", answer(None, "no answer", timed_out=True), "TensorFlow can't be used: no answer"),
    ],
    ids=lambda value: value if isinstance(value, str) and " " not in value else "",
)
def test_timeout_is_a_warning_and_not_a_failure(healthy, check, changes, what):
    finding = found(healthy, check, **changes)
    assert (finding.state, what in finding.what) == (State.WARNING, True), finding
    assert "less busy" in finding.remedy
    assert not [each for each in examine(replace(healthy, **changes)).values() if each.state is State.FAILED]
