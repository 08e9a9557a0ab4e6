"""``autogpu doctor`` in real environments: a healthy one, and some that lack a library, CUDA or the hook."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from autogpu.doctor.model import Cause
from tests.gpusim import Gpu, Server
from tests.support import environments

pytestmark = pytest.mark.slow

GPUS = [Gpu(), Gpu()]


def findings(environ, python=sys.executable):
    command = [str(python), "-m", "autogpu", "doctor", "--json"]
    given = {**os.environ, **environ}
    done = subprocess.run(command, env=given, capture_output=True, text=True, timeout=300, check=False)
    assert done.stderr == ""
    told = json.loads(done.stdout)["findings"]
    failed = {each["check"] for each in told if each["state"] == "failed"}
    assert done.returncode == (1 if failed else 0)
    assert all(each["remedy"] for each in told if each["state"] == "failed")
    assert {each["cause"] for each in told} <= {cause.value for cause in Cause}
    return failed, {each["check"]: each["what"] for each in told}


def machine_without(server, folder, *names):
    """Return variables with which a process finds all libraries of the server except ``names``."""
    folder.mkdir()
    for library in Path(server.environ["LD_LIBRARY_PATH"].split(os.pathsep)[0]).iterdir():
        if library.name not in names:
            (folder / library.name).symlink_to(library)
    return {**server.environ, "LD_LIBRARY_PATH": str(folder)}


@pytest.mark.tensorflow
@pytest.mark.timeout(900)
def test_healthy_environment_passes(server):
    python = environments.tensorflow_with_autogpu()
    failed, said = findings({**server.environ, "PATH": str(python.parent)}, python)
    assert failed == set(), said
    assert said["tensorflow"] == "TensorFlow 2.21.0, built with CUDA, lists 2 GPUs"
    assert said["tensorflow-hooks"] == "autogpu finds every function that it hooks into"
    assert not server.calls(call="context"), "asking takes no GPU"


def test_all_mistakes_in_the_variables_of_a_shell_are_found_at_once(server):
    other = environments.environment(environments.interpreter("3.11"), with_autogpu=False)
    environ = {
        "PATH": str(other.parent),
        "CUDA_VISIBLE_DEVICES": "",
        "AUTOGPU_CUONT": "2",
        "AUTOGPU_LEASE_DIR": "/proc/self/mem",
    }
    failed, said = findings({**server.environ, **environ})
    whats = {
        "environment": f"`python` is {other}",
        "visible": "hides every GPU",
        "policy": "nearest is AUTOGPU_COUNT",
        "leases": "is not a folder",
        "hook": "does not load autogpu",
        "frameworks": "no supported framework (tensorflow, jax, torch) is installed for",
    }
    assert failed == whats.keys()
    assert [check for check, what in whats.items() if what not in said[check]] == []


def test_missing_nvml_is_found_on_a_machine_with_cuda(server, tmp_path):
    environ = machine_without(server, tmp_path / "libraries", "libnvidia-ml.so.1")
    failed, said = findings({**environ, "AUTOGPU_LEASE_DIR": str(tmp_path / "nowhere")})
    assert ("driver" in failed, "libnvidia-ml.so.1" in said["driver"]) == (True, True)
    assert not (tmp_path / "nowhere").exists(), "asking makes no lease folder"


def test_failed_start_of_cuda_is_shown_with_the_message_of_the_driver(tmp_path):
    with Server([Gpu()], folder=tmp_path, cuda_init="NO_DEVICE") as server:
        failed, said = findings(server.environ)
    assert ("cuda" in failed, "driver" in failed) == (True, False)
    assert said["cuda"] == "CUDA does not start: cuInit fails with 100: no CUDA-capable device is detected"


def test_option_python_checks_an_environment_without_autogpu(server, tmp_path):
    other = environments.environment(environments.interpreter("3.9"), with_autogpu=False)
    project = tmp_path / "project"
    project.mkdir()
    (project / "torch.py").write_text("__version__ = 'none'\n")
    environ = {**server.environ, "PYTHONPATH": str(project)}
    command = [sys.executable, "-m", "autogpu", "doctor", "--json", "--python", str(other)]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=300, check=False)
    said = {found["check"]: found for found in json.loads(done.stdout)["findings"]}
    assert (said["hook"]["state"], said["environment"]["state"]) == ("failed", "not applicable")
    assert (said["hook"]["cause"], said["environment"]["cause"]) == ("hook_missing", "environment_not_checked")
    assert said["hook"]["what"].startswith(f"a fresh {other} does not load autogpu")
    # This autogpu ran its probe in that Python, which found the torch.py above.
    assert "PyTorch can't be used" in said["torch"]["what"]
    assert done.returncode == 1


def test_option_python_uses_the_autogpu_of_that_python_if_it_has_one(server):
    other = environments.environment(environments.interpreter("3.9"), with_hook=True)
    command = [sys.executable, "-m", "autogpu", "doctor", "--json", "--python", str(other)]
    done = subprocess.run(command, env=server.environ, capture_output=True, text=True, timeout=300, check=False)
    said = {found["check"]: found["what"] for found in json.loads(done.stdout)["findings"]}
    assert said["hook"].startswith(f"a fresh {other} loads {environments.site_packages(other)}")
    # No framework is installed there.
    assert (done.returncode, done.stderr) == (1, "")


def test_option_python_refuses_a_python_that_does_not_start(tmp_path):
    command = [sys.executable, "-m", "autogpu", "doctor", "--python", str(tmp_path / "gone")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, "gone does not start" in done.stderr) == (2, True)


@pytest.mark.xdist_group("without-pynvml")
def test_missing_pynvml_is_reported_by_doctor_and_pick(server):
    python = environments.environment(environments.interpreter("3.11"), with_hook=True, name="without-pynvml")
    environments.remove(python, "nvidia-ml-py")
    failed, said = findings({**server.environ, "PATH": str(python.parent)}, python)
    assert failed == {"driver", "frameworks"}
    assert said["driver"].startswith("pynvml (nvidia-ml-py) is not installed")
    assert server.run([str(python), "-m", "autogpu", "pick"]).stderr.splitlines() == [
        "autogpu: pynvml (nvidia-ml-py) is not installed",
        "autogpu: `pip install nvidia-ml-py`",
    ]


@pytest.mark.thorough
@pytest.mark.tensorflow
@pytest.mark.timeout(900)
def test_missing_cuda_library_of_tensorflow_is_found(server, tmp_path):
    environ = machine_without(server, tmp_path / "libraries", "libcudnn.so.9")
    failed, said = findings(environ, environments.tensorflow_with_autogpu())
    assert ("tensorflow" in failed, "driver" in failed) == (True, False)
    assert said["tensorflow"].startswith(
        "TensorFlow 2.21.0, built with CUDA, lists no GPU, but the driver has 2 GPUs: it "
    )


@pytest.mark.matrix
@pytest.mark.tensorflow
@pytest.mark.timeout(900)
def test_tensorflow_built_without_cuda_is_found(server):
    python = environments.environment(environments.interpreter("3.11"), ["tensorflow-cpu==2.21.*"], with_hook=True)
    failed, said = findings({**server.environ, "PATH": str(python.parent)}, python)
    assert failed == {"tensorflow"}
    assert "built without CUDA" in said["tensorflow"]


@pytest.mark.framework
@pytest.mark.tensorflow
@pytest.mark.timeout(900)
def test_doctor_aligns_its_lines_in_columns(server):
    python = environments.tensorflow_with_autogpu()
    done = server.run([str(python), "-m", "autogpu", "doctor"], timeout=300)
    columns = {re.match(r"(ok|warn|FAILED|-) +\S+ +", line) for line in done.stdout.splitlines() if line[0] in "owF-"}
    assert len({found and found.end() for found in columns}) == 1, done.stdout
    assert "tensorflow-hooks  autogpu finds" in done.stdout


def test_doctor_prints_a_line_per_check_and_a_summary(server):
    done = server.run([sys.executable, "-m", "autogpu", "doctor"], timeout=300)
    assert done.returncode == 1
    assert "FAILED hook " in done.stdout
    assert done.stdout.splitlines()[-1].endswith("failed.")
