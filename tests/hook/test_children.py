"""CUDA_VISIBLE_DEVICES in child processes, as scripts read it and as CUDA reads it."""

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
        pytest.param({VISIBLE: "0,1"}, ("0,1", "0,1"), id="list-of-the-shell"),
        pytest.param({**BEFORE, VISIBLE: UUIDS}, (None, UUIDS), id="c-environment-before-the-claim"),
        pytest.param(BEFORE, (None, UUIDS), id="os-environ-before-the-claim"),
        pytest.param({**CLAIMED, VISIBLE: UUIDS}, ("1,0", UUIDS), id="c-environment-after-the-claim"),
        pytest.param({**CLAIMED, VISIBLE: "1,0"}, ("1,0", UUIDS), id="os-environ-after-the-claim"),
        pytest.param({**OF_SHELL, VISIBLE: UUIDS}, ("0,1", UUIDS), id="c-environment-with-a-list-of-the-shell"),
        pytest.param({**OF_SHELL, VISIBLE: "0,1"}, ("0,1", UUIDS), id="os-environ-with-a-list-of-the-shell"),
        pytest.param({**BEFORE, VISIBLE: "0"}, ("0", "0"), id="parent-passes-0-before-the-claim"),
        pytest.param({**CLAIMED, VISIBLE: "0"}, ("0", "0"), id="parent-passes-0-after-the-claim"),
        pytest.param({**CLAIMED, VISIBLE: ""}, ("", ""), id="parent-passes-an-empty-list"),
        pytest.param({WRITTEN: "", VISIBLE: "0"}, ("0", "0"), id="parent-wrote-no-list"),
        pytest.param({**BEFORE, **ELSEWHERE, VISIBLE: UUIDS}, (None, None), id="c-environment-of-another-host"),
        pytest.param(
            {**CLAIMED, **ELSEWHERE, VISIBLE: "1,0"}, (None, None), id="os-environ-after-the-claim-of-another-host"
        ),
        pytest.param({**BEFORE, **ELSEWHERE, VISIBLE: "0"}, ("0", "0"), id="parent-on-another-host-passes-0"),
        pytest.param({**BEFORE, **OFF, VISIBLE: UUIDS}, (None, None), id="c-environment-before-the-claim-and-off"),
        pytest.param({**CLAIMED, **OFF, VISIBLE: UUIDS}, ("1,0", "1,0"), id="c-environment-after-the-claim-and-off"),
        pytest.param({**CLAIMED, **OFF, VISIBLE: "1,0"}, ("1,0", "1,0"), id="os-environ-after-the-claim-and-off"),
    ],
)
def test_child_reads_its_gpu_list_from_the_inherited_environment(place, tmp_path, environ, finds):
    ran = place.run(Path(children.__file__), tmp_path, environ=environ)
    assert (ran.stdout.strip(), ran.stderr) == (json.dumps(list(finds)), "")


@pytest.mark.parametrize(
    ("environ", "found"),
    [
        pytest.param({VISIBLE: "1,0"}, "PCI_BUS_ID", id="list-of-the-parent"),
        pytest.param({VISIBLE: "0"}, "None", id="list-set-for-the-child"),
        pytest.param({VISIBLE: "1,0", **ELSEWHERE}, "None", id="parent-on-another-host"),
    ],
)
def test_child_keeps_the_device_order_only_with_its_parents_list(place, tmp_path, environ, found):
    (tmp_path / "order.py").write_text(ORDER)
    ran = place.run(tmp_path / "order.py", tmp_path, environ={**ORDERED, **environ})
    assert (ran.stdout.strip(), ran.stderr) == (found, "")


AS_ITS_PARENT = (
    *("env=None", "env=os.environ.copy()", "env=dict(os.environ)", "os.execv", "os.execve", "a child of a shell"),
    *("fork", "spawn", "forkserver"),
)
# Another process computes on GPU 0, so the idlest GPU is GPU 2.
BUSY = Gpu(processes={5004242: "9GiB"}, utilization=97)


THERE = [version for version in environments.SUPPORTED if interpreter(version)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("version", "environ", "before", "after", "for_cuda"),
    [
        pytest.param(THERE[0], {}, None, "2,1,0", "2,1,0", id=f"{THERE[0]}-unset"),
        pytest.param(THERE[-1], {}, None, "2,1,0", "2,1,0", id=f"{THERE[-1]}-unset"),
        pytest.param(THERE[-1], {VISIBLE: "0,1"}, "0,1", "0,1", "1,0", id="list-of-the-shell"),
        pytest.param(THERE[-1], {"AUTOGPU_EXCLUDE": "2"}, "1,0", "1,0", "1,0", id="excluded-gpu"),
    ],
)
def test_children_find_the_gpu_list_of_their_parent(version, environ, before, after, for_cuda, tmp_path):
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
            # If the parent finds no list, the child finds the 0, as without autogpu.
            "env with get(..., '0')": ["0", "0"] if shown is None else itself,
            "env with '0'": ["0", "0"],
            "env with ''": ["", ""],
            "env with AUTOGPU=0": [shown, shown],
            # Without the hook, a child finds the list that it inherits.
            "without hook, env=None": [listed, listed],
            "without hook, env=os.environ.copy()": [shown, shown],
            "sh": [listed],
        }
