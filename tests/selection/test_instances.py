"""MIG instances: which of them a process gets, what a list of them means, and what is written."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from autogpu.devices.model import Process
from autogpu.policy import MemoryLimit, Policy
from autogpu.reporting.text import GIB
from autogpu.selection import instances
from autogpu.selection.connected import topology_question
from autogpu.selection.decide import decide
from autogpu.selection.grants import NO_ENGINE, Grant
from autogpu.selection.jobs import jobs_of
from autogpu.selection.model import Claim, SelectionRequest, SelectionRules, Tier, Verdict
from autogpu.selection.ranking import matches, rank
from autogpu.selection.ranks import LocalRank
from autogpu.selection.together import request_of_all
from autogpu.selection.visible_devices import environment_for, named_uuids
from tests.support.selections import BOB, ME, UNSET, claim, decided
from tests.support.values import cut, gpu, instance, inventory

R535, R570 = "535.104.05", "570.86.15"
SEVEN = cut(0, *[5] * 7)
# Card 0 has instances of 20, 5 and 10 GiB, and the cards 1 and 2 are whole.
MIXED = (*cut(0, 20, 5, 10), gpu(1, name="NVIDIA A100", total_gib=40.0), gpu(2, name="NVIDIA A100", total_gib=40.0))
# No card is whole, and one has no instance.
CUT = (*cut(0, 20, 5), *cut(1))


def labels(uuids, devices):
    if uuids is None:
        return None
    known = {device.uuid: device.label for device in devices}
    return [known[uuid] for uuid in uuids]


def pool_of(devices):
    return instances.takeable(devices)


def choice(devices, **asked):
    """The decision of a process that may have all that can be had of ``devices``."""
    return decided(*pool_of(devices), machine=inventory(*devices, driver_version=R535), **asked)


def taken(decision):
    return [device.label for device in decision.devices]


def busy(device):
    return {device.uuid: (claim(5),)}


def test_a_card_is_replaced_by_its_instances_and_stays_without_any():
    assert [device.label for device in pool_of(MIXED)] == ["0:0", "0:1", "0:2", "1", "2"]
    assert [device.label for device in pool_of(CUT)] == ["0:0", "0:1", "1"]


def test_the_idlest_instance_is_taken_and_its_card_is_not_counted():
    held = {device.uuid: (claim(5),) for device in SEVEN[1:] if device.label != "0:3"}
    decision = choice(SEVEN, claims_on=held)
    assert (taken(decision), decision.why) == (["0:3"], "the idlest of 7")


def test_a_card_in_mig_mode_without_an_instance_says_so():
    decision = choice(cut(0))
    assert decision.verdict is Verdict.CPU
    assert decision.why == "no GPU is suitable (GPU 0: in MIG mode, and has no instance here)"


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        pytest.param(Policy(), ["2"], id="a-free-card-before-a-free-instance"),
        pytest.param(Policy(devices=("0",)), ["0:0"], id="the-index-of-a-card-means-its-instances"),
        pytest.param(Policy(devices=("0:1",)), ["0:1"], id="an-instance-by-its-number"),
        pytest.param(Policy(devices=("2g.*",)), ["0:2"], id="by-what-it-is-made-of"),
        pytest.param(Policy(devices=("*MIG 4g.20gb",)), ["0:0"], id="by-its-whole-name"),
        pytest.param(Policy(devices=("MIG-00000000-0001",)), ["0:1"], id="by-its-uuid"),
        pytest.param(Policy(devices=("MIG-GPU-00000000-aaaa-bbbb-cccc-000000000000/9/0",)), ["0:2"], id="older-name"),
        pytest.param(Policy(devices=("GPU-00000000",)), ["0:0"], id="the-uuid-of-a-card-means-its-instances"),
        pytest.param(Policy(exclude=("1", "2")), ["0:0"], id="an-instance-where-the-cards-are-excluded"),
        pytest.param(Policy(exclude=("0",)), ["2"], id="the-instances-of-an-excluded-card"),
        pytest.param(Policy(devices=("0",), need_bytes=15 * GIB), ["0:0"], id="room"),
        pytest.param(Policy(count=2), ["1", "2"], id="two-are-whole-cards"),
        pytest.param(Policy(count="all"), ["1", "2"], id="all-are-the-whole-cards"),
    ],
)
def test_which_is_taken(policy, expected):
    assert sorted(taken(choice(MIXED, policy=policy))) == expected


def test_an_instance_that_is_free_comes_before_a_card_that_is_not():
    held = {gpu(1).uuid: (claim(1),), gpu(2).uuid: (claim(1),)}
    assert taken(choice(MIXED, claims_on=held)) == ["0:0"]


def test_a_job_that_does_not_fit_says_so_of_each_instance():
    decision = choice(SEVEN, policy=Policy(need_bytes=6 * GIB))
    assert decision.verdict is Verdict.CPU
    assert "GPU 0:0: 6.0 GiB do not fit, it has 5.0 GiB" in decision.why


def test_a_limit_in_percent_is_of_the_instance():
    decision = choice(SEVEN, policy=Policy(limit=MemoryLimit(percent=50.0), limit_includes="process"))
    assert list(decision.claims.values()) == [int(2.5 * GIB)]


def test_two_where_there_are_only_instances_are_one_with_the_reason():
    decision = choice(SEVEN, policy=Policy(count=2))
    assert taken(decision) == ["0:6"]
    assert decision.why == (
        "the idlest of 7; select.count asks for 2, "
        "a process can have one MIG instance, and there is no whole GPU for it"
    )


def test_one_that_wants_two_does_not_wait_for_an_instance_that_it_could_not_have():
    held = {**busy(SEVEN[1]), **busy(SEVEN[2])}
    assert choice(SEVEN, policy=Policy(count=2, busy="wait"), claims_on=held).verdict is Verdict.TAKE


def test_no_hint_at_more_gpus_goes_with_an_instance():
    assert choice(SEVEN).attainable == 1
    assert choice(MIXED).attainable == 2


def test_busy_cpu_and_wait_count_instances():
    held = {device.uuid: (claim(5),) for device in SEVEN[1:]}
    assert choice(SEVEN, policy=Policy(busy="cpu"), claims_on=held).verdict is Verdict.CPU
    assert choice(SEVEN, policy=Policy(busy="wait"), claims_on=held).verdict is Verdict.WAIT


def test_an_instance_that_was_claimed_ahead_and_is_not_used_may_be_shared_after_a_minute():
    device = instance()

    def tier_of(**fields):
        claims = {device.uuid: (claim(5, **fields),)}
        return rank([device], SelectionRules(), claims).candidates[0].tier

    assert tier_of(age_s=61.0, is_unused=True) is Tier.IDLE_LEASE
    assert tier_of(age_s=59.0, is_unused=True) is Tier.BUSY
    # What the driver tells no utilization of can't be called idle.
    assert tier_of(age_s=7200.0) is Tier.BUSY


def test_an_instance_on_which_a_process_computes_is_busy():
    computing = instance(compute_processes=(Process(42, GIB),))
    assert [each.tier for each in rank([computing], SelectionRules()).candidates] == [Tier.BUSY]


def ranked(devices, size, **grant):
    """What each rank of a job takes where one rank after the other decides."""
    pool, found = pool_of(devices), []
    for number in range(size):
        rank_grant = Grant(rank=LocalRank(number, size, "torchrun"), **grant)
        found.append(taken(decided(*pool, machine=inventory(*devices), grant=rank_grant)))
    return found


@pytest.mark.parametrize(
    ("devices", "size", "expected"),
    [
        pytest.param(MIXED, 2, [["1"], ["2"]], id="whole-cards-where-there-are-enough"),
        pytest.param(MIXED, 5, [["0:0"], ["0:1"], ["0:2"], ["1"], ["2"]], id="cards-and-instances-alike"),
        pytest.param(SEVEN, 2, [["0:0"], ["0:3"]], id="one-instance-each"),
    ],
)
def test_no_two_ranks_have_one_gpu_while_others_are_free(devices, size, expected):
    assert ranked(devices, size) == expected


def test_ranks_that_choose_together_take_an_instance_each():
    def together(devices, size):
        uuids = [device.uuid for device in pool_of(devices)]
        grant = Grant(rank=LocalRank(0, size, "torchrun", job="x"))
        request = SelectionRequest(Policy(), UNSET, inventory(*devices), uuids, len(uuids), ME, grant=grant)
        return sorted(taken(decide(request_of_all(request))))

    assert together(SEVEN, 3) == ["0:4", "0:5", "0:6"]
    assert together(MIXED, 2) == ["1", "2"]
    assert together(MIXED, 3) == ["0:0", "1", "2"]


LEGACY = "MIG-GPU-00000000-aaaa-bbbb-cccc-000000000000/{}/0"
FIRST, SECOND = "MIG-00000000-0000", "MIG-00000000-0001-bbbb-cccc-000000000000"


@pytest.mark.parametrize(
    ("value", "before_r570", "since"),
    [
        pytest.param(None, ["0:0", "0:1", "0:2", "1", "2"], ["0:0", "0:1", "0:2", "1", "2"], id="unset-is-all"),
        pytest.param(SECOND, ["0:1"], ["0:1"], id="one"),
        pytest.param(f"{SECOND},{FIRST}", ["0:1", "0:0"], ["0:1", "0:0"], id="several-in-their-order"),
        pytest.param(f"{FIRST},{FIRST}", [], [], id="twice-is-none"),
        pytest.param("MIG-00000000", [], [], id="not-unique"),
        pytest.param("MIG-99", [], [], id="not-there"),
        pytest.param(LEGACY.format(8), ["0:1"], ["0:1"], id="the-older-name"),
        pytest.param(LEGACY.format(1), [], [], id="the-older-name-of-none"),
        pytest.param(LEGACY.format("9" * 5000), [], [], id="an-absurd-number"),
        pytest.param("mig-00000000-0001", None, None, id="lower-case-is-the-drivers"),
        pytest.param("GPU-00000001," + SECOND, ["0:1"], ["1", "0:1"], id="beside-a-whole-card"),
        pytest.param("GPU-00000000", ["0:0", "0:1", "0:2"], ["0:0", "0:1", "0:2"], id="the-card-itself"),
        # CUDA numbers whole cards first.
        pytest.param("0", ["1"], None, id="a-number"),
        pytest.param("2", ["0:0", "0:1", "0:2"], None, id="the-number-of-a-card-in-mig-mode"),
        pytest.param("0,2", ["0:0", "0:1", "0:2"], None, id="numbers-of-both"),
        pytest.param("3", [], [], id="out-of-range"),
        pytest.param("-1", [], [], id="none"),
    ],
)
def test_what_a_list_means(value, before_r570, since):
    for version, expected in ((R535, before_r570), (None, before_r570), (R570, since)):
        machine = inventory(*MIXED, driver_version=version)
        assert labels(named_uuids(value, machine, "PCI_BUS_ID"), MIXED) == expected


def test_an_instance_of_a_card_that_does_not_tell_of_its_instances_is_the_drivers():
    assert named_uuids("MIG-99", inventory(*CUT), None) is None


UUIDS = {device.label: device for device in MIXED}


@pytest.mark.parametrize(
    ("mine", "ranks", "version", "expected"),
    [
        (["0:1"], [], R535, ["0:1"]),
        (["2"], [], R535, ["1", "2"]),
        (["0:1"], ["0:0", "0:1"], R535, ["0:1"]),
        (["0:1"], ["0:0", "0:1"], R570, ["0:0", "0:1"]),
        (["0:1"], ["1", "0:1"], R570, ["1", "0:1"]),
        (["1"], ["1", "0:1"], R570, ["1", "0:1"]),
        (["1"], ["1", "0:1"], R535, ["1", "2"]),
    ],
)
def test_what_is_listed_is_one_instance_whole_cards_or_what_the_ranks_have(mine, ranks, version, expected):
    listed = instances.to_list(
        [UUIDS[label] for label in mine],
        [UUIDS[label].uuid for label in ranks],
        pool_of(MIXED),
        shows_several=instances.shows_several(version),
    )
    assert [device.label for device in listed] == expected


@pytest.mark.parametrize(
    ("ranked", "listed"),
    [(["2", "0:1", "1", "0:0"], ["2", "1", "0:1", "0:0"]), (["0:1", "2", "0:0"], ["0:1", "0:0", "2"])],
    ids=["a-card-is-best", "an-instance-is-best"],
)
def test_since_r570_all_are_listed_the_kind_of_the_best_one_first(ranked, listed):
    found = instances.best_kind_first([UUIDS[label] for label in ranked])
    assert [device.label for device in found] == listed


@pytest.mark.parametrize("version", [None, "", "unknown", "5.70"])
def test_a_driver_whose_version_says_nothing_shows_one(version):
    assert not instances.shows_several(version)


def test_an_instance_is_written_as_its_uuid_whatever_the_policy_wants():
    written = environment_for([UUIDS["0:1"]], UNSET, identifier="index", index_is_certain=True)
    assert written["CUDA_VISIBLE_DEVICES"] == UUIDS["0:1"].uuid


def test_what_cuda_counts_has_the_names_of_nvml():
    of_cuda = "GPU-" + SECOND[4:]
    assert instances.named_by_nvml([of_cuda, gpu(1).uuid, "GPU-other"], MIXED) == (SECOND, gpu(1).uuid, "GPU-other")
    # Before R470 CUDA tells the card's.
    assert instances.named_by_nvml([gpu(0).uuid], MIXED, [SECOND]) == (SECOND,)
    assert instances.named_by_nvml([gpu(0).uuid], MIXED, []) == (gpu(0).uuid,)


def test_a_lease_that_says_what_cuda_calls_an_instance_is_understood():
    holder = SimpleNamespace(
        name="a",
        group="",
        uid=BOB,
        is_mine=False,
        is_unused=False,
        pid=7,
        script="old.py",
        since_s=1.0,
        claims={"GPU-" + SECOND[4:]: 1 << 50},
    )
    (job,) = jobs_of([holder], {"a": 7}, inventory(*MIXED), 2.0)
    assert job.claims == {SECOND: 5 * GIB}


def test_nothing_is_asked_of_what_connects_instances():
    machine = inventory(*SEVEN)
    assert topology_question(machine, Policy(count=2), UNSET, NO_ENGINE, None, None, is_explained=True) is None


def test_no_idle_card_in_mig_mode_is_said_to_be_an_alternative():
    device = instance(0, 1)
    decision = decided(
        device,
        spec=UNSET,
        machine=inventory(*cut(0, 5, 5)),
        claims_on={device.uuid: (Claim(GIB, (9,), BOB, "x.py", 1.0),)},
        chosen=(0,),
    )
    assert decision.why == "chosen by the script, busy while GPU 0:0 is idle"


def test_names_of_instances_match_no_whole_card():
    assert not matches(gpu(0, name="NVIDIA A100"), ["0:0", "1g.*", "MIG-0"])
