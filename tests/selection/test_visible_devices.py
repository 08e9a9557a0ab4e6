"""What CUDA_VISIBLE_DEVICES means, who set it, and what is written there."""

from __future__ import annotations

import pytest

from autogpu.devices.model import UnreadableDevice
from autogpu.selection.model import SelectionRules
from autogpu.selection.ranking import rank
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


def test_an_index_is_certain_only_in_pci_order_or_with_one_model():
    assert named_uuids("1", MIXED, None) is None
    assert named_uuids("1", MIXED, "FASTEST_FIRST") is None
    assert indices(named_uuids("1", MIXED, "PCI_BUS_ID"), MIXED) == [1]


def test_no_gpu_is_certain_whatever_the_order():
    assert named_uuids("-1", MIXED, None) == ()


def test_an_index_is_uncertain_beside_a_lost_gpu():
    machine = inventory(gpu(0), gpu(2), unreadable=(UnreadableDevice(1, "GPU is lost"),))
    assert named_uuids("1", machine, "PCI_BUS_ID") is None
    assert indices(named_uuids(None, machine, None), machine) == [0, 2]


@pytest.mark.parametrize(
    ("started_with", "environ", "script", "expected"),
    [
        pytest.param(None, {}, "respect", VisibleSpec(None, "unset"), id="unset"),
        pytest.param("1", {VISIBLE: "1"}, "respect", VisibleSpec("1", "inherited"), id="inherited"),
        pytest.param("1", {VISIBLE: "1"}, "override", VisibleSpec("1", "inherited"), id="inherited-stays"),
        pytest.param(None, {VISIBLE: "2"}, "respect", VisibleSpec("2", "script"), id="hard-coded"),
        pytest.param("1", {VISIBLE: "2"}, "respect", VisibleSpec("2", "script"), id="hard-coded-over-inherited"),
        pytest.param(None, {VISIBLE: "2"}, "override", VisibleSpec(None, "unset", "2"), id="override"),
        pytest.param("1", {VISIBLE: "2"}, "override", VisibleSpec("1", "inherited", "2"), id="override-to-inherited"),
        pytest.param("1", {}, "respect", VisibleSpec(None, "unset"), id="unset-by-the-script"),
        pytest.param("1", {}, "override", VisibleSpec("1", "inherited", "(unset)"), id="unset-and-overridden"),
        pytest.param(
            None,
            {VISIBLE: "2", "RAY_RAYLET_PID": "9"},
            "override",
            VisibleSpec("2", "inherited"),
            id="an-engine",
        ),
        pytest.param(
            "GPU-x,GPU-y",
            {VISIBLE: "GPU-x,GPU-y", WRITTEN: "GPU-x,GPU-y"},
            "respect",
            VisibleSpec(None, "unset"),
            id="an-ancestors-autogpu-counts-as-unset",
        ),
        pytest.param(
            "GPU-x",
            {VISIBLE: "GPU-x", WRITTEN: "GPU-x", ORIGINAL: "0,1"},
            "respect",
            VisibleSpec("0,1", "inherited"),
            id="what-an-ancestor-inherited",
        ),
        pytest.param(
            "3",
            {VISIBLE: "3", WRITTEN: "GPU-x", ORIGINAL: "0,1"},
            "respect",
            VisibleSpec("3", "inherited"),
            id="set-since-by-a-launcher",
        ),
    ],
)
def test_who_set_it(started_with, environ, script, expected):
    assert visible_spec(environ, initial_visibility(environ, started_with), script) == expected


ANYTHING = SelectionRules()


def order(*devices, rules=ANYTHING, **options):
    return [device.index for device in pool_in_order(rank(devices, rules), **options)]


def test_the_pool_is_listed_idlest_first():
    assert order(gpu(0), gpu(1, pids=[7], used_gib=9), gpu(2)) == [2, 0, 1]


def test_only_the_chosen_are_listed_on_request():
    assert order(gpu(0), gpu(1), gpu(2), count=2) == [2, 1]


def test_ranks_keep_the_order_of_the_pool():
    kept = [gpu(index).uuid for index in (1, 0, 2)]
    assert order(gpu(0), gpu(1), gpu(2, compute_mode="prohibited"), kept_order=kept) == [1, 0, 2]


def test_a_gpu_that_the_kept_order_does_not_name_comes_last():
    assert order(gpu(0), gpu(1), gpu(2), kept_order=[gpu(2).uuid, gpu(0).uuid]) == [2, 0, 1]


def test_excluded_gpus_are_hidden_and_others_that_cannot_be_taken_stay_last():
    rules = SelectionRules(exclude=("2",))
    assert order(gpu(0, compute_mode="prohibited"), gpu(1), gpu(2), rules=rules) == [1, 0]


def written(*devices, spec=VisibleSpec(None, "unset"), identifier="uuid", index_is_certain=True):  # noqa: B008
    return environment_for(devices, spec, identifier=identifier, index_is_certain=index_is_certain)


def test_gpus_are_written_as_uuids():
    assert written(gpu(2), gpu(0))[VISIBLE] == f"{gpu(2).uuid},{gpu(0).uuid}"


def test_without_a_gpu_all_are_hidden():
    assert written()[VISIBLE] == "-1"


def test_indices_come_with_the_order_that_gives_them_meaning():
    plan = written(gpu(1), gpu(0), identifier="index")
    assert (plan[VISIBLE], plan[ORDER]) == ("1,0", "PCI_BUS_ID")


def test_a_lost_gpu_makes_indices_uncertain():
    assert written(gpu(0), identifier="index", index_is_certain=False)[VISIBLE] == gpu(0).uuid


def test_children_can_tell_what_was_there_before():
    plan = written(gpu(0), spec=VisibleSpec("0", "inherited"))
    assert (plan[WRITTEN], plan[ORIGINAL]) == (gpu(0).uuid, "0")
    assert ORIGINAL not in written(gpu(0))
