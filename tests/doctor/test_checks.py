"""Each check ends as the facts say, and a failure names what to do."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from autogpu.devices.model import Inventory, UnreadableDevice
from autogpu.doctor.checks import examine
from autogpu.doctor.facts import Cuda, FrameworkAnswer
from autogpu.doctor.model import FindingState
from autogpu.install.proof import FreshStart
from autogpu.lease import Folder
from autogpu.policy import resolve
from tests.doctor.conftest import NO_DRIVER, tensorflow
from tests.support.values import cut, gpu, inventory


def test_a_healthy_machine_passes_everything(healthy):
    states = {finding.name: finding.state for finding in examine(healthy)}
    assert FindingState.FAILED not in states.values()
    assert [name for name, state in states.items() if state is FindingState.NOT_APPLICABLE] == [
        "mig",
        "visible",
        "growth",
    ]


def test_mig_instances_are_counted_beside_their_cards(healthy):
    findings = {each.name: each for each in examine(replace(healthy, inventory=inventory(*cut(0, 5, 5), gpu(1))))}
    assert findings["mig"].what == "autogpu chooses among 2 MIG instances of GPU 0"
    assert "reads 2 GPUs" in findings["driver"].what


@pytest.mark.parametrize(
    ("check", "changes", "what", "remedy"),
    [
        pytest.param(
            "hook",
            {"start": FreshStart(None, Path("/usr/lib/python3.11/sitecustomize.py"), (), "")},
            "does not load autogpu; its sitecustomize is /usr/lib/python3.11/sitecustomize.py",
            "/env/bin/python -m autogpu install",
            id="hook-hidden",
        ),
        pytest.param(
            "hook",
            {"hook_is_current": False},
            "_autogpu_hook.py is of another version of autogpu than the package",
            "-m autogpu install",
            id="hook-outdated",
        ),
        pytest.param(
            "hook",
            {"start": FreshStart(None, None, (), "it did not start within 60 s")},
            "a fresh Python reports: it did not start within 60 s",
            "autogpu install",
            id="python-broken",
        ),
        pytest.param(
            "environment",
            {"pythons": {"python": "/conda/bin/python"}},
            "`python` is /conda/bin/python: another environment than autogpu's, /env/bin/python",
            'export PATH="/env/bin:$PATH"; to have it in the other: '
            "/conda/bin/python -m pip install autogpu && /conda/bin/python -m autogpu install",
            id="another-environment",
        ),
        pytest.param(
            "environment",
            {"pythons": {"python": "/conda/bin/python"}, "source": "/home/me/clone"},
            "another environment",
            "/conda/bin/python -m pip install /home/me/clone && ",
            id="from-a-clone",
        ),
        pytest.param(
            "driver",
            {"inventory": Inventory(failure="NVML reports: Driver/library version mismatch", failure_cause="driver")},
            "Driver/library version mismatch",
            "sudo reboot",
            id="driver-mismatch",
        ),
        pytest.param(
            "driver",
            {"inventory": NO_DRIVER},
            "NVML (libnvidia-ml.so.1) is not there",
            "NVIDIA_DRIVER_CAPABILITIES=compute,utility",
            id="nvml-missing",
        ),
        pytest.param(
            "pynvml",
            {"inventory": Inventory(failure="pynvml (nvidia-ml-py) is not installed", failure_cause="pynvml")},
            "is not installed: autogpu can't tell which GPU is idle",
            "/env/bin/python -m pip install --upgrade nvidia-ml-py",
            id="no-pynvml",
        ),
        pytest.param(
            "pynvml",
            {"inventory": inventory(gpu(0), pynvml_lacks=("nvmlDeviceGetMigMode",))},
            "pynvml is too old: it has no nvmlDeviceGetMigMode",
            "pip install --upgrade nvidia-ml-py",
            id="old-pynvml",
        ),
        pytest.param(
            "tensorflow",
            {"frameworks": (FrameworkAnswer("tensorflow", None, "it ended by signal 11"),)},
            "can't be used: it ended by signal 11",
            "repair",
            id="crashes",
        ),
        pytest.param(
            "driver",
            {"inventory": inventory(gpu(0), unreadable=(UnreadableDevice(1, "GPU is lost"),))},
            "GPU 1: GPU is lost",
            "dmesg",
            id="lost-gpu",
        ),
        *(
            pytest.param(
                "health", {"inventory": inventory(gpu(0), gpu(1, **fields))}, what, remedy, id=f"health-{name}"
            )
            for name, fields, what, remedy in (
                ("failed", {"remapping_failed": True}, "GPU 1: row remapping failed", "is to be replaced"),
                ("errors", {"uncorrected_errors": 3}, "3 uncorrectable memory errors", "--gpu-reset"),
                ("pending", {"remapping_pending": True}, "pending until a reset", "--gpu-reset"),
                ("hot", {"is_too_hot": True}, "GPU 1: slowed down by heat", "see to the cooling"),
            )
        ),
        pytest.param(
            "mig",
            {"inventory": inventory(*cut(0, 5), *cut(1))},
            "GPU 1: in MIG mode, and no instance can be read here",
            "sudo nvidia-smi -i 1 -mig 0",
            id="mig-without-instances",
        ),
        pytest.param(
            "cuda", {"cuda": Cuda(error="no such file")}, "libcuda.so.1: no such file", "--gpus all", id="no-cuda"
        ),
        pytest.param("cuda", {"cuda": Cuda(code=803)}, "of different versions", "reboot", id="cuda-mismatch"),
        pytest.param(
            "cuda", {"cuda": Cuda(count=1)}, "CUDA sees 1 GPU and NVML 2", "/dev/nvidia", id="cuda-sees-fewer"
        ),
        *(
            pytest.param(
                "visible",
                {"environ": {"CUDA_VISIBLE_DEVICES": value}},
                f'CUDA_VISIBLE_DEVICES="{value}" hides every GPU',
                "unset CUDA_VISIBLE_DEVICES",
                id=f"hidden-by-{value}",
            )
            for value in ("-1", "99", "abc")
        ),
        pytest.param(
            "growth",
            {"environ": {"TF_FORCE_GPU_ALLOW_GROWTH": "1"}},
            "has no effect",
            "export TF_FORCE_GPU_ALLOW_GROWTH=true",
            id="growth-misspelt",
        ),
        pytest.param(
            "tensorflow",
            {"frameworks": (FrameworkAnswer("tensorflow", None),)},
            "no TensorFlow",
            "pip install 'tensorflow[and-cuda]'",
            id="none",
        ),
        pytest.param(
            "tensorflow",
            tensorflow(has_cuda=False),
            "built without CUDA",
            "pip install 'tensorflow[and-cuda]'",
            id="cpu-wheel",
        ),
        pytest.param(
            "tensorflow",
            tensorflow(has_cuda=False, is_cpu_package=True),
            "built without CUDA",
            "pip uninstall -y tensorflow-cpu && /env/bin/python -m pip install 'tensorflow[and-cuda]'",
            id="cpu-package",
        ),
        pytest.param(
            "tensorflow",
            {"frameworks": (FrameworkAnswer("tensorflow", {"error": "ImportError: numpy"}),)},
            "can't be used: ImportError: numpy",
            "repair",
            id="broken",
        ),
        pytest.param(
            "tensorflow",
            tensorflow(has_rocm=True),
            "built for AMD GPUs",
            "HIP_VISIBLE_DEVICES",
            id="rocm",
        ),
        pytest.param(
            "libraries",
            tensorflow(gpus=0),
            "TensorFlow 2.21.0 lists no GPU of 2",
            "'tensorflow[and-cuda]==2.21.0'",
            id="libraries",
        ),
        pytest.param(
            "hooks",
            tensorflow(missing={"Context.config": "claims nothing"}),
            "lacks Context.config: claims nothing",
            "pip install --upgrade autogpu",
            id="hooks",
        ),
        pytest.param(
            "leases",
            {"folder": None, "folder_error": ("the lease folder /x is a symbolic link", "remove it")},
            "/x is a symbolic link",
            "remove it",
            id="folder-unusable",
        ),
        pytest.param(
            "leases",
            {"folder": Folder(Path("/var/tmp/autogpu.v1"), "fallback", 0), "is_in_container": True},
            "of this container only",
            "sudo $(command -v autogpu) host-setup; then docker run -v /run/autogpu:/run/autogpu",
            id="container",
        ),
    ],
)
def test_what_is_wrong_is_found_and_has_a_remedy(healthy, check, changes, what, remedy):
    (finding,) = [each for each in examine(replace(healthy, **changes)) if each.name == check]
    assert finding.state is FindingState.FAILED
    assert what in finding.what
    assert remedy in finding.remedy


def test_the_policy_is_read_for_the_doctor_with_keys_of_a_later_version(healthy, tmp_path):
    system = tmp_path / "system.toml"
    system.write_text("[select]\nmood = 'calm'\n")
    resolved = resolve({}, script=None, working_directory=tmp_path, system_file=system)
    assert resolved.problems == ()
    (finding,) = [each for each in examine(replace(healthy, resolved=resolved)) if each.name == "policy"]
    assert finding.state is FindingState.FAILED
    assert "select.mood" in finding.what


def test_a_project_file_that_others_can_write_is_found(healthy, tmp_path):
    file = tmp_path / "autogpu.toml"
    file.write_text("[select]\ncount = 2\n")
    file.chmod(0o666)
    resolved = resolve({}, script=None, working_directory=tmp_path, system_file=tmp_path / "none")
    (finding,) = [each for each in examine(replace(healthy, resolved=resolved)) if each.name == "policy"]
    assert finding.state is FindingState.FAILED
    assert "does not count as a project file" in finding.what


def test_switched_off_is_found_with_who_did_it(healthy, tmp_path):
    resolved = resolve({"AUTOGPU": "0"}, script=None, working_directory=tmp_path, system_file=tmp_path / "none")
    (finding,) = [each for each in examine(replace(healthy, resolved=resolved)) if each.name == "switch"]
    assert (finding.state, finding.remedy) == (FindingState.FAILED, "unset AUTOGPU")


def test_a_machine_without_a_driver_is_not_ill(healthy):
    facts = replace(
        healthy,
        inventory=NO_DRIVER,
        cuda=Cuda(error="no library"),
        **tensorflow(gpus=0),
    )
    assert not [finding for finding in examine(facts) if finding.state is FindingState.FAILED]
    cpu_wheel = replace(facts, **tensorflow(has_cuda=False, gpus=0))
    assert not [finding for finding in examine(cpu_wheel) if finding.state is FindingState.FAILED]


def test_a_container_without_a_driver_is_told_how_it_gets_one(healthy):
    said = {
        is_in_container: next(finding.what for finding in examine(facts) if finding.name == "driver")
        for is_in_container in (True, False)
        for facts in [replace(healthy, inventory=NO_DRIVER, cuda=Cuda(), is_in_container=is_in_container)]
    }
    assert said[True] == said[False] + "; if the host has one, start the container with --gpus all"


def test_what_hides_gpus_is_not_told_where_there_are_none(healthy):
    facts = replace(healthy, inventory=NO_DRIVER, cuda=Cuda(), environ={"CUDA_VISIBLE_DEVICES": "0"})
    (finding,) = [each for each in examine(facts) if each.name == "visible"]
    assert (finding.state, finding.what) == (FindingState.NOT_APPLICABLE, "no GPU to hide")


def test_nobody_is_told_to_install_into_the_systems_python(healthy):
    facts = replace(healthy, pythons={"python3": "/usr/bin/python3"})
    (finding,) = [each for each in examine(facts) if each.name == "environment"]
    assert finding.remedy == 'to use autogpu\'s: export PATH="/env/bin:$PATH"'
