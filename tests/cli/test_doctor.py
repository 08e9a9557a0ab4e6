"""The doctor on a real environment: what is healthy, and what was really broken."""

from __future__ import annotations

import json
import sys

import pytest

from tests import environments
from tests.gpusim import Gpu, Server


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
    assert said["seams"] == "autogpu finds all that it hooks into"
    assert not server.calls(call="context"), "asking takes no GPU"


@pytest.mark.parametrize(
    ("environ", "check", "what"),
    [
        ({"CUDA_VISIBLE_DEVICES": ""}, "visible", "hides every GPU"),
        ({"TF_FORCE_GPU_ALLOW_GROWTH": "True"}, "growth", "has no effect"),
        ({"AUTOGPU_CUONT": "2"}, "policy", "nearest is AUTOGPU_COUNT"),
        ({"AUTOGPU_LEASE_DIR": "/proc/self/mem"}, "leases", "can't coordinate"),
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
    assert "NVML says: " in said["driver"]


def test_a_terminal_reads_lines(server):
    done = server.run([sys.executable, "-m", "autogpu", "doctor"], timeout=300)
    assert done.returncode == 1
    assert "FAILED hook " in done.stdout
    assert done.stdout.splitlines()[-1].endswith("failed.")
