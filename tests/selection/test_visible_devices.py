"""The origin of CUDA_VISIBLE_DEVICES, the order of the pool, and lists of numbers."""

import pytest

from autogpu.devices.model import ComputeMode, UnreadableDevice
from autogpu.policy import Policy
from autogpu.selection.model import VisibleSpec
from autogpu.selection.ranking import ranking_of
from autogpu.selection.visible_devices import (
    initial_visibility,
    numbered_list,
    original_environ,
    pool_in_order,
    visible_spec,
)
from autogpu.variables import CUDA_DEVICE_ORDER as ORDER
from autogpu.variables import CUDA_VISIBLE_DEVICES as VISIBLE
from autogpu.variables import ORIGINAL_VISIBLE_DEVICES as ORIGINAL
from autogpu.variables import SHOWN_VISIBLE_DEVICES as SHOWN
from autogpu.variables import WRITTEN_VISIBLE_DEVICES as WRITTEN
from tests.support.selections import UNSET
from tests.support.values import gpu, inventory


def spec(value=None, overridden=None):
    return VisibleSpec(value, overridden=overridden)


def by_script(value):
    return VisibleSpec(value, is_scripts=True)


@pytest.mark.parametrize(
    ("started_with", "found", "script", "is_engine_worker", "expected"),
    [
        pytest.param(None, None, "respect", False, spec(), id="unset"),
        pytest.param("1", "1", "respect", False, spec("1"), id="inherited-value"),
        pytest.param(None, "2", "respect", False, by_script("2"), id="value-set-by-the-script"),
        pytest.param(None, "2", "override", False, spec(overridden="2"), id="override-of-the-scripts-value"),
        pytest.param("1", "2", "override", False, spec("1", "2"), id="override-restores-the-inherited-value"),
        pytest.param(None, "-1", "override", False, by_script("-1"), id="minus-one-is-not-overridden"),
        pytest.param("1", None, "respect", False, spec(), id="unset-by-the-script"),
        pytest.param(
            "1", None, "override", False, spec("1", "(unset)"), id="override-restores-a-value-that-the-script-unset"
        ),
        pytest.param(None, "2", "override", True, spec("2"), id="worker-of-an-engine"),
    ],
)
def test_value_is_inherited_or_set_by_the_script(started_with, found, script, is_engine_worker, expected):
    initial = initial_visibility({}, started_with)
    assert visible_spec(found, initial, script, is_engine_worker=is_engine_worker) == expected


LIST = {WRITTEN: "GPU-x,GPU-y"}
FROM_SHELL, CLAIMED, ONE_GPU = {**LIST, ORIGINAL: "0,1"}, {**LIST, SHOWN: "1,0"}, {WRITTEN: ""}


@pytest.mark.parametrize(
    ("environ", "started_with", "value", "is_parents"),
    [
        pytest.param(LIST, "GPU-x,GPU-y", None, True, id="list-as-the-parent-wrote-it"),
        pytest.param(LIST, None, None, True, id="unset-as-it-was-for-the-parents-script"),
        pytest.param(LIST, "0", "0", False, id="value-of-a-launcher"),
        pytest.param(FROM_SHELL, "0,1", "0,1", True, id="shells-list-as-it-was-for-the-parents-script"),
        pytest.param(FROM_SHELL, None, None, False, id="shells-list-has-been-unset"),
        pytest.param(CLAIMED, "1,0", None, True, id="numbers-of-the-parents-claim"),
        pytest.param(CLAIMED, "0,1", "0,1", False, id="numbers-unlike-the-parents-claim"),
        pytest.param(ONE_GPU, None, None, True, id="parent-wrote-nothing"),
        pytest.param(ONE_GPU, "", "", False, id="empty-list-of-another-program"),
        pytest.param({}, "1", "1", False, id="no-parent-with-autogpu"),
    ],
)
def test_child_recognises_the_list_that_its_parent_wrote(environ, started_with, value, is_parents):
    initial = initial_visibility(environ, started_with)
    assert (initial.value, initial.parents_list) == (value, environ.get(WRITTEN) if is_parents else None)
    now = environ if started_with is None else {**environ, VISIBLE: started_with}
    assert original_environ({**now, "HOME": "x"}) == {"HOME": "x", **({} if value is None else {VISIBLE: value})}


def kept(*indices):
    return {"kept_order": [gpu(index).uuid for index in indices]}


THREE, PROHIBITED = [gpu(0), gpu(1), gpu(2)], gpu(2, compute_mode=ComputeMode.PROHIBITED)


@pytest.mark.parametrize(
    ("devices", "exclude", "options", "expected"),
    [
        pytest.param([gpu(0), gpu(1, pids=[7], used_gib=9), gpu(2)], (), {}, [2, 0, 1], id="idlest-first"),
        pytest.param(THREE, (), {"count": 2}, [2, 1], id="count-lists-only-the-chosen-gpus"),
        pytest.param([*THREE[:2], PROHIBITED], (), kept(1, 0, 2), [1, 0, 2], id="kept-order-of-the-ranks"),
        pytest.param(THREE, (), kept(2, 0), [2, 0, 1], id="gpu-outside-the-kept-order-is-last"),
        pytest.param([*THREE[:2], PROHIBITED], ("1",), {}, [0, 2], id="excluded-gpu-left-out-and-prohibited-gpu-last"),
    ],
)
def test_pool_is_listed_idlest_first_or_in_a_kept_order(devices, exclude, options, expected):
    ranking = ranking_of(devices, Policy(exclude=exclude), UNSET)
    assert [device.index for device in pool_in_order(ranking, **options)] == expected


LOST = inventory(*THREE, unreadable=(UnreadableDevice(3, "GPU is lost"),))


@pytest.mark.parametrize(
    ("devices", "machine", "order", "expected"),
    [
        pytest.param(
            THREE[1::-1], inventory(*THREE), None, {VISIBLE: "1,0", ORDER: "PCI_BUS_ID"}, id="numbers-with-pci-order"
        ),
        pytest.param(THREE[:1], inventory(*THREE), "FASTEST_FIRST", {}, id="user-has-set-another-order"),
        pytest.param(THREE[:1], LOST, None, {}, id="host-has-a-lost-gpu"),
        pytest.param(THREE, inventory(*THREE[:2]), None, {}, id="gpu-was-lost-since-the-reading"),
        pytest.param([], inventory(*THREE), None, {}, id="empty-list"),
    ],
)
def test_gpus_are_listed_by_number_if_cuda_counts_like_nvml(devices, machine, order, expected):
    assert numbered_list([device.uuid for device in devices], machine, order) == expected
