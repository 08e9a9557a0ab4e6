"""Who set CUDA_VISIBLE_DEVICES, and what is written there."""

import pytest

from autogpu.devices.model import UnreadableDevice
from autogpu.policy import Policy
from autogpu.selection.ranking import ranking_of
from autogpu.selection.visible_devices import (
    VisibleSpec,
    environment_for,
    initial_visibility,
    pool_in_order,
    visible_spec,
)
from autogpu.variables import CUDA_DEVICE_ORDER as ORDER
from autogpu.variables import CUDA_VISIBLE_DEVICES as VISIBLE
from autogpu.variables import ORIGINAL_VISIBLE_DEVICES as ORIGINAL
from autogpu.variables import WRITTEN_VISIBLE_DEVICES as WRITTEN
from tests.support.selections import UNSET
from tests.support.values import gpu, inventory


def spec(value=None, overridden=None):
    return VisibleSpec(value, overridden=overridden)


def by_script(value):
    return VisibleSpec(value, is_scripts=True)


OURS = {VISIBLE: "GPU-x", WRITTEN: "GPU-x"}


@pytest.mark.parametrize(
    ("started_with", "environ", "script", "expected"),
    [
        pytest.param(None, {}, "respect", spec(), id="unset"),
        pytest.param("1", {VISIBLE: "1"}, "respect", spec("1"), id="inherited"),
        pytest.param(None, {VISIBLE: "2"}, "respect", by_script("2"), id="hard-coded"),
        pytest.param(None, {VISIBLE: "2"}, "override", spec(overridden="2"), id="override"),
        pytest.param("1", {VISIBLE: "2"}, "override", spec("1", "2"), id="override-to-inherited"),
        pytest.param(None, {VISIBLE: "-1"}, "override", by_script("-1"), id="none-is-not-overridden"),
        pytest.param("1", {}, "respect", spec(), id="unset-by-the-script"),
        pytest.param("1", {}, "override", spec("1", "(unset)"), id="unset-and-overridden"),
        pytest.param(None, {VISIBLE: "2", "RAY_RAYLET_PID": "9"}, "override", spec("2"), id="an-engine"),
        pytest.param("GPU-x", OURS, "respect", spec(), id="an-ancestors-autogpu-counts-as-unset"),
        pytest.param("GPU-x", {**OURS, ORIGINAL: "0"}, "respect", spec("0"), id="as-an-ancestor-had-it"),
    ],
)
def test_who_set_it(started_with, environ, script, expected):
    assert visible_spec(environ, initial_visibility(environ, started_with), script) == expected


def kept(*indices):
    return {"kept_order": [gpu(index).uuid for index in indices]}


THREE, PROHIBITED = [gpu(0), gpu(1), gpu(2)], gpu(2, compute_mode="prohibited")


@pytest.mark.parametrize(
    ("devices", "exclude", "options", "expected"),
    [
        pytest.param([gpu(0), gpu(1, pids=[7], used_gib=9), gpu(2)], (), {}, [2, 0, 1], id="idlest-first"),
        pytest.param(THREE, (), {"count": 2}, [2, 1], id="only-the-chosen-on-request"),
        pytest.param([*THREE[:2], PROHIBITED], (), kept(1, 0, 2), [1, 0, 2], id="in-the-order-of-ranks"),
        pytest.param(THREE, (), kept(2, 0), [2, 0, 1], id="one-that-the-kept-order-does-not-name-is-last"),
        pytest.param([*THREE[:2], PROHIBITED], ("1",), {}, [0, 2], id="without-the-excluded-and-the-prohibited-last"),
    ],
)
def test_the_pool_is_listed(devices, exclude, options, expected):
    ranking = ranking_of(devices, Policy(exclude=exclude), UNSET)
    assert [device.index for device in pool_in_order(ranking, **options)] == expected


BY_INDEX = {"identifier": "index", "inventory": inventory(*THREE)}
LOST = {"identifier": "index", "inventory": inventory(*THREE, unreadable=(UnreadableDevice(3, "GPU is lost"),))}
INHERITED = {"spec": spec("0")}


@pytest.mark.parametrize(
    ("devices", "options", "expected"),
    [
        pytest.param([gpu(2), gpu(0)], {}, {VISIBLE: f"{gpu(2).uuid},{gpu(0).uuid}"}, id="uuids"),
        pytest.param([], {}, {VISIBLE: "-1"}, id="without-a-gpu-all-are-hidden"),
        pytest.param(THREE[1::-1], BY_INDEX, {VISIBLE: "1,0", ORDER: "PCI_BUS_ID"}, id="indices-with-their-order"),
        pytest.param(THREE[:1], LOST, {VISIBLE: gpu(0).uuid}, id="no-indices-beside-a-lost-gpu"),
        pytest.param(THREE[:1], INHERITED, {VISIBLE: gpu(0).uuid, ORIGINAL: "0"}, id="what-was-there-before"),
    ],
)
def test_what_is_written(devices, options, expected):
    written = environment_for(devices, **{"spec": spec(), **options})
    assert written == {**expected, WRITTEN: expected[VISIBLE]}
