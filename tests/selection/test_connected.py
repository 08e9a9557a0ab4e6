"""Among equally idle GPUs the best connected ones are taken, and one alone is taken where it parts no pair."""

from __future__ import annotations

import random
from itertools import combinations

import pytest

from autogpu.devices.model import Topology, TopologyQuestion
from autogpu.policy import Policy
from autogpu.selection.connected import topology_question
from autogpu.selection.explain import connections
from autogpu.selection.grants import NO_ENGINE, Grant
from autogpu.selection.model import VisibleSpec, connection_score
from autogpu.selection.ranks import LocalRank
from tests.support.selections import INHERITED, UNSET, claim, claimed, decided
from tests.support.values import gpu, inventory


def pair(one, other):
    return frozenset((gpu(one).uuid, gpu(other).uuid))


def topology(nvlinks=(), ancestors=(), switched=()):
    """``nvlinks`` as ``"01": 4``, ``ancestors`` as ``"01": "single"``, in one digit for each GPU (hexadecimal)."""

    def by_pair(table):
        return {pair(*(int(digit, 16) for digit in names)): value for names, value in dict(table).items()}

    return Topology(by_pair(nvlinks), frozenset(by_pair(dict.fromkeys(switched))), by_pair(ancestors))


def all_pairs(size, value):
    """Each pair of so many GPUs, with what ``value`` makes of it."""
    return {f"{one:x}{other:x}": value(one, other) for one in range(size) for other in range(one + 1, size)}


def gpus(size, busy=()):
    return [gpu(index, **({"pids": [9], "used_gib": 20} if index in busy else {})) for index in range(size)]


def taken(count, machine, devices, **asked):
    """The GPUs that a job of ``count`` takes, ascending."""
    found = decided(*devices, machine=inventory(*devices, topology=machine), policy=Policy(count=count), **asked)
    return sorted(device.index for device in found.devices)


TWO_PAIRS = topology({"01": 4, "23": 4}, dict.fromkeys(("02", "03", "12", "13"), "system"))
NEIGHBOURS_APART = topology({"02": 4, "13": 4}, dict.fromkeys(("01", "03", "12", "23"), "hostbridge"))

# Two boxes of four behind a socket each, and in each two pairs behind a PCIe switch.
TWO_SOCKETS = topology(
    ancestors=all_pairs(8, lambda a, b: "single" if a // 2 == b // 2 else "node" if a // 4 == b // 4 else "system")
)

# The hybrid cube mesh of a DGX-1 with V100: six NVLinks of each GPU, to four others.
CUBE_MESH_LINKS = {
    **dict.fromkeys(("01", "02", "13", "26", "37", "45", "46", "57"), 1),
    **dict.fromkeys(("03", "04", "12", "15", "23", "47", "56", "67"), 2),
}
CUBE_MESH = topology(
    CUBE_MESH_LINKS,
    {name: "system" for name in all_pairs(8, lambda a, b: None) if name not in CUBE_MESH_LINKS},
)
NVSWITCH = topology(switched=all_pairs(8, lambda a, b: None))


@pytest.mark.parametrize(
    ("count", "size", "machine", "busy", "expected"),
    [
        pytest.param(2, 4, TWO_PAIRS, (), [2, 3], id="pair"),
        pytest.param(2, 4, NEIGHBOURS_APART, (), [1, 3], id="pair-of-others-than-the-highest"),
        pytest.param(2, 4, TWO_PAIRS, (3,), [0, 1], id="pair-that-is-whole"),
        pytest.param(2, 4, TWO_PAIRS, (1, 3), [0, 2], id="no-pair-is-left"),
        pytest.param(3, 4, TWO_PAIRS, (), [1, 2, 3], id="more-than-a-pair"),
        pytest.param(4, 4, TWO_PAIRS, (), [0, 1, 2, 3], id="all"),
        pytest.param(5, 4, TWO_PAIRS, (), [0, 1, 2, 3], id="more-than-there-are"),
        pytest.param("all", 4, TWO_PAIRS, (), [0, 1, 2, 3], id="all-by-name"),
        pytest.param(1, 4, TWO_PAIRS, (), [3], id="one-of-two-pairs"),
        pytest.param(1, 4, TWO_PAIRS, (1,), [0], id="one-whose-partner-is-taken"),
        pytest.param(1, 4, TWO_PAIRS, (2, 3), [1], id="one-of-the-pair-that-is-left"),
        pytest.param(1, 3, topology({"12": 2}), (), [0], id="one-without-a-partner"),
        pytest.param(1, 4, topology({"01": 2, "23": 4}), (), [1], id="one-of-the-weaker-pair"),
        pytest.param(2, 8, TWO_SOCKETS, (), [6, 7], id="one-pcie-switch"),
        pytest.param(2, 8, TWO_SOCKETS, (7, 5), [2, 3], id="one-pcie-switch-that-is-whole"),
        pytest.param(4, 8, TWO_SOCKETS, (7,), [0, 1, 2, 3], id="one-socket"),
        pytest.param(3, 8, TWO_SOCKETS, (0,), [5, 6, 7], id="three-of-one-socket"),
        pytest.param(1, 8, TWO_SOCKETS, (6,), [7], id="no-nvlink-no-partner"),
        pytest.param(2, 8, CUBE_MESH, (), [6, 7], id="cube-mesh-two-links"),
        pytest.param(2, 8, CUBE_MESH, (6,), [4, 7], id="cube-mesh-two-links-that-are-left"),
        pytest.param(4, 8, CUBE_MESH, (), [4, 5, 6, 7], id="cube-mesh-quad"),
        pytest.param(4, 8, CUBE_MESH, (4,), [0, 1, 2, 3], id="cube-mesh-other-quad"),
        pytest.param(1, 8, CUBE_MESH, (0,), [4], id="cube-mesh-next-to-the-busiest"),
        pytest.param(2, 8, NVSWITCH, (), [6, 7], id="nvswitch"),
        pytest.param(1, 8, NVSWITCH, (6,), [7], id="nvswitch-has-no-pairs"),
        pytest.param(
            2,
            4,
            topology(switched=("01", "02", "12"), ancestors=dict.fromkeys(("03", "13", "23"), "node")),
            (),
            [1, 2],
            id="one-gpu-beside-nvswitch",
        ),
        pytest.param(2, 4, topology(), (), [2, 3], id="nothing-is-known"),
        pytest.param(2, 4, topology({"01": 1}), (), [0, 1], id="little-is-known"),
        pytest.param(2, 3, topology({"01": 1}, {"12": "internal"}), (), [0, 1], id="one-nvlink-before-any-ancestor"),
        *(
            pytest.param(
                2, 3, topology(ancestors={"01": near, "12": far, "02": "system"}), (), [0, 1], id=f"{near}-{far}"
            )
            for near, far in zip(
                ("internal", "single", "multiple", "hostbridge", "node"),
                ("single", "multiple", "hostbridge", "node", "system"),
            )
        ),
    ],
)
def test_equally_idle_gpus(count, size, machine, busy, expected):
    assert taken(count, machine, gpus(size, busy)) == expected


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        pytest.param({"busy": 3}, [1, 2], id="utilization"),
        pytest.param({"used_gib": 2.0}, [1, 2], id="memory"),
        pytest.param({"busy": None}, [1, 2], id="unknown"),
        pytest.param({"pids": (9,), "used_gib": 1.0}, [1, 2], id="process"),
        pytest.param({"compute_mode": "prohibited"}, [1, 2], id="not-eligible"),
        pytest.param({}, [0, 1], id="equal"),
    ],
)
def test_no_connection_outweighs_what_gpus_rank_by(fields, expected):
    devices = [gpu(0, **fields), gpu(1), gpu(2)]
    assert taken(2, topology({"01": 12}), devices) == expected


def test_a_claim_that_shows_nothing_yet_is_a_taken_partner():
    assert taken(1, TWO_PAIRS, gpus(4), claims_on=claimed((1, claim(24)))) == [0]


def test_the_best_one_is_joined_by_the_equal_that_is_connected_to_it():
    devices = [gpu(0), gpu(1), gpu(2, total_gib=48)]
    assert taken(2, topology({"02": 2}), devices) == [0, 2]


def test_a_partner_outside_the_pool_counts_as_well():
    # The list names GPUs 1 and 2; GPU 0, which belongs to GPU 1, is free for others.
    visible = [gpu(1), gpu(2)]
    found = decided(
        *visible, spec=INHERITED, machine=inventory(*map(gpu, range(4)), topology=topology({"01": 2, "23": 4}))
    )
    assert [device.index for device in found.devices] == [1]


def test_no_more_than_the_user_may_have_are_chosen_together():
    devices = [gpu(index) for index in range(4)]
    machine = inventory(*devices, topology=topology({"01": 4, "23": 2}))
    found = decided(*devices, machine=machine, policy=Policy(count=3, per_user=2))
    assert sorted(device.index for device in found.devices) == [0, 1]


def test_positions_that_the_script_names_stay():
    assert taken(2, TWO_PAIRS, gpus(4), chosen=[1, 2], chosen_by_position=True) == [1, 2]


def test_the_taken_come_first_of_their_equals():
    found = decided(
        *map(gpu, range(4)), machine=inventory(*map(gpu, range(4)), topology=NEIGHBOURS_APART), policy=Policy(count=2)
    )
    assert [candidate.device.index for candidate in found.ranking.candidates] == [3, 1, 2, 0]
    assert [device.index for device in found.devices] == [3, 1]


def test_more_gpus_than_servers_have_are_still_chosen_by_what_connects_them():
    devices = gpus(20, busy=(19,))
    near = {pair(a, b): "node" if a // 10 == b // 10 else "system" for a in range(20) for b in range(a)}
    assert taken(10, Topology(ancestors=near), devices) == list(range(10))


RANK_OF_TWO = Grant(rank=LocalRank(0, 2, "torchrun"))


def named(*indices):
    return frozenset(gpu(index).uuid for index in indices)


@pytest.mark.parametrize(
    ("devices", "policy", "expected"),
    [
        pytest.param(gpus(1), {}, None, id="one-gpu"),
        pytest.param(gpus(4), {"count": 0}, None, id="none-wanted"),
        pytest.param(gpus(4), {}, (named(0, 1, 2, 3), False), id="one-of-four"),
        pytest.param(gpus(4), {"count": 2}, (named(0, 1, 2, 3), True), id="two-of-four"),
        pytest.param(gpus(4), {"count": 4}, None, id="all-of-four"),
        pytest.param(gpus(4), {"count": "all"}, None, id="all"),
        pytest.param(gpus(4), {"count": 4, "level": "explain"}, (named(0, 1, 2, 3), True), id="all-explained"),
        pytest.param([gpu(0, busy=1), gpu(1, busy=2)], {}, None, id="no-equals"),
        pytest.param([gpu(0), gpu(1), gpu(2, total_gib=48)], {}, (named(0, 1), False), id="equals-alone"),
        pytest.param([gpu(0), gpu(1), gpu(2, total_gib=48)], {"count": 2}, (named(0, 1, 2), True), id="and-the-best"),
        pytest.param([gpu(0), gpu(1), gpu(2)], {"exclude": ("0",)}, (named(1, 2), False), id="excluded"),
        pytest.param([gpu(0), gpu(1, busy=9)], {"busy": "wait"}, (named(0, 1), False), id="equal-after-a-wait"),
    ],
)
def test_what_is_asked_of_the_connections(devices, policy, expected):
    asked = topology_question(inventory(*devices), Policy(**policy), UNSET, NO_ENGINE, None, 1)
    assert asked == (expected and TopologyQuestion(*expected))


@pytest.mark.parametrize(
    ("grant", "expected"),
    [
        pytest.param(RANK_OF_TWO, TopologyQuestion(named(0, 1, 2), with_paths=True), id="ranks-choose-together"),
        pytest.param(Grant(engine="Slurm", rank=LocalRank(0, 2, "Slurm")), None, id="ranks-take-slices"),
    ],
)
def test_ranks_ask_for_what_all_of_them_take(grant, expected):
    assert topology_question(inventory(*gpus(3)), Policy(), UNSET, grant, None, 1) == expected


def test_only_the_gpus_of_the_process_are_asked_about():
    uuids = [gpu(1).uuid, gpu(2).uuid]
    asked = topology_question(inventory(*gpus(4)), Policy(), VisibleSpec("1,2", "inherited"), NO_ENGINE, uuids, 1)
    assert asked == TopologyQuestion(named(1, 2))


@pytest.mark.parametrize(
    ("count", "size", "machine", "busy", "expected"),
    [
        pytest.param(2, 4, TWO_PAIRS, (), ["4 NVLinks between GPU 2 and GPU 3"], id="pair"),
        pytest.param(2, 2, topology({"01": 1}), (), ["1 NVLink between GPU 0 and GPU 1"], id="one-link"),
        pytest.param(
            4,
            4,
            TWO_PAIRS,
            (),
            [
                "4 NVLinks between GPU 0 and GPU 1, between GPU 2 and GPU 3",
                "the link of two sockets between the others",
            ],
            id="two-pairs",
        ),
        pytest.param(8, 8, NVSWITCH, (), ["NVSwitch between all 8 GPUs"], id="nvswitch"),
        pytest.param(2, 8, TWO_SOCKETS, (), ["one PCIe switch between GPU 6 and GPU 7"], id="pcie"),
        pytest.param(3, 3, topology({"01": 2}), (), ["2 NVLinks between GPU 0 and GPU 1"], id="in-part"),
        pytest.param(2, 2, topology(), (), [], id="unknown"),
        pytest.param(1, 4, TWO_PAIRS, (), [], id="one"),
        pytest.param(
            1,
            4,
            TWO_PAIRS,
            (1,),
            ["its NVLinks lead to GPU 1, which is taken: no free pair is parted"],
            id="one-whose-partner-is-taken",
        ),
    ],
)
def test_what_connects_them_is_said(count, size, machine, busy, expected):
    devices = gpus(size, busy)
    seen = inventory(*devices, topology=machine)
    found = decided(*devices, machine=seen, policy=Policy(count=count))
    assert connections(found.ranking, found.devices, seen) == expected


@pytest.mark.parametrize("seed", range(40))
def test_no_set_is_connected_better(seed):
    chance = random.Random(seed)
    size, count = 9, chance.randrange(2, 9)
    pairs = [pair(one, other) for one, other in combinations(range(size), 2)]
    nvlinks = {each: chance.randrange(1, 5) for each in pairs if chance.random() < chance.choice((0.1, 0.5, 0.9))}
    near = {each: chance.choice(("single", "node", "system")) for each in pairs if chance.random() < 0.8}
    machine = Topology(nvlinks, ancestors=near)

    def score(indices):
        return sum(connection_score(machine, pair(one, other)) for one, other in combinations(indices, 2))

    found = taken(count, machine, gpus(size))
    assert (len(found), score(found)) == (count, max(map(score, combinations(range(size), count))))
