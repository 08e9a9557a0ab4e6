"""Who set CUDA_VISIBLE_DEVICES, and what is listed there by number."""

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
        pytest.param("1", "1", "respect", False, spec("1"), id="inherited"),
        pytest.param(None, "2", "respect", False, by_script("2"), id="hard-coded"),
        pytest.param(None, "2", "override", False, spec(overridden="2"), id="override"),
        pytest.param("1", "2", "override", False, spec("1", "2"), id="override-to-inherited"),
        pytest.param(None, "-1", "override", False, by_script("-1"), id="none-is-not-overridden"),
        pytest.param("1", None, "respect", False, spec(), id="unset-by-the-script"),
        pytest.param("1", None, "override", False, spec("1", "(unset)"), id="unset-and-overridden"),
        pytest.param(None, "2", "override", True, spec("2"), id="an-engine"),
    ],
)
def test_a_value_is_the_scripts_or_inherited(started_with, found, script, is_engine_worker, expected):
    initial = initial_visibility({}, started_with)
    assert visible_spec(found, initial, script, is_engine_worker=is_engine_worker) == expected


LIST = {WRITTEN: "GPU-x,GPU-y"}
FROM_SHELL, CLAIMED, ONE_GPU = {**LIST, ORIGINAL: "0,1"}, {**LIST, SHOWN: "1,0"}, {WRITTEN: ""}


@pytest.mark.parametrize(
    ("environ", "started_with", "value", "is_parents"),
    [
        pytest.param(LIST, "GPU-x,GPU-y", None, True, id="as-cuda-reads-it"),
        pytest.param(LIST, None, None, True, id="as-the-parents-script-found-it"),
        pytest.param(LIST, "0", "0", False, id="told-by-a-launcher"),
        pytest.param(FROM_SHELL, "0,1", "0,1", True, id="a-shells-list"),
        pytest.param(FROM_SHELL, None, None, False, id="a-shells-list-taken-away"),
        pytest.param(CLAIMED, "1,0", None, True, id="numbers-of-a-claim"),
        pytest.param(CLAIMED, "0,1", "0,1", False, id="other-numbers-than-those-of-a-claim"),
        pytest.param(ONE_GPU, None, None, True, id="nothing-had-to-be-written"),
        pytest.param(ONE_GPU, "", "", False, id="an-empty-list-of-somebody-else"),
        pytest.param({}, "1", "1", False, id="no-autogpu-above"),
    ],
)
def test_a_child_tells_its_parents_list_from_another_value(environ, started_with, value, is_parents):
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
        pytest.param(THREE, (), {"count": 2}, [2, 1], id="only-the-chosen-on-request"),
        pytest.param([*THREE[:2], PROHIBITED], (), kept(1, 0, 2), [1, 0, 2], id="in-the-order-of-ranks"),
        pytest.param(THREE, (), kept(2, 0), [2, 0, 1], id="one-that-the-kept-order-does-not-name-is-last"),
        pytest.param([*THREE[:2], PROHIBITED], ("1",), {}, [0, 2], id="without-the-excluded-and-the-prohibited-last"),
    ],
)
def test_the_pool_is_listed(devices, exclude, options, expected):
    ranking = ranking_of(devices, Policy(exclude=exclude), UNSET)
    assert [device.index for device in pool_in_order(ranking, **options)] == expected


LOST = inventory(*THREE, unreadable=(UnreadableDevice(3, "GPU is lost"),))


@pytest.mark.parametrize(
    ("devices", "machine", "order", "expected"),
    [
        pytest.param(
            THREE[1::-1], inventory(*THREE), None, {VISIBLE: "1,0", ORDER: "PCI_BUS_ID"}, id="with-their-order"
        ),
        pytest.param(THREE[:1], inventory(*THREE), "FASTEST_FIRST", {}, id="not-if-the-user-has-set-another-order"),
        pytest.param(THREE[:1], LOST, None, {}, id="not-beside-a-lost-gpu"),
        pytest.param(THREE, inventory(*THREE[:2]), None, {}, id="not-if-one-was-lost-since"),
        pytest.param([], inventory(*THREE), None, {}, id="not-without-a-gpu"),
    ],
)
def test_gpus_are_listed_by_number_if_cuda_counts_alike(devices, machine, order, expected):
    assert numbered_list([device.uuid for device in devices], machine, order) == expected
