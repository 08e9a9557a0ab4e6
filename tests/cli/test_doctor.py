"""The doctor on a real environment: what is healthy, and what was really broken."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.gpusim import Gpu, Server
from tests.support import environments


@pytest.fixture
def server(tmp_path):
    (tmp_path / "server").mkdir()
    with Server([Gpu(), Gpu()], folder=tmp_path / "server") as running:
        yield running


def findings(server, python=sys.executable, **environ):
    done = server.run([str(python), "-m", "autogpu", "doctor", "--json"], environ=environ, timeout=300)
    assert done.stderr == ""
    told = json.loads(done.stdout)
    failed = {each["check"] for each in told["findings"] if each["state"] == "failed"}
    assert done.returncode == (1 if failed else 0)
    assert all(each["remedy"] for each in told["findings"] if each["state"] == "failed")
    return failed, {each["check"]: each["what"] for each in told["findings"]}


@pytest.mark.tensorflow
@pytest.mark.timeout(900)
def test_an_environment_as_it_should_be_passes(server, tmp_path):
    python = environments.tensorflow_with_autogpu()
    failed, said = findings(server, python, PATH=str(python.parent), AUTOGPU_LEASE_DIR=str(tmp_path / "leases"))
    assert failed == set(), said
    assert said["libraries"] == "TensorFlow lists 2 GPUs"
    assert said["hooks"] == "autogpu finds all that it hooks into"
    assert not server.calls(call="context"), "asking takes no GPU"


@pytest.mark.parametrize(
    ("environ", "check", "what"),
    [
        ({"CUDA_VISIBLE_DEVICES": ""}, "visible", "hides every GPU"),
        ({"TF_FORCE_GPU_ALLOW_GROWTH": "True"}, "growth", "has no effect"),
        ({"AUTOGPU_CUONT": "2"}, "policy", "nearest is AUTOGPU_COUNT"),
        ({"AUTOGPU_LEASE_DIR": "/proc/self/mem"}, "leases", "is not a folder"),
    ],
    ids=["hidden", "growth", "policy", "leases"],
)
def test_what_a_shell_says_wrongly_is_found(server, environ, check, what):
    failed, said = findings(server, **environ)
    assert check in failed
    assert what in said[check]


def test_an_environment_without_hook_or_tensorflow_is_found(server):
    failed, said = findings(server)
    assert {"hook", "tensorflow"} <= failed
    assert "does not load autogpu" in said["hook"]


def test_a_driver_of_another_version_than_its_library_is_found(tmp_path):
    with Server([Gpu()], folder=tmp_path, nvml="LIB_RM_VERSION_MISMATCH") as server:
        failed, said = findings(server)
    assert "driver" in failed
    assert "NVML reports: " in said["driver"]


@pytest.fixture
def without_pynvml():
    """An environment from which pynvml was removed."""
    python = environments.environment(environments.interpreter("3.11"), with_hook=True, name="without-pynvml")
    uninstall = [str(python), "-m", "pip", "uninstall", "--yes", "--quiet", "nvidia-ml-py"]
    subprocess.run(uninstall, timeout=120, check=True, stderr=subprocess.DEVNULL)
    return python


@pytest.mark.xdist_group("without-pynvml")
def test_a_missing_pynvml_is_one_finding(server, without_pynvml):
    failed, said = findings(server, without_pynvml, PATH=str(without_pynvml.parent))
    assert failed == {"pynvml", "tensorflow"}
    assert said["pynvml"].startswith("pynvml (nvidia-ml-py) is not installed")


def machine_without(server, folder, *names):
    """The variables that put a process on a machine on which these libraries were not installed."""
    folder.mkdir()
    for library in Path(server.environ["LD_LIBRARY_PATH"].split(os.pathsep)[0]).iterdir():
        if library.name not in names:
            (folder / library.name).symlink_to(library)
    return {**os.environ, **server.environ, "LD_LIBRARY_PATH": str(folder)}


def findings_on(environ, python):
    command = [str(python), "-m", "autogpu", "doctor", "--json"]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=300, check=False)
    return {each["check"]: (each["state"], each["what"]) for each in json.loads(done.stdout)["findings"]}


def test_nvml_that_is_missing_beside_cuda_is_found(server, tmp_path):
    environ = machine_without(server, tmp_path / "libraries", "libnvidia-ml.so.1")
    state, what = findings_on(environ, sys.executable)["driver"]
    assert (state, "libnvidia-ml.so.1" in what) == ("failed", True)


@pytest.mark.tensorflow
@pytest.mark.timeout(900)
def test_a_cuda_library_that_tensorflow_misses_is_found(server, tmp_path):
    environ = machine_without(server, tmp_path / "libraries", "libcudnn.so.9")
    found = findings_on(environ, environments.tensorflow_with_autogpu())
    assert found["libraries"] == ("failed", "TensorFlow 2.21.0 lists no GPU of 2: it finds no CUDA libraries that fit")
    assert found["driver"][0] == "passed"


@pytest.mark.matrix
@pytest.mark.tensorflow
@pytest.mark.timeout(900)
def test_a_tensorflow_without_cuda_is_found(server):
    base = environments.interpreter("3.11")
    python = environments.environment(base, ["tensorflow-cpu==2.21.*"], with_hook=True)
    failed, said = findings(server, python, PATH=str(python.parent))
    assert failed == {"tensorflow"}
    assert "built without CUDA" in said["tensorflow"]


def test_a_hook_that_another_sitecustomize_hides_is_found(server, tmp_path):
    python = environments.environment(environments.interpreter("3.11"), name="hidden-hook")
    subprocess.run([str(python), "-m", "autogpu", "install", "--method", "sitecustomize"], timeout=120, check=True)
    (tmp_path / "sitecustomize.py").write_text("")
    failed, said = findings(server, python, PYTHONPATH=str(tmp_path))
    assert "hook" in failed
    assert said["hook"].endswith(f"does not load autogpu; its sitecustomize is {tmp_path / 'sitecustomize.py'}")


def test_a_hook_in_another_environment_than_the_shells_python_is_found(server):
    other = environments.environment(environments.interpreter("3.11"), with_autogpu=False)
    failed, said = findings(server, PATH=str(other.parent))
    assert "environment" in failed
    assert f"`python` is {other}" in said["environment"]


def test_a_terminal_reads_lines(server):
    done = server.run([sys.executable, "-m", "autogpu", "doctor"], timeout=300)
    assert done.returncode == 1
    assert "FAILED hook " in done.stdout
    assert done.stdout.splitlines()[-1].endswith("failed.")
