"""Conversion of a host's status to JSON and back."""

import json

import pytest

from autogpu.devices.model import ComputeMode, UnreadableDevice
from autogpu.frozen import replace
from autogpu.status.model import LeaseFolder
from autogpu.status.remote import from_json
from tests.support.host_states import holder, host, waiter
from tests.support.values import gpu, inventory


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
    ("part", "change"),
    [
        pytest.param((), {"version": 2}, id="later-version"),
        pytest.param((), {"version": None}, id="no-version"),
        pytest.param((), {"gpus": {}}, id="object-instead-of-list"),
        pytest.param((), {"queue": [{"user": "a"}]}, id="incomplete"),
        pytest.param(("gpus", 0), {"index": True}, id="bool-for-a-number"),
        pytest.param(("gpus", 0), {"index": 1.0}, id="float-for-a-whole-number"),
        pytest.param(("gpus", 0), {"mig_enabled": 0}, id="number-for-a-bool"),
        pytest.param(("gpus", 0), {"memory_used_bytes": -1}, id="negative"),
        pytest.param(("gpus", 0), {"memory_used_bytes": 1 << 63}, id="too-large"),
        pytest.param((), {"time_s": float("nan")}, id="not-a-number"),
    ],
)
def test_invalid_status_is_refused(status, part, change):
    values = changed = printed(status)
    for name in part:
        changed = changed[name]
    changed.update(change)
    with pytest.raises(ValueError, match="autogpu status --json"):
        from_json(values)
