"""MIG instances: which of them a process gets, what a list of them means, and what is written."""

import pytest

from autogpu.devices.enumeration import named_by_nvml, named_uuids, shows_several, takeable
from autogpu.devices.model import Process
from autogpu.policy import MemoryLimit, Policy
from autogpu.selection.decide import decide
from autogpu.selection.decision import Reason, Shortfall, Verdict
from autogpu.selection.grants import Grant, LocalRank
from autogpu.selection.members import request_of_all
from autogpu.selection.model import Tier
from autogpu.selection.ranking import ranking_of
from autogpu.selection.visible_devices import best_kind_first, numbered_list
from autogpu.text import GIB
from tests.support.selections import UNSET, case, claim, decided, fields, request
from tests.support.values import cut, gpu, instance, inventory

R535, R570 = "535.104.05", "570.86.15"
SEVEN = cut(0, *[5] * 7)
# Card 0 has instances of 20, 5 and 10 GiB, and the cards 1 and 2 are whole.
MIXED = (*cut(0, 20, 5, 10), gpu(1, name="NVIDIA A100", total_gib=40.0), gpu(2, name="NVIDIA A100", total_gib=40.0))
# No card is whole, and one has no instance.
CUT = (*cut(0, 20, 5), *cut(1))
LEGACY = "MIG-GPU-00000000-aaaa-bbbb-cccc-000000000000/8/0"
FIRST, SECOND = "MIG-00000000-0000", "MIG-00000000-0001-bbbb-cccc-000000000000"
CPU = Verdict.CPU
BY_LABEL = {device.label: device for device in MIXED}


def labels(devices):
    return [device.label for device in devices]


def choice(machine, **asked):
    """The decision of a process that may have all that can be had of these cards and instances."""
    return decided(*takeable(machine), inventory=inventory(*machine, driver_version=R535), **asked)


def held(*devices):
    return {device.uuid: claim(5) for device in devices}


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        pytest.param({}, ["2"], id="a-free-card-before-a-free-instance"),
        pytest.param({"devices": ("0",)}, ["0:0"], id="the-index-of-a-card-means-its-instances"),
        pytest.param({"devices": ("0:1",)}, ["0:1"], id="an-instance-by-its-number"),
        pytest.param({"devices": ("2g.*",)}, ["0:2"], id="by-what-it-is-made-of"),
        pytest.param({"devices": ("MIG-00000000-0001",)}, ["0:1"], id="by-its-uuid"),
        pytest.param({"devices": ("GPU-00000000",)}, ["0:0"], id="the-uuid-of-a-card-means-its-instances"),
        pytest.param({"exclude": ("1", "2")}, ["0:0"], id="an-instance-where-the-cards-are-excluded"),
        pytest.param({"devices": ("0",), "need_bytes": 15 * GIB}, ["0:0"], id="room"),
        pytest.param({"count": 2}, ["1", "2"], id="two-are-whole-cards"),
        pytest.param({"held": held(*MIXED[4:])}, ["0:0"], id="a-free-instance-before-a-card-that-is-not"),
    ],
)
def test_which_is_taken(asked, expected):
    assert sorted(labels(choice(MIXED, **asked).devices)) == expected


ONE_CARD = [*SEVEN[:2], gpu(1, pids=[7], used_gib=4, busy=90)]
SECOND_BUSY = {"chosen": (1,), "held": held(SEVEN[2])}
HALF = {"limit": MemoryLimit(percent=50.0), "limit_includes": "process"}


@pytest.mark.parametrize(
    ("devices", "asked", "expected"),
    [
        case("no-instance", cut(0), {}, verdict=CPU, reason=Reason.NONE_FREE),
        case("one-of-two", SEVEN, {"count": 2}, reason=Reason.IDLEST, shortfall=Shortfall.ONE_INSTANCE),
        case("a-busy-card-and-not-a-free-instance", ONE_CARD, {"count": 2}, ordinals=(1,), shortfall=Shortfall.BUSY),
        case("no-second-instance-is-attainable", SEVEN, {}, attainable=1),
        case("a-second-card-is-attainable", MIXED, {}, attainable=2),
        case("no-card-is-one", SEVEN[:3], SECOND_BUSY, reason=Reason.CHOSEN_BY_SCRIPT, idle_instead=(SEVEN[1],)),
    ],
)
def test_what_is_decided(devices, asked, expected):
    assert fields(choice(devices, **asked), expected) == expected


@pytest.mark.parametrize(
    ("device", "claims", "expected"),
    [
        pytest.param(instance(), [claim(5, age_s=1801.0)], Tier.IDLE_LEASE, id="not-used-for-half-an-hour"),
        pytest.param(instance(), [claim(5, age_s=1799.0)], Tier.BUSY, id="claimed-ahead"),
        # What the driver tells no utilization of can't be called idle.
        pytest.param(instance(compute_processes=(Process(7, GIB),)), [claim(5, age_s=7200.0)], Tier.BUSY, id="used"),
        pytest.param(instance(memory_used_bytes=2 * GIB), [claim(5, age_s=7200.0)], Tier.BUSY, id="by-hidden-ones"),
        pytest.param(instance(compute_processes=(Process(42, GIB),)), [], Tier.BUSY, id="computing"),
    ],
)
def test_an_instance_that_was_claimed_ahead_and_is_not_used_may_be_shared_after_half_an_hour(device, claims, expected):
    (candidate,) = ranking_of([device], Policy(), UNSET, claims_on={device.uuid: claims}).candidates
    assert candidate.tier is expected


@pytest.mark.parametrize(
    ("devices", "size", "each", "together"),
    [
        pytest.param(MIXED, 2, ["1", "2"], ["1", "2"], id="whole-cards-where-there-are-enough"),
        pytest.param(MIXED, 3, None, ["0:0", "1", "2"], id="cards-before-instances"),
        pytest.param(SEVEN, 2, ["0:0", "0:3"], ["0:5", "0:6"], id="one-instance-each"),
    ],
)
def test_no_two_ranks_have_one_gpu_while_others_are_free(devices, size, each, together):
    def grant(number):
        return Grant(rank=LocalRank(number, size, "torchrun", job="x"))

    pool, machine = takeable(devices), inventory(*devices)
    alone = [labels(decided(*pool, inventory=machine, grant=grant(number)).devices) for number in range(size)]
    assert each is None or alone == [[label] for label in each]
    at_once = decide(request_of_all(request(*pool, inventory=machine, grant=grant(0))))
    assert together is None or sorted(labels(at_once.devices)) == together


@pytest.mark.parametrize(
    ("value", "before_r570", "since"),
    [
        pytest.param(None, ["0:0", "0:1", "0:2", "1", "2"], ["0:0", "0:1", "0:2", "1", "2"], id="unset-is-all"),
        pytest.param(f"{SECOND},{FIRST}", ["0:1", "0:0"], ["0:1", "0:0"], id="several-in-their-order"),
        pytest.param(f"{FIRST},{FIRST}", [], [], id="twice-is-none"),
        pytest.param("MIG-99", [], [], id="not-there"),
        pytest.param(LEGACY, None, None, id="the-older-name-is-the-drivers"),
        pytest.param("mig-00000000-0001", None, None, id="lower-case-is-the-drivers"),
        pytest.param("GPU-00000001," + SECOND, ["0:1"], ["1", "0:1"], id="beside-a-whole-card"),
        pytest.param("GPU-00000000", ["0:0", "0:1", "0:2"], ["0:0", "0:1", "0:2"], id="the-card-itself"),
        # CUDA numbers whole cards first.
        pytest.param("0", ["1"], None, id="a-number"),
        pytest.param("2", ["0:0", "0:1", "0:2"], None, id="the-number-of-a-card-in-mig-mode"),
        pytest.param("0,2", ["0:0", "0:1", "0:2"], None, id="numbers-of-both"),
    ],
)
def test_what_a_list_means(value, before_r570, since):
    for version, expected in ((R535, before_r570), (None, before_r570), (R570, since)):
        uuids = None if expected is None else tuple(BY_LABEL[label].uuid for label in expected)
        assert named_uuids(value, inventory(*MIXED, driver_version=version), "PCI_BUS_ID") == uuids


@pytest.mark.parametrize("version", [None, "", "unknown", "5.70"])
def test_a_version_that_says_nothing_is_an_old_one(version):
    assert not shows_several(inventory(driver_version=version))


@pytest.mark.parametrize(
    ("ranked", "listed"),
    [(["2", "0:1", "1", "0:0"], ["2", "1", "0:1", "0:0"]), (["0:1", "2", "0:0"], ["0:1", "0:0", "2"])],
    ids=["a-card-is-best", "an-instance-is-best"],
)
def test_since_r570_all_are_listed_the_kind_of_the_best_one_first(ranked, listed):
    assert labels(best_kind_first([BY_LABEL[label] for label in ranked])) == listed


def test_beside_a_card_in_mig_mode_no_gpu_is_listed_by_number():
    # Before R570 CUDA counts whole cards first: number 1 would be the card in MIG mode.
    assert numbered_list([gpu(1).uuid], inventory(*cut(0, 5), gpu(1))) == {}
    assert numbered_list([SECOND], inventory(*MIXED)) == {}


def test_what_cuda_counts_has_the_names_of_nvml():
    of_cuda = "GPU-" + SECOND[4:]
    assert named_by_nvml([of_cuda, gpu(1).uuid, "GPU-other"], MIXED) == (SECOND, gpu(1).uuid, "GPU-other")


def test_of_an_instance_that_a_card_does_not_tell_of_only_the_driver_knows():
    assert named_uuids("MIG-99", inventory(*CUT), None) is None
