"""MIG instances: the choice among them, the meaning of a list with them, and the order in which autogpu lists them."""

import pytest

from autogpu.devices.enumeration import named_by_nvml, named_uuids, shows_several, takeable
from autogpu.devices.model import Process
from autogpu.engines.model import Grant, LocalRank
from autogpu.policy import MemoryLimit, Policy
from autogpu.selection.decide import decide
from autogpu.selection.decision import Reason, Shortfall, Verdict
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
# Both cards are in MIG mode, and card 1 has no instance.
CUT = (*cut(0, 20, 5), *cut(1))
LEGACY = "MIG-GPU-00000000-aaaa-bbbb-cccc-000000000000/8/0"
FIRST, SECOND = "MIG-00000000-0000", "MIG-00000000-0001-bbbb-cccc-000000000000"
CPU = Verdict.CPU
BY_LABEL = {device.label: device for device in MIXED}


def labels(devices):
    return [device.label for device in devices]


def choice(machine, **asked):
    return decided(*takeable(machine), inventory=inventory(*machine, driver_version=R535), **asked)


def held(*devices):
    return {device.uuid: claim(5) for device in devices}


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        pytest.param({}, ["2"], id="free-card-before-a-free-instance"),
        pytest.param({"devices": ("0",)}, ["0:0"], id="index-of-a-card-matches-its-instances"),
        pytest.param({"devices": ("0:1",)}, ["0:1"], id="instance-by-its-number"),
        pytest.param({"devices": ("2g.*",)}, ["0:2"], id="instance-by-its-profile"),
        pytest.param({"devices": ("MIG-00000000-0001",)}, ["0:1"], id="instance-by-its-uuid"),
        pytest.param({"devices": ("GPU-00000000",)}, ["0:0"], id="uuid-of-a-card-matches-its-instances"),
        pytest.param({"exclude": ("1", "2")}, ["0:0"], id="instance-if-the-whole-cards-are-excluded"),
        pytest.param({"devices": ("0",), "need_bytes": 15 * GIB}, ["0:0"], id="instance-with-enough-memory"),
        pytest.param({"count": 2}, ["1", "2"], id="count-two-takes-whole-cards"),
        pytest.param({"held": held(*MIXED[4:])}, ["0:0"], id="free-instance-before-a-claimed-card"),
    ],
)
def test_process_takes_the_best_card_or_instance(asked, expected):
    assert sorted(labels(choice(MIXED, **asked).devices)) == expected


ONE_CARD = [*SEVEN[:2], gpu(1, pids=[7], used_gib=4, busy=90)]
SECOND_BUSY = {"chosen": (1,), "held": held(SEVEN[2])}
HALF = {"limit": MemoryLimit(percent=50.0), "limit_includes": "process"}


@pytest.mark.parametrize(
    ("devices", "asked", "expected"),
    [
        case("mig-card-without-an-instance", cut(0), {}, verdict=CPU, reason=Reason.NONE_FREE),
        case(
            "second-instance-of-a-card-is-not-taken",
            SEVEN,
            {"count": 2},
            reason=Reason.IDLEST,
            shortfall=Shortfall.ONE_INSTANCE,
        ),
        case("count-two-takes-card-over-instance", ONE_CARD, {"count": 2}, ordinals=(1,), shortfall=Shortfall.BUSY),
        case("one-instance-is-attainable", SEVEN, {}, attainable=1),
        case("two-whole-cards-are-attainable", MIXED, {}, attainable=2),
        case(
            "free-instance-is-suggested",
            SEVEN[:3],
            SECOND_BUSY,
            reason=Reason.CHOSEN_BY_SCRIPT,
            idle_instead=(SEVEN[1],),
        ),
    ],
)
def test_decision_never_counts_a_second_instance_of_a_card(devices, asked, expected):
    assert fields(choice(devices, **asked), expected) == expected


@pytest.mark.parametrize(
    ("device", "claims", "expected"),
    [
        pytest.param(instance(), [claim(5, age_s=1801.0)], Tier.IDLE_LEASE, id="unused-for-half-an-hour"),
        pytest.param(instance(), [claim(5, age_s=1799.0)], Tier.BUSY, id="claimed-less-than-half-an-hour-ago"),
        # The driver reports no utilization of an instance, so an instance with a process can't be called idle.
        pytest.param(instance(compute_processes=(Process(7, GIB),)), [claim(5, age_s=7200.0)], Tier.BUSY, id="in-use"),
        pytest.param(instance(memory_used_bytes=2 * GIB), [claim(5, age_s=7200.0)], Tier.BUSY, id="use-of-hidden-pids"),
        pytest.param(instance(compute_processes=(Process(42, GIB),)), [], Tier.BUSY, id="unmanaged-process"),
    ],
)
def test_unused_instance_becomes_an_idle_lease_after_half_an_hour(device, claims, expected):
    (candidate,) = ranking_of([device], Policy(), UNSET, claims_on={device.uuid: claims}).candidates
    assert candidate.tier is expected


@pytest.mark.parametrize(
    ("devices", "size", "each", "together"),
    [
        pytest.param(MIXED, 2, ["1", "2"], ["1", "2"], id="whole-cards-if-there-are-enough"),
        pytest.param(MIXED, 3, None, ["0:0", "1", "2"], id="whole-cards-before-instances"),
        pytest.param(SEVEN, 2, ["0:0", "0:3"], ["0:5", "0:6"], id="one-instance-for-each-rank"),
    ],
)
def test_no_two_ranks_share_a_gpu_while_others_are_free(devices, size, each, together):
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
        pytest.param(None, ["0:0", "0:1", "0:2", "1", "2"], ["0:0", "0:1", "0:2", "1", "2"], id="unset-means-all"),
        pytest.param(f"{SECOND},{FIRST}", ["0:1", "0:0"], ["0:1", "0:0"], id="several-instances-in-list-order"),
        pytest.param(f"{FIRST},{FIRST}", [], [], id="repeated-instance-means-none"),
        pytest.param("MIG-99", [], [], id="unknown-instance-means-none"),
        pytest.param(LEGACY, None, None, id="older-name-is-left-to-the-driver"),
        pytest.param("mig-00000000-0001", None, None, id="lower-case-is-left-to-the-driver"),
        pytest.param("GPU-00000001," + SECOND, ["0:1"], ["1", "0:1"], id="whole-card-and-an-instance"),
        pytest.param("GPU-00000000", ["0:0", "0:1", "0:2"], ["0:0", "0:1", "0:2"], id="card-uuid-means-its-instances"),
        # CUDA numbers whole cards first.
        pytest.param("0", ["1"], None, id="number-of-a-whole-card"),
        pytest.param("2", ["0:0", "0:1", "0:2"], None, id="number-of-a-mig-card"),
        pytest.param("0,2", ["0:0", "0:1", "0:2"], None, id="numbers-of-a-whole-card-and-a-mig-card"),
    ],
)
def test_list_means_the_instances_that_the_driver_version_shows(value, before_r570, since):
    for version, expected in ((R535, before_r570), (None, before_r570), (R570, since)):
        uuids = None if expected is None else tuple(BY_LABEL[label].uuid for label in expected)
        assert named_uuids(value, inventory(*MIXED, driver_version=version), "PCI_BUS_ID") == uuids


@pytest.mark.parametrize("version", [None, "", "unknown", "5.70"])
def test_unknown_driver_version_counts_as_older_than_r570(version):
    assert not shows_several(inventory(driver_version=version))


@pytest.mark.parametrize(
    ("ranked", "listed"),
    [(["2", "0:1", "1", "0:0"], ["2", "1", "0:1", "0:0"]), (["0:1", "2", "0:0"], ["0:1", "0:0", "2"])],
    ids=["card-is-best", "instance-is-best"],
)
def test_kind_of_the_best_gpu_is_listed_first_since_r570(ranked, listed):
    assert labels(best_kind_first([BY_LABEL[label] for label in ranked])) == listed


def test_no_gpu_is_listed_by_number_beside_a_card_in_mig_mode():
    # Before R570 CUDA counts whole cards first: number 1 would be the card in MIG mode.
    assert numbered_list([gpu(1).uuid], inventory(*cut(0, 5), gpu(1))) == {}
    assert numbered_list([SECOND], inventory(*MIXED)) == {}


def test_cuda_uuid_of_an_instance_becomes_its_nvml_uuid():
    of_cuda = "GPU-" + SECOND[4:]
    assert named_by_nvml([of_cuda, gpu(1).uuid, "GPU-other"], MIXED) == (SECOND, gpu(1).uuid, "GPU-other")


def test_unknown_instance_is_left_to_the_driver_if_a_card_lists_none():
    assert named_uuids("MIG-99", inventory(*CUT), None) is None
