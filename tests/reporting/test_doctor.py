"""The sentences about the findings of ``autogpu doctor``."""

import errno

import pytest

from autogpu.doctor.checks import run_checks
from autogpu.doctor.model import Cause, State, failed, warning
from autogpu.engines.model import Denial, Grant
from autogpu.frozen import replace
from autogpu.lease import UnreadableFile
from autogpu.reporting.doctor import sentence
from tests.support import environments
from tests.support.doctor_facts import (
    CONDA,
    CUT,
    DEBIAN,
    FALLBACK,
    HOST_HOOK,
    HOSTS,
    LINK,
    LOST,
    NO_DRIVER,
    NO_PYNVML,
    SILENT,
    WHOLE,
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
from tests.support.values import cut, gpu, inventory

SLURM = {"grant": Grant("Slurm", Denial.SLURM_GRANTED_NONE)}
NO = PermissionError(errno.EACCES, "no")
UNREADABLE, MOUNTED = UnreadableFile("job.7.7.a", 4711, NO), UnreadableFile("job.7.7.b", None, NO)

NEWEST = environments.SUPPORTED[-1]
LOADS_NONE = "a fresh /env/bin/python does not load autogpu"
INSTALL = "/env/bin/python -m autogpu install"
SETUP = "sudo $(command -v autogpu) host-setup"
REMOVE = "ask the owners to remove these files, or remove them as root"
DMESG = "to find the cause: sudo dmesg | grep -i xid; a lost GPU needs a reboot"
REBOOT = "or reboot the machine; replace a card whose faults come back"
NO_LIBRARIES = "it finds no matching CUDA libraries, or the driver is too old"
TORCH_PAGE = "https://pytorch.org/get-started/locally lists the wheels for each CUDA version"

# Causes, changed facts, what was found, and the remedy.
SENTENCES = [
    (Cause.PYTHON_TESTED, {}, "/env/bin/python is Python 3.11; autogpu is tested with this version", ""),
    (
        Cause.PYTHON_TOO_OLD,
        {"version": (3, 6)},
        "/env/bin/python is older than Python 3.7",
        "create an environment with Python 3.7 or newer",
    ),
    (
        Cause.PYTHON_UNTESTED,
        {"version": (3, 99)},
        f"/env/bin/python is Python 3.99; this autogpu was not tested with it, only up to Python {NEWEST}",
        "upgrade autogpu: /env/bin/python -m pip install . (in a clone of autogpu); if a script behaves "
        "differently with AUTOGPU=0, report it",
    ),
    (Cause.HOOK_LOADED, {}, "a fresh /env/bin/python loads /env/site-packages/_autogpu_hook.py", ""),
    (Cause.HOOK_MISSING, start(), LOADS_NONE, INSTALL),
    (Cause.HOOK_MISSING, start(DEBIAN), f"{LOADS_NONE}; its sitecustomize is {DEBIAN}", INSTALL),
    (
        Cause.HOOK_MISSING,
        {**start(), "is_own_python": False},
        LOADS_NONE,
        f"/env/bin/python -m pip install . (in a clone of autogpu), then {INSTALL}",
    ),
    (
        Cause.HOOK_MISSING,
        {**start(), "is_own_python": False, "has_pip": False},
        LOADS_NONE,
        f"uv pip install . --python /env/bin/python (in a clone of autogpu), then {INSTALL}",
    ),
    (Cause.HOOK_NEEDS_NEWER_PYTHON, {"version": (3, 6)}, "autogpu's hook needs Python 3.7 or newer", ""),
    (
        Cause.HOOK_OF_OTHER_VERSION,
        {"hook_is_current": False},
        "/env/site-packages/_autogpu_hook.py is from another version of autogpu than the installed package",
        INSTALL,
    ),
    (Cause.FRESH_PYTHON_FAILS, start(complaint="no\x1banswer"), f"{LOADS_NONE}: no\\x1banswer", INSTALL),
    (
        Cause.HOST_HOOK_LOADED,
        {**HOSTS, "hosts_folder": WHOLE},
        f"a fresh /env/bin/python loads the host's hook {HOST_HOOK} (autogpu 1.2.3)",
        "",
    ),
    (
        Cause.HOST_HOOK_HIDDEN,
        {**start(DEBIAN), "hosts_folder": WHOLE},
        f"{LOADS_NONE}; its sitecustomize is {DEBIAN}, which hides the one in /usr/local/lib/autogpu",
        INSTALL,
    ),
    (
        Cause.HOST_HOOK_NOT_COMPILED,
        {**HOSTS, "hosts_folder": WHOLE, "tag": "cpython-312"},
        f"a fresh /env/bin/python loads the host's hook {HOST_HOOK} (autogpu 1.2.3); the hook has no "
        "compiled files for cpython-312, so each start takes longer",
        f"ask the administrator to run: {SETUP} --all-pythons --python /env/bin/python",
    ),
    (
        Cause.HOST_HOOK_NOT_ON_PATH,
        {**start(), "hosts_folder": WHOLE},
        f"{LOADS_NONE}; /usr/local/lib/autogpu is not on its PYTHONPATH",
        'log in again, or export PYTHONPATH="${PYTHONPATH:+$PYTHONPATH:}/usr/local/lib/autogpu"',
    ),
    (
        Cause.HOST_HOOK_SKIPS_USER,
        {**start(), "hosts_folder": WHOLE, "user_is_person": False},
        "/usr/local/lib/autogpu does not load autogpu for root and system users",
        f"{INSTALL}, or run this command as an ordinary user",
    ),
    (
        Cause.HOST_HOOK_UNUSABLE,
        HOSTS,
        f"the host's hook {HOST_HOOK} can't be used: the link /usr/local/lib/autogpu is missing",
        f"ask the administrator to run: {SETUP} --all-pythons",
    ),
    (
        Cause.HOST_HOOK_UNUSABLE,
        {**HOSTS, "hosts_folder": replace(WHOLE, problem=CUT), "sudo": ""},
        f"the host's hook {HOST_HOOK} can't be used: the files in {WHOLE.folder} "
        "differ from those that host-setup wrote",
        "ask the administrator to run: autogpu host-setup --all-pythons",
    ),
    (Cause.ENVIRONMENT_FIRST_ON_PATH, {}, "`python` belongs to the environment that has autogpu (/env/bin/python)", ""),
    (
        Cause.ENVIRONMENT_NOT_CHECKED,
        {"is_own_python": False},
        "PATH is not checked, because --python selects /env/bin/python",
        "",
    ),
    (
        Cause.OTHER_ENVIRONMENT_ON_PATH,
        CONDA,
        "`python` is /conda/bin/python, but autogpu is installed for /env/bin/python",
        'export PATH="/env/bin:$PATH", or install autogpu for /conda/bin/python too',
    ),
    (
        Cause.OTHER_ENVIRONMENT_ON_PATH,
        {"pythons": {"python": "/a", "python3": "/b"}},
        "`python` is /a and `python3` is /b, but autogpu is installed for /env/bin/python",
        'export PATH="/env/bin:$PATH", or install autogpu for /a and /b too',
    ),
    (
        Cause.OTHER_ENVIRONMENT_WITH_HOST_HOOK,
        {**CONDA, "hosts_folder": WHOLE},
        "`python` is /conda/bin/python, but autogpu is installed for /env/bin/python; the host's hook may load "
        "autogpu there too",
        "to examine that Python: autogpu doctor --python /conda/bin/python",
    ),
    (Cause.DRIVER_WORKS, gpus(*cut(1, 5, 5), driver_version="550.54.15"), "NVML 550.54.15 reads 2 GPUs", ""),
    (
        Cause.DRIVER_WORKS,
        gpus(denied=3, driver_version="550.54.15"),
        "NVML 550.54.15 reads 1 GPU; 3 more not granted to this process",
        "",
    ),
    (
        Cause.DRIVER_FAILS,
        driver("NVML reports: no"),
        "NVML reports: no",
        "after an update of the driver: sudo reboot; else run nvidia-smi, which should report the same error",
    ),
    (
        Cause.DRIVER_MISSING,
        {**NO_DRIVER, **no_cuda()},
        "no NVIDIA driver here: scripts run on the CPU, as without autogpu",
        "to give a container the host's driver: docker run --gpus all",
    ),
    (Cause.GPUS_UNREADABLE, gpus(unreadable=(LOST, SILENT)), "not every GPU can be read: GPU 1: GPU is lost", DMESG),
    (
        Cause.GPUS_UNREADABLE,
        gpus(unreadable=(SILENT,)),
        "not every GPU can be read: GPU 2: the driver does not answer",
        DMESG,
    ),
    (
        Cause.NVML_MISSING,
        NO_DRIVER,
        "CUDA sees GPUs, but NVML (libnvidia-ml.so.1) is missing: autogpu can't tell which GPU is idle",
        "install all of the driver's libraries; in a container: start it with -e "
        "NVIDIA_DRIVER_CAPABILITIES=compute,utility",
    ),
    (
        Cause.PYNVML_UNUSABLE,
        NO_PYNVML,
        "pynvml (nvidia-ml-py) is not installed: autogpu can't tell which GPU is idle",
        "/env/bin/python -m pip install --upgrade nvidia-ml-py",
    ),
    (Cause.GPUS_HEALTHY, {}, "the driver reports no GPU faults", ""),
    (
        Cause.GPUS_FAULTY,
        gpus(gpu(1, remapping_failed=True)),
        "GPU 1: row remapping failed",
        f"while no process uses GPU 1: sudo nvidia-smi --gpu-reset -i 1; {REBOOT}",
    ),
    (
        Cause.GPUS_FAULTY,
        gpus(gpu(1, uncorrected_errors=3), gpu(2, remapping_pending=True)),
        "GPU 1: 3 uncorrectable memory errors since boot; GPU 2: row remapping pending until a reset",
        f"while no process uses GPU 1 and GPU 2: sudo nvidia-smi --gpu-reset -i 1,2; {REBOOT}",
    ),
    (
        Cause.GPUS_FAULTY,
        gpus(*cut(1), gpu(2, remapping_failed=True)),
        "GPU 2: row remapping failed; GPU 1: in MIG mode without an instance; jobs can use only instances",
        f"while no process uses GPU 2: sudo nvidia-smi --gpu-reset -i 2; {REBOOT}; to turn MIG mode off: sudo "
        "nvidia-smi -i 1 -mig 0; or create MIG instances",
    ),
    (
        Cause.GPUS_WITHOUT_INSTANCE,
        gpus(*cut(1), *cut(2)),
        "GPU 1 and GPU 2: in MIG mode without an instance; jobs can use only instances",
        "to turn MIG mode off: sudo nvidia-smi -i 1,2 -mig 0; or create MIG instances",
    ),
    (Cause.NO_GPU_TO_EXAMINE, NO_DRIVER, "no GPU to examine", ""),
    (Cause.CUDA_WORKS, {}, "CUDA sees 2 GPUs", ""),
    (
        Cause.CUDA_DIFFERS_FROM_NVML,
        cuda(1),
        "CUDA sees 1 GPU and NVML 2",
        "give the container all of /dev/nvidia*, so that CUDA and NVML see the same GPUs",
    ),
    (
        Cause.CUDA_DOES_NOT_START,
        no_cuda(),
        "CUDA does not start: no such file",
        "sudo reboot, or reinstall the driver; in a container: start it with --gpus all",
    ),
    (
        Cause.CUDA_HAS_NO_GPU,
        {"inventory": inventory(denied=2)},
        "CUDA has no GPU to use: none is granted to this process",
        "",
    ),
    (Cause.CUDA_NEEDS_DRIVER, NO_DRIVER, "CUDA needs an NVIDIA driver", ""),
    (Cause.GPUS_VISIBLE, visible("0"), "CUDA_VISIBLE_DEVICES=0: autogpu chooses among these GPUs", ""),
    (
        Cause.GPUS_VISIBLE,
        {**visible("0"), "grant": Grant("Slurm")},
        "CUDA_VISIBLE_DEVICES=0, granted by Slurm: autogpu chooses among these GPUs",
        "",
    ),
    (
        Cause.GPUS_HIDDEN,
        visible("99"),
        'CUDA_VISIBLE_DEVICES="99" hides every GPU from this shell',
        "unset CUDA_VISIBLE_DEVICES",
    ),
    (Cause.GPUS_NOT_GRANTED, SLURM, "Slurm granted no GPU here", "to get a GPU: srun --gres=gpu:1"),
    (Cause.GPUS_NOT_RESTRICTED, {}, "CUDA_VISIBLE_DEVICES hides no GPU", ""),
    (Cause.LEASES_WORK, {}, "claims are in the folder /run/autogpu", ""),
    (
        Cause.LEASES_WORK,
        {"folder": None, "environ": {"AUTOGPU_LEASE_DIR": "/x"}},
        "claims are in the folder /x (the first claim makes it)",
        "",
    ),
    (
        Cause.LEASE_FILES_UNREADABLE,
        {"unreadable_files": (MOUNTED,) * 5},
        "in /run/autogpu, job.7.7.b can't be read (no); job.7.7.b can't be read (no); job.7.7.b can't be "
        "read (no); job.7.7.b can't be read (no); and 1 more; autogpu ignores claims in unreadable files",
        REMOVE,
    ),
    (
        Cause.LEASE_FILES_UNREADABLE,
        {"unreadable_files": (UNREADABLE,)},
        "in /run/autogpu, job.7.7.a of uid 4711 can't be read (no); autogpu ignores claims in unreadable files",
        REMOVE,
    ),
    (
        Cause.LEASE_FOLDER_OF_CONTAINER,
        {"folder": FALLBACK, "is_in_container": True},
        "claims are in the folder /var/tmp/autogpu.v1 of this container only: jobs inside and outside of the "
        "container don't see each other",
        f"on the host: {SETUP}; then start the container with -v /run/autogpu:/run/autogpu",
    ),
    (
        Cause.LEASE_FOLDER_OF_FIRST_USER,
        {"folder": FALLBACK},
        "claims are in the folder /var/tmp/autogpu.v1, which belongs to its first user",
        f"to make a folder for all users: {SETUP}",
    ),
    (
        Cause.LEASE_FOLDER_OF_FIRST_USER,
        {"folder": None, "sudo": ""},
        "claims are in the folder /var/tmp/autogpu.v1 (the first claim makes it), which belongs to its first user",
        "to make a folder for all users: autogpu host-setup",
    ),
    (
        Cause.LEASE_FOLDER_ON_FUSE,
        {"is_folder_on_fuse": True},
        "the lease folder /run/autogpu is on a FUSE file system: jobs that open the folder without FUSE "
        "don't see claims made through FUSE",
        "let all jobs use the same folder on a local file system (AUTOGPU_LEASE_DIR)",
    ),
    (
        Cause.LEASE_FOLDER_UNUSABLE,
        {"folder": None, "lease_problem": LINK},
        "the lease folder /x is a symbolic link",
        "remove it, or ask the administrator to run `autogpu host-setup`",
    ),
    (Cause.NO_GPU_TO_LEASE, NO_DRIVER, "no GPU to claim", ""),
    (
        Cause.FRAMEWORK_MISSING,
        answer(None),
        "no supported framework (tensorflow) is installed for /env/bin/python",
        "/env/bin/python -m pip install 'tensorflow[and-cuda]'",
    ),
    (
        Cause.NO_FRAMEWORK_BESIDE_HOST_HOOK,
        {**answer(None), "hosts_folder": WHOLE},
        "no supported framework (tensorflow) is installed for /env/bin/python",
        "to examine another Python: autogpu doctor --python PATH",
    ),
]

OF_FRAMEWORKS = [
    (Cause.FRAMEWORK_BUILT_FOR_CUDA, tensorflow(gpus=1), "TensorFlow 2.21.0, built with CUDA, lists 1 GPU", ""),
    (Cause.FRAMEWORK_BUILT_FOR_CUDA, jax(), "JAX 0.10.2, plug-in xla_cuda12", ""),
    (
        Cause.FRAMEWORK_BUILT_FOR_ROCM,
        torch(obstacle="built for ROCm"),
        "built for ROCm",
        "set HIP_VISIBLE_DEVICES to choose a GPU",
    ),
    (
        Cause.FRAMEWORK_FINDS_NO_GPU,
        tensorflow(gpus=0),
        f"TensorFlow 2.21.0, built with CUDA, lists no GPU, but the driver has 2 GPUs: {NO_LIBRARIES}",
        "/env/bin/python -m pip install 'tensorflow[and-cuda]==2.21.0'; to see the reason: "
        "TF_CPP_MIN_LOG_LEVEL=0 /env/bin/python -c 'import tensorflow as tf; "
        "tf.config.experimental.list_physical_devices()'",
    ),
    (
        Cause.FRAMEWORK_FINDS_NO_GPU,
        torch(gpus=0),
        f"PyTorch 2.15.0, built for CUDA 13.2, lists no GPU, but the driver has 2 GPUs: {NO_LIBRARIES}",
        f"{TORCH_PAGE}; to see the reason: /env/bin/python -c 'import torch; torch.cuda.init()'",
    ),
    (
        Cause.FRAMEWORK_UNSUPPORTED,
        torch(obstacle="no\x1btorch._C.x"),
        "no\\x1btorch._C.x",
        "upgrade autogpu: a newer version may support this PyTorch",
    ),
    (
        Cause.FRAMEWORK_UNUSABLE,
        jax(error="ImportError: jaxlib"),
        "JAX can't be used: ImportError: jaxlib",
        "correct this error; to see it in full: /env/bin/python -c 'import jax'",
    ),
    (
        Cause.FRAMEWORK_UNUSABLE,
        answer(None, "it was killed by signal 11"),
        "TensorFlow can't be used: it was killed by signal 11",
        "correct this error; to see it in full: /env/bin/python -c 'import tensorflow'",
    ),
    (
        Cause.FRAMEWORK_WITHOUT_CUDA,
        tensorflow(build="", gpus=0),
        "TensorFlow 2.21.0 is built without CUDA and uses no GPU",
        "/env/bin/python -m pip install 'tensorflow[and-cuda]==2.21.0'",
    ),
    (
        Cause.FRAMEWORK_WITHOUT_CUDA,
        torch(build="", gpus=0),
        "PyTorch 2.15.0 is built without CUDA and uses no GPU",
        TORCH_PAGE,
    ),
    (
        Cause.FRAMEWORK_WITHOUT_CUDA_OR_GPU,
        {**jax(build=""), **NO_DRIVER},
        "JAX 0.10.2 is built without CUDA, and there is no GPU to use",
        "",
    ),
    (Cause.FRAMEWORK_HOOKS_FOUND, jax(), "autogpu finds every function that it hooks into", ""),
    (
        Cause.FRAMEWORK_HOOKS_MISSING,
        torch(missing={"torch._C.x": "limit", "y": "z"}),
        "PyTorch 2.15.0 lacks torch._C.x: limit; y: z",
        "upgrade autogpu: a newer version may support this PyTorch",
    ),
    (Cause.FRAMEWORK_HOOKS_NEED_CUDA, tensorflow(build=""), "nothing to hook into in a TensorFlow without CUDA", ""),
]

CORRECT = "correct or remove these settings; `autogpu config` shows each value and where it is set"
ASK = "ask root to correct /etc/autogpu/autogpu.toml, which you can't write"
UNKNOWN = "{folder}/system.toml:2: unknown key select.mood (`autogpu config` lists the keys); it is ignored"
UNMATCHED = "matches none of the GPUs here; this host has GPUs 0 to 1, named NVIDIA TITAN RTX"

# Causes, the policy, what was found, and the remedy. A test writes the files into a folder.
OF_POLICIES = [
    (Cause.POLICY_VALID, {}, "the policy is valid ({folder}/system.toml, {folder}/autogpu.toml)", ""),
    (
        Cause.POLICY_MISTAKES,
        {"environ": {"AUTOGPU_DEVICES": "7", "AUTOGPU": "0"}},
        f"select.devices = 7 (AUTOGPU_DEVICES) {UNMATCHED}; autogpu is switched off by AUTOGPU",
        CORRECT,
    ),
    (Cause.POLICY_MISTAKES_OF_HOST, {"system": "[select]\nmood = 'calm'\n"}, UNKNOWN, ASK),
    (
        Cause.POLICY_MISTAKES_OF_USER_AND_HOST,
        {"system": "[select]\nmood = 'calm'\n", "environ": {"AUTOGPU": "0"}},
        f"{UNKNOWN}; autogpu is switched off by AUTOGPU",
        f"{CORRECT}; {ASK}",
    ),
]


def causes(rows):
    return [row[0].value for row in rows]


@pytest.fixture
def healthy(tmp_path):
    return healthy_facts(tmp_path)


@pytest.mark.parametrize(("cause", "changes", "what", "remedy"), SENTENCES, ids=causes(SENTENCES))
def test_each_finding_has_a_sentence_and_a_remedy(healthy, cause, changes, what, remedy):
    assert sentence(failed(cause), replace(healthy, **changes)) == (what, remedy)


@pytest.mark.parametrize(("cause", "changes", "what", "remedy"), OF_FRAMEWORKS, ids=causes(OF_FRAMEWORKS))
def test_each_finding_about_a_framework_has_a_sentence_and_a_remedy(healthy, cause, changes, what, remedy):
    (module,) = changes["frameworks"]
    assert sentence(failed(cause, module), replace(healthy, **changes)) == (what, remedy)


@pytest.mark.parametrize(("cause", "files", "what", "remedy"), OF_POLICIES, ids=causes(OF_POLICIES))
def test_each_finding_about_the_policy_has_a_sentence_and_a_remedy(healthy, tmp_path, cause, files, what, remedy):
    facts = replace(healthy, **policy(tmp_path, **files), system_policy_owner="root")
    assert sentence(failed(cause), facts) == (what.format(folder=tmp_path), remedy)


def test_each_cause_has_a_sentence():
    assert {*causes([*SENTENCES, *OF_FRAMEWORKS, *OF_POLICIES])} == {cause.value for cause in Cause}


def test_valid_policy_without_a_file_consists_of_the_defaults(healthy):
    assert sentence(failed(Cause.POLICY_VALID), healthy)[0] == "the policy is valid (no file: the defaults are used)"


def test_slow_check_advises_to_run_the_doctor_again_first(healthy):
    _, remedy = sentence(warning(Cause.CUDA_DOES_NOT_START, is_slow=True), replace(healthy, **no_cuda()))
    later = "run `autogpu doctor` again when the machine is less busy; if the finding stays: sudo reboot, or "
    assert remedy.startswith(later)


def test_each_failure_and_warning_has_a_remedy_that_a_user_can_paste(healthy):
    for _, changes, *_ in (*SENTENCES, *OF_FRAMEWORKS):
        facts = replace(healthy, **changes)
        for finding in run_checks(facts).values():
            remedy = sentence(finding, facts)[1]
            assert remedy or finding.state not in (State.FAILED, State.WARNING), finding
            assert "..." not in remedy


def test_sentences_for_root_have_no_sudo(healthy):
    as_root = [
        (cause, sentence(failed(cause), replace(healthy, **{**changes, "sudo": ""})))
        for cause, changes, *_ in SENTENCES
    ]
    # The exception is a command for the host: root of a container needs sudo there.
    assert {cause for cause, texts in as_root if "sudo " in "".join(texts)} == {Cause.LEASE_FOLDER_OF_CONTAINER}
    assert sum("sudo " in what + remedy for _, _, what, remedy in SENTENCES) > 3


@pytest.mark.parametrize(
    ("cause", "changes", "remedy"),
    [
        (Cause.PYNVML_UNUSABLE, NO_PYNVML, "install --upgrade nvidia-ml-py"),
        (Cause.FRAMEWORK_MISSING, answer(None), "install 'tensorflow[and-cuda]'"),
    ],
)
def test_remedy_uses_uv_if_the_environment_has_no_pip(healthy, cause, changes, remedy):
    facts = replace(healthy, **changes, executable="/env of mine/bin/python")
    assert sentence(failed(cause), facts)[1] == f"'/env of mine/bin/python' -m pip {remedy}"
    by_uv = sentence(failed(cause), replace(facts, has_pip=False))[1]
    assert by_uv == f"uv pip {remedy} --python '/env of mine/bin/python'"
