"""What CUDA_VISIBLE_DEVICES means, who set it, and what is written there."""

from __future__ import annotations

import pytest

from autogpu import pool
from autogpu.devices.model import Unreadable
from autogpu.pool import Frame, frame, members, plan_environment
from autogpu.selection import SelectionRules, rank
from tests.values import gpu, inventory

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
        pytest.param("MIG-1234", None, id="only-the-driver-knows-mig"),
    ],
)
def test_members(value, expected):
    assert indices(members(value, SAME, None)) == expected


def test_an_index_is_certain_only_in_pci_order_or_with_one_model():
    assert members("1", MIXED, None) is None
    assert members("1", MIXED, "FASTEST_FIRST") is None
    assert indices(members("1", MIXED, "PCI_BUS_ID"), MIXED) == [1]


def test_no_gpu_is_certain_whatever_the_order():
    assert members("-1", MIXED, None) == ()


def test_an_index_is_uncertain_beside_a_lost_gpu():
    machine = inventory(gpu(0), gpu(2), unreadable=(Unreadable(1, "GPU is lost"),))
    assert members("1", machine, "PCI_BUS_ID") is None
    assert indices(members(None, machine, None), machine) == [0, 2]


@pytest.mark.parametrize(
    ("started_with", "environ", "script", "expected"),
    [
        pytest.param(None, {}, "respect", Frame(None, "nobody"), id="nobody"),
        pytest.param("1", {pool.VISIBLE: "1"}, "respect", Frame("1", "inherited"), id="inherited"),
        pytest.param("1", {pool.VISIBLE: "1"}, "override", Frame("1", "inherited"), id="inherited-stays"),
        pytest.param(None, {pool.VISIBLE: "2"}, "respect", Frame("2", "script"), id="hard-coded"),
        pytest.param("1", {pool.VISIBLE: "2"}, "respect", Frame("2", "script"), id="hard-coded-over-inherited"),
        pytest.param(None, {pool.VISIBLE: "2"}, "override", Frame(None, "nobody", "2"), id="override"),
        pytest.param("1", {pool.VISIBLE: "2"}, "override", Frame("1", "inherited", "2"), id="override-to-inherited"),
        pytest.param("1", {}, "respect", Frame(None, "nobody"), id="unset-by-the-script"),
        pytest.param("1", {}, "override", Frame("1", "inherited", "(unset)"), id="unset-and-overridden"),
        pytest.param(
            None,
            {pool.VISIBLE: "2", "RAY_RAYLET_PID": "9"},
            "override",
            Frame("2", "inherited"),
            id="an-engine",
        ),
        pytest.param(
            "GPU-x,GPU-y",
            {pool.VISIBLE: "GPU-x,GPU-y", pool.WRITTEN: "GPU-x,GPU-y"},
            "respect",
            Frame(None, "nobody"),
            id="an-ancestors-autogpu-is-nobody",
        ),
        pytest.param(
            "GPU-x",
            {pool.VISIBLE: "GPU-x", pool.WRITTEN: "GPU-x", pool.ORIGINAL: "0,1"},
            "respect",
            Frame("0,1", "inherited"),
            id="what-an-ancestor-inherited",
        ),
        pytest.param(
            "3",
            {pool.VISIBLE: "3", pool.WRITTEN: "GPU-x", pool.ORIGINAL: "0,1"},
            "respect",
            Frame("3", "inherited"),
            id="set-since-by-a-launcher",
        ),
    ],
)
def test_who_said_it(started_with, environ, script, expected):
    assert frame(environ, pool.start(environ, started_with), script) == expected


NOBODY = Frame(None, "nobody")
ANYTHING = SelectionRules()


def plan(*devices, rules=ANYTHING, frame=NOBODY, **options):
    asked = {"count": 1, "visible": "pool", "identifier": "uuid", "index_is_certain": True, **options}
    return plan_environment(rank(devices, rules), frame, **asked)


def test_the_pool_is_written_idlest_first():
    assert plan(gpu(0), gpu(1, pids=[7], used_gib=9), gpu(2))[pool.VISIBLE] == ",".join(gpu(i).uuid for i in (2, 0, 1))


def test_only_the_chosen_are_written_on_request():
    assert plan(gpu(0), gpu(1), gpu(2), visible="chosen", count=2)[pool.VISIBLE] == f"{gpu(2).uuid},{gpu(1).uuid}"


def test_excluded_gpus_are_hidden_and_others_that_cannot_be_taken_stay_last():
    written = plan(gpu(0, compute_mode="prohibited"), gpu(1), gpu(2), rules=SelectionRules(exclude=("2",)))
    assert written[pool.VISIBLE] == f"{gpu(1).uuid},{gpu(0).uuid}"


def test_a_policy_that_excludes_everything_hides_everything():
    assert plan(gpu(0), rules=SelectionRules(exclude=("0",)))[pool.VISIBLE] == "-1"


def test_an_empty_pool_is_left_alone():
    assert plan() == {}


def test_indices_come_with_the_order_that_gives_them_meaning():
    written = plan(gpu(0), gpu(1), identifier="index")
    assert (written[pool.VISIBLE], written[pool.ORDER]) == ("1,0", "PCI_BUS_ID")


def test_a_lost_gpu_makes_indices_uncertain():
    assert plan(gpu(0), identifier="index", index_is_certain=False)[pool.VISIBLE] == gpu(0).uuid


def test_children_can_tell_what_was_there_before():
    written = plan(gpu(0), frame=Frame("0", "inherited"))
    assert (written[pool.WRITTEN], written[pool.ORIGINAL]) == (gpu(0).uuid, "0")
    assert pool.ORIGINAL not in plan(gpu(0))
