"""What CUDA_VISIBLE_DEVICES means, who set it, and what is written there."""

from __future__ import annotations

import pytest

from autogpu.devices.model import UnreadableDevice
from autogpu.policy import Policy
from autogpu.selection.ranking import ranking_of
from autogpu.selection.visible_devices import (
    VisibleSpec,
    environment_for,
    initial_visibility,
    named_uuids,
    pool_in_order,
    visible_spec,
)
from autogpu.variables import CUDA_DEVICE_ORDER as ORDER
from autogpu.variables import CUDA_VISIBLE_DEVICES as VISIBLE
from autogpu.variables import ORIGINAL_VISIBLE_DEVICES as ORIGINAL
from autogpu.variables import WRITTEN_VISIBLE_DEVICES as WRITTEN
from tests.support.selections import UNSET
from tests.support.values import gpu, inventory

SAME = inventory(*(gpu(i) for i in range(4)))
MIXED = inventory(gpu(0, name="A"), gpu(1, name="B"))


def indices(uuids, machine=SAME):
    if uuids is None:
        return None
    return [device.index for uuid in uuids for device in machine.devices if device.uuid == uuid]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        pytest.param(None, [0, 1, 2, 3], id="unset-is-all"),
        pytest.param("", [], id="empty-is-none"),
        pytest.param("-1", [], id="minus-one-is-none"),
        pytest.param("-1,0", [], id="the-first-invalid-entry-ends-the-list"),
        pytest.param("0,2,-1,1", [0, 2], id="what-stands-before-it-counts"),
        pytest.param("2,0", [2, 0], id="in-its-order"),
        pytest.param("1,1", [], id="a-repeated-gpu-empties-the-list"),
        pytest.param("0,9,1", [0], id="out-of-range-ends-the-list"),
        pytest.param("NoDevFiles", [], id="words-are-invalid"),
        pytest.param(" 1 , 3", [1, 3], id="spaces"),
        pytest.param("1gpu2,2x", [1, 2], id="a-number-is-read-as-far-as-it-goes"),
        pytest.param("GPU-00000002", [2], id="unique-uuid-prefix"),
        pytest.param("GPU-0000000", [], id="ambiguous-prefix-is-invalid"),
        pytest.param("GPU-00000001,2", [1], id="kinds-are-not-mixed"),
        pytest.param("1,GPU-00000002", [1], id="kinds-are-not-mixed-either-way"),
        pytest.param("GPU-00000001,GPU-00000001", [], id="a-repeated-uuid"),
        pytest.param("MIG-1234", [], id="an-instance-that-is-not-there"),
        pytest.param("gpu-00000001", None, id="a-prefix-in-lower-case-is-the-drivers"),
        pytest.param("mig-1234", None, id="a-prefix-in-lower-case-of-an-instance"),
        pytest.param("GPU-00000001,gpu-00000002", None, id="a-prefix-in-lower-case-later"),
        pytest.param("-0,+1", [0, 1], id="signs"),
        pytest.param("007", [], id="leading-zeros-that-end-out-of-range"),
        pytest.param("0002", [2], id="leading-zeros"),
        pytest.param("\u0661,0", [], id="digits-that-c-does-not-know"),
        pytest.param("1," + "9" * 5000, [1], id="a-number-longer-than-python-reads"),
        pytest.param("0" * 5000 + "1", [1], id="zeros-longer-than-python-reads"),
    ],
)
def test_named_uuids(value, expected):
    assert indices(named_uuids(value, SAME, None)) == expected


MIXED_LOST = inventory(gpu(0), gpu(2), unreadable=(UnreadableDevice(1, "GPU is lost"),))


@pytest.mark.parametrize(
    ("value", "machine", "order", "expected"),
    [
        pytest.param("1", MIXED, None, None, id="of-several-models"),
        pytest.param("1", MIXED, "FASTEST_FIRST", None, id="fastest-first"),
        pytest.param("1", MIXED, "PCI_BUS_ID", [1], id="in-pci-order"),
        pytest.param("-1", MIXED, None, [], id="no-gpu-is-certain-whatever-the-order"),
        pytest.param("1", MIXED_LOST, "PCI_BUS_ID", None, id="beside-a-lost-gpu"),
        pytest.param(None, MIXED_LOST, None, [0, 2], id="all-beside-a-lost-gpu"),
    ],
)
def test_an_index_is_certain_only_in_pci_order_or_with_one_model(value, machine, order, expected):
    assert indices(named_uuids(value, machine, order), machine) == expected


def spec(value=None, overridden=None):
    return VisibleSpec(value, overridden=overridden)


def by_script(value):
    return VisibleSpec(value, is_scripts=True)


OURS = {VISIBLE: "GPU-x", WRITTEN: "GPU-x"}
RAY = {VISIBLE: "2", "RAY_RAYLET_PID": "9"}


@pytest.mark.parametrize(
    ("started_with", "environ", "script", "expected"),
    [
        pytest.param(None, {}, "respect", spec(), id="unset"),
        pytest.param("1", {VISIBLE: "1"}, "respect", spec("1"), id="inherited"),
        pytest.param("1", {VISIBLE: "1"}, "override", spec("1"), id="inherited-stays"),
        pytest.param(None, {VISIBLE: "2"}, "respect", by_script("2"), id="hard-coded"),
        pytest.param("1", {VISIBLE: "2"}, "respect", by_script("2"), id="hard-coded-over-inherited"),
        pytest.param(None, {VISIBLE: "2"}, "override", spec(overridden="2"), id="override"),
        pytest.param("1", {VISIBLE: "2"}, "override", spec("1", "2"), id="override-to-inherited"),
        pytest.param(None, {VISIBLE: "-1"}, "override", by_script("-1"), id="none-is-not-overridden"),
        pytest.param("1", {}, "respect", spec(), id="unset-by-the-script"),
        pytest.param("1", {}, "override", spec("1", "(unset)"), id="unset-and-overridden"),
        pytest.param(None, RAY, "override", spec("2"), id="an-engine"),
        pytest.param("GPU-x", OURS, "respect", spec(), id="an-ancestors-autogpu-counts-as-unset"),
        pytest.param("GPU-x", {**OURS, ORIGINAL: "0"}, "respect", spec("0"), id="as-an-ancestor-had-it"),
        pytest.param("3", {**OURS, VISIBLE: "3", ORIGINAL: "0"}, "respect", spec("3"), id="set-since"),
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
