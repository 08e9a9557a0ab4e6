"""A status as JSON, and back."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from autogpu.devices.model import UnreadableDevice
from autogpu.status.json import from_json, to_json
from autogpu.status.model import LeaseFolder
from tests.support.host_states import holder, host, waiter
from tests.support.values import gpu, inventory


@pytest.fixture
def status():
    machine = inventory(
        gpu(0, used_gib=3, pids=[7, 99]),
        gpu(1, compute_mode="prohibited"),
        gpu(2, total_gib=None, used_gib=None, busy=None),
        unreadable=(UnreadableDevice(3, "lost"),),
        driver_version="550.54.15",
    )
    found = host(machine, [holder("a", (0, 24))], [waiter(1, "w.py"), waiter(2, "v.py", gib=6)], AUTOGPU_CUONT="2")
    return replace(found, lease_folder=LeaseFolder("/run/autogpu", "host", "root", 0))


def test_json_goes_both_ways(status):
    assert from_json(json.loads(json.dumps(to_json(status)))) == status
    assert status.policy_problems, "all parts are there"
    assert status.gpus[0].unmanaged_processes


def test_nothing_is_lost_without_a_driver_or_a_lease_folder():
    bare = replace(host(inventory()), lease_folder_problem="none")
    assert from_json(json.loads(json.dumps(to_json(bare)))) == bare


def test_fields_of_a_later_version_are_ignored(status):
    values = json.loads(json.dumps(to_json(status)))
    values["new"] = 1
    values["gpus"][0]["power_watts"] = 300
    values["gpus"][0]["jobs"][0]["new"] = {"a": 1}
    assert from_json(values) == status


@pytest.mark.parametrize(
    "change",
    [
        lambda values: values.update(version=2),
        lambda values: values.pop("version"),
        lambda values: values["gpus"][0].pop("uuid"),
        lambda values: values.update(gpus=[1]),
        lambda values: values.update(preview=None, queue=[{"user": "a"}]),
        lambda values: values.update(gpus={}),
        lambda values: values["gpus"][0].update(name=None),
        lambda values: values["gpus"][0].update(index=True),
        lambda values: values["gpus"][0].update(index=1.0),
        lambda values: values["gpus"][0].update(mig_enabled=0),
        lambda values: values["gpus"][0].update(memory_used_bytes="3"),
        lambda values: values["gpus"][0].update(memory_used_bytes=-1),
        lambda values: values["gpus"][0].update(memory_used_bytes=1 << 63),
        lambda values: values["gpus"][0].update(idle_s=float("nan")),
        lambda values: values["preview"].update(uuids=[1]),
    ],
    ids=[
        "later-version",
        "no-version",
        "no-uuid",
        "no-object",
        "incomplete",
        "no-list",
        "none-for-a-text",
        "bool-for-a-number",
        "float-for-a-whole-number",
        "number-for-a-bool",
        "text-for-a-number",
        "negative",
        "too-large",
        "not-a-number",
        "list-of-others",
    ],
)
def test_what_is_no_status_is_refused(status, change):
    values = json.loads(json.dumps(to_json(status)))
    change(values)
    with pytest.raises(ValueError, match="autogpu status --json"):
        from_json(values)
