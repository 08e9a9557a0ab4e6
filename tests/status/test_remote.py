"""Conversion of a host's status to JSON and back."""

import json

import pytest

from autogpu.devices.model import ComputeMode, UnreadableDevice
from autogpu.frozen import replace
from autogpu.status.model import LeaseFolder, RemoteFault, RemoteProblem
from autogpu.status.remote import NoStatus, from_json
from tests.support.host_states import holder, host, waiter
from tests.support.values import gpu, inventory

OTHER_VERSION = RemoteProblem(RemoteFault.OTHER_VERSION)


def invalid(field, kind):
    return RemoteProblem(RemoteFault.INVALID_FIELD, field, kind=kind)


@pytest.fixture
def status():
    machine = inventory(
        gpu(0, used_gib=3, pids=[7, 99]),
        gpu(1, compute_mode=ComputeMode.PROHIBITED),
        gpu(2, total_gib=None, used_gib=None, busy=None),
        unreadable=(UnreadableDevice(3, "lost"),),
        driver_version="550.54.15",
    )
    found = host(machine, [holder("a", (0, 24))], [waiter(1, "w.py"), waiter(2, "v.py", gib=6)], AUTOGPU_CUONT="2")
    return replace(found, lease_folder=LeaseFolder("/run/autogpu", "host", "root", 0))


def printed(status):
    return json.loads(json.dumps(status.to_json()))


def test_status_is_the_same_after_conversion_to_json_and_back(status):
    assert status.policy_problems, "all parts are there"
    assert status.gpus[0].unmanaged_processes
    for each in (status, replace(host(inventory()), lease_folder_problem="none")):
        assert from_json(printed(each)) == each


def test_fields_of_a_later_version_are_ignored(status):
    values = printed(status)
    values["new"] = 1
    values["gpus"][0]["fan_percent"] = 30
    values["gpus"][0]["jobs"][0]["new"] = {"a": 1}
    assert from_json(values) == status


@pytest.mark.parametrize(
    ("part", "change", "problem"),
    [
        pytest.param((), {"version": 2}, OTHER_VERSION, id="later-version"),
        pytest.param((), {"version": None}, OTHER_VERSION, id="no-version"),
        pytest.param((), {"gpus": {}}, RemoteProblem(RemoteFault.NOT_A_LIST, "gpus"), id="object-instead-of-list"),
        pytest.param((), {"gpus": ["a"]}, invalid("gpus", "GpuStatus"), id="text-instead-of-object"),
        pytest.param((), {"preview": None}, invalid("preview", "Preview"), id="null-instead-of-object"),
        pytest.param(
            (), {"queue": [{"user": "a"}]}, RemoteProblem(RemoteFault.FIELD_MISSING, "uid"), id="field-missing"
        ),
        pytest.param(("gpus", 0), {"name": 1}, invalid("name", "str"), id="number-for-a-text"),
        pytest.param(("gpus", 0), {"index": True}, invalid("index", "int"), id="bool-for-a-number"),
        pytest.param(("gpus", 0), {"index": 1.0}, invalid("index", "int"), id="float-for-a-whole-number"),
        pytest.param(("gpus", 0), {"mig_enabled": 0}, invalid("mig_enabled", "bool"), id="number-for-a-bool"),
        pytest.param(("gpus", 0), {"memory_used_bytes": -1}, invalid("memory_used_bytes", "int"), id="negative"),
        pytest.param(("gpus", 0), {"memory_used_bytes": 1 << 63}, invalid("memory_used_bytes", "int"), id="too-large"),
        pytest.param((), {"time_s": float("nan")}, invalid("time_s", "float"), id="not-a-number"),
    ],
)
def test_invalid_status_is_refused(status, part, change, problem):
    values = changed = printed(status)
    for name in part:
        changed = changed[name]
    changed.update(change)
    with pytest.raises(NoStatus) as refused:
        from_json(values)
    assert refused.value.problem == problem
