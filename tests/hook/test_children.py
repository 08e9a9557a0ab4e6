"""CUDA_VISIBLE_DEVICES in a child process: what its script finds, and what CUDA finds, however it was started."""

import json
from pathlib import Path

import pytest

from tests.conftest import each_python
from tests.engines.engine_jobs import JOBS
from tests.gpusim import Gpu, Server
from tests.hook import children, throwaway
from tests.support import environments
from tests.support.environments import interpreter

VISIBLE, OFF = "CUDA_VISIBLE_DEVICES", {"AUTOGPU": " No"}
WRITTEN, SHOWN, ORIGINAL = "AUTOGPU_ORIG_WRITTEN", "AUTOGPU_ORIG_SHOWN", "AUTOGPU_ORIG_CUDA_VISIBLE_DEVICES"
UUIDS = "GPU-b,GPU-a"
BEFORE = {WRITTEN: UUIDS}
CLAIMED = {WRITTEN: UUIDS, SHOWN: "1,0"}
OF_SHELL = {WRITTEN: UUIDS, ORIGINAL: "0,1"}
ELSEWHERE = {"AUTOGPU_ORIG_HOST": "another-host"}
ORDERED = {**CLAIMED, "CUDA_DEVICE_ORDER": "PCI_BUS_ID", "AUTOGPU_ORIG_CUDA_DEVICE_ORDER": ""}
ORDER = "import os; print(os.environ.get('CUDA_DEVICE_ORDER'))"


@pytest.fixture(scope="module", params=each_python())
def place(request, tmp_path_factory):
    major, minor = (int(part) for part in request.param.split("."))
    return throwaway.make(interpreter(request.param), (major, minor), tmp_path_factory.mktemp(f"py{major}{minor}"))


@pytest.mark.parametrize(
    ("environ", "finds"),
    [
        pytest.param({}, (None, None), id="unset"),
        pytest.param({VISIBLE: "0,1"}, ("0,1", "0,1"), id="a-shells-list"),
        pytest.param({**BEFORE, VISIBLE: UUIDS}, (None, UUIDS), id="the-environment-of-c"),
        pytest.param(BEFORE, (None, UUIDS), id="a-copy-of-os.environ"),
        pytest.param({**CLAIMED, VISIBLE: UUIDS}, ("1,0", UUIDS), id="that-of-c-after-the-claim"),
        pytest.param({**CLAIMED, VISIBLE: "1,0"}, ("1,0", UUIDS), id="a-copy-after-the-claim"),
        pytest.param({**OF_SHELL, VISIBLE: UUIDS}, ("0,1", UUIDS), id="that-of-c-with-a-shells-list"),
        pytest.param({**OF_SHELL, VISIBLE: "0,1"}, ("0,1", UUIDS), id="a-copy-with-a-shells-list"),
        pytest.param({**BEFORE, VISIBLE: "0"}, ("0", "0"), id="told-0"),
        pytest.param({**CLAIMED, VISIBLE: "0"}, ("0", "0"), id="told-0-after-the-claim"),
        pytest.param({**CLAIMED, VISIBLE: ""}, ("", ""), id="told-to-use-the-cpu"),
        pytest.param({WRITTEN: "", VISIBLE: "0"}, ("0", "0"), id="nothing-was-written"),
        pytest.param({**BEFORE, **ELSEWHERE, VISIBLE: UUIDS}, (None, None), id="that-of-c-of-another-host"),
        pytest.param(
            {**CLAIMED, **ELSEWHERE, VISIBLE: "1,0"}, (None, None), id="a-copy-after-the-claim-of-another-host"
        ),
        pytest.param({**BEFORE, **ELSEWHERE, VISIBLE: "0"}, ("0", "0"), id="told-0-on-another-host"),
        pytest.param({**BEFORE, **OFF, VISIBLE: UUIDS}, (None, None), id="that-of-c-and-autogpu-is-off"),
        pytest.param({**CLAIMED, **OFF, VISIBLE: UUIDS}, ("1,0", "1,0"), id="that-of-c-after-the-claim-and-off"),
        pytest.param({**CLAIMED, **OFF, VISIBLE: "1,0"}, ("1,0", "1,0"), id="a-copy-after-the-claim-and-off"),
    ],
)
def test_what_a_child_finds_by_its_environment(place, tmp_path, environ, finds):
    ran = place.run(Path(children.__file__), tmp_path, environ=environ)
    assert (ran.stdout.strip(), ran.stderr) == (json.dumps(list(finds)), "")


@pytest.mark.parametrize(
    ("environ", "found"),
    [
        pytest.param({VISIBLE: "1,0"}, "PCI_BUS_ID", id="its-parents-numbers"),
        pytest.param({VISIBLE: "0"}, "None", id="a-number-of-its-own"),
        pytest.param({VISIBLE: "1,0", **ELSEWHERE}, "None", id="on-another-host"),
    ],
)
def test_child_reads_a_number_of_its_own_by_its_own_order(place, tmp_path, environ, found):
    (tmp_path / "order.py").write_text(ORDER)
    ran = place.run(tmp_path / "order.py", tmp_path, environ={**ORDERED, **environ})
    assert (ran.stdout.strip(), ran.stderr) == (found, "")


AS_ITS_PARENT = (
    *("env=None", "env=os.environ.copy()", "env=dict(os.environ)", "os.execv", "os.execve", "a child of a shell"),
    *("fork", "spawn", "forkserver"),
)
# CUDA counts GPU 2 first, since somebody is at work on GPU 0.
BUSY = Gpu(processes={5004242: "9GiB"}, utilization=97)


THERE = [version for version in environments.SUPPORTED if interpreter(version)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("version", "environ", "before", "after", "for_cuda"),
    [
        pytest.param(THERE[0], {}, None, "2,1,0", "2,1,0", id=f"{THERE[0]}-unset"),
        pytest.param(THERE[-1], {}, None, "2,1,0", "2,1,0", id=f"{THERE[-1]}-unset"),
        pytest.param(THERE[-1], {VISIBLE: "0,1"}, "0,1", "0,1", "1,0", id="a-shells-list"),
        pytest.param(THERE[-1], {"AUTOGPU_EXCLUDE": "2"}, "1,0", "1,0", "1,0", id="excluded"),
    ],
)
def test_children_find_what_their_parent_finds(version, environ, before, after, for_cuda, tmp_path):
    python = environments.environment(interpreter(version), with_hook=True)
    with Server([BUSY, Gpu(), Gpu()], folder=tmp_path) as server:
        command = [str(python), children.__file__, "start"]
        ran = server.run(command, environ={"PYTHONPATH": str(JOBS), **environ})
        uuids = [gpu.uuid for gpu in server.gpus]
    assert ran.returncode == 0, ran.stderr
    for line, shown in zip(ran.stdout.splitlines(), (before, after)):
        found = json.loads(line)
        listed = ",".join(uuids[int(number)] for number in for_cuda.split(","))
        itself = [shown, listed]
        assert found.pop("itself") == itself
        assert {way: found.pop(way) for way in AS_ITS_PARENT} == dict.fromkeys(AS_ITS_PARENT, itself)
        assert found == {
            # As without autogpu, or as the parent.
            "env with get(..., '0')": ["0", "0"] if shown is None else itself,
            "env with '0'": ["0", "0"],
            "env with ''": ["", ""],
            "env with AUTOGPU=0": [shown, shown],
            # They have the list that they are given.
            "without hook, env=None": [listed, listed],
            "without hook, env=os.environ.copy()": [shown, shown],
            "sh": [listed],
        }
