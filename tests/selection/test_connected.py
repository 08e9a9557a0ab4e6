"""Among equally idle GPUs a job takes the best connected ones. A single GPU is chosen so that no pair is split."""

import random
from itertools import combinations

import pytest

from autogpu.devices.model import NVLINK
from tests.support.selections import INHERITED, claim, decided
from tests.support.values import gpu, inventory

NEAR = {"internal": 60, "single": 50, "multiple": 40, "hostbridge": 30, "node": 20, "system": 10}


def pair(one, other):
    return frozenset((gpu(one).uuid, gpu(other).uuid))


def topology(nvlinks=(), ancestors=()):
    """Return a topology: pairs such as ``"01"`` with NVLinks, and the common ancestors of other pairs."""
    found = {**{names: NEAR[near] for names, near in dict(ancestors).items()}, **dict.fromkeys(nvlinks, NVLINK)}
    return {pair(*(int(digit) for digit in names)): near for names, near in found.items()}


def all_pairs(size, value):
    """Return ``value(one, other)`` for each pair of ``size`` GPUs, keyed by both numbers as one text."""
    return {f"{one}{other}": value(one, other) for one in range(size) for other in range(one + 1, size)}


def gpus(size, busy=()):
    return [gpu(index, pids=[9], used_gib=20) if index in busy else gpu(index) for index in range(size)]


def taken(count, gpus, machine, **asked):
    """Return the ascending indices of the GPUs that a job takes if it requests ``count``."""
    found = decided(*gpus, **{"inventory": inventory(*gpus, topology=machine), "count": count, **asked})
    return sorted(device.index for device in found.devices)


TWO_PAIRS = topology(("01", "23"), dict.fromkeys(("02", "03", "12", "13"), "system"))
NEIGHBOURS_APART = topology(("02", "13"), dict.fromkeys(("01", "03", "12", "23"), "hostbridge"))

# Two sockets with four GPUs each. Each PCIe switch connects two GPUs.
TWO_SOCKETS = topology(
    ancestors=all_pairs(8, lambda a, b: "single" if a // 2 == b // 2 else "node" if a // 4 == b // 4 else "system")
)

# The hybrid cube mesh of a DGX-1 with V100: each GPU has six NVLinks, which lead to four other GPUs.
CUBE_MESH_LINKS = ("01", "02", "13", "26", "37", "45", "46", "57", "03", "04", "12", "15", "23", "47", "56", "67")
CUBE_MESH = topology(CUBE_MESH_LINKS, all_pairs(8, lambda a, b: "system"))
# Two sockets with eight GPUs each. Each PCIe switch connects two GPUs; in EIGHT_PAIRS these two have NVLinks as well.
SIXTEEN = {
    pair(a, b): NEAR["single" if a // 2 == b // 2 else "node" if a // 8 == b // 8 else "system"]
    for a, b in combinations(range(16), 2)
}
EIGHT_PAIRS = {**SIXTEEN, **{pair(a, a + 1): NVLINK for a in range(0, 16, 2)}}
BESIDE_NVSWITCH = topology(("01", "02", "12"), {"03": "node", "13": "node", "23": "node"})


@pytest.mark.parametrize(
    ("count", "size", "machine", "busy", "expected"),
    [
        pytest.param(2, 4, TWO_PAIRS, (), [2, 3], id="nvlink-pair"),
        pytest.param(2, 4, TWO_PAIRS, (1, 3), [0, 2], id="no-complete-pair-is-left"),
        pytest.param(1, 4, TWO_PAIRS, (), [3], id="single-gpu-if-all-pairs-are-free"),
        pytest.param(1, 4, TWO_PAIRS, (1,), [0], id="single-gpu-with-a-busy-partner"),
        pytest.param(1, 3, topology(("12",)), (), [0], id="single-gpu-without-a-partner"),
        pytest.param(4, 8, TWO_SOCKETS, (7,), [0, 1, 2, 3], id="four-gpus-of-one-socket"),
        pytest.param(1, 8, TWO_SOCKETS, (6,), [7], id="without-nvlinks-no-gpu-has-a-partner"),
        pytest.param(4, 8, CUBE_MESH, (), [4, 5, 6, 7], id="cube-mesh-quad"),
        pytest.param(1, 8, CUBE_MESH, (0,), [4], id="cube-mesh-single-gpu-beside-a-busy-one"),
        pytest.param(1, 8, topology(all_pairs(8, lambda a, b: None)), (6,), [7], id="nvswitch-has-no-pairs"),
        pytest.param(2, 4, BESIDE_NVSWITCH, (), [1, 2], id="gpu-outside-the-nvswitch-is-left"),
        pytest.param(4, 16, SIXTEEN, (9, 11, 13), [4, 5, 6, 7], id="two-switches-of-one-socket"),
        pytest.param(1, 16, EIGHT_PAIRS, (4,), [5], id="single-gpu-of-sixteen-with-a-busy-partner"),
        pytest.param(4, 16, EIGHT_PAIRS, (14, 15), [10, 11, 12, 13], id="two-pairs-of-one-socket"),
        pytest.param(15, 16, EIGHT_PAIRS, (), list(range(1, 16)), id="all-gpus-but-one"),
        pytest.param(2, 4, topology(("01",)), (), [0, 1], id="only-one-connection-is-known"),
        pytest.param(2, 3, topology(("01",), {"12": "internal"}), (), [0, 1], id="nvlink-before-any-common-ancestor"),
        *(
            pytest.param(2, 3, topology((), {"01": near, "12": far, "02": "system"}), (), [0, 1], id=f"{near}-vs-{far}")
            for near, far in zip([*NEAR], [*NEAR][1:])
        ),
    ],
)
def test_best_connected_of_equally_idle_gpus_are_taken(count, size, machine, busy, expected):
    assert taken(count, gpus(size, busy), machine) == expected


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        pytest.param({"busy": 3}, [1, 2], id="less-utilization-first"),
        pytest.param({"pids": (9,), "used_gib": 1.0}, [1, 2], id="gpus-without-a-process-first"),
        pytest.param({}, [0, 1], id="equally-idle-gpus"),
    ],
)
def test_connection_never_outweighs_utilization_or_processes(fields, expected):
    assert taken(2, [gpu(0, **fields), gpu(1), gpu(2)], topology(("01",))) == expected


# The process sees GPUs 1 and 2. GPU 3, the NVLink partner of GPU 2, is free for other jobs.
LISTED = {"visible_spec": INHERITED, "inventory": inventory(*gpus(4), topology=topology(("23",)))}

NUMBERS_OF_PARENT = {"numbers": (1, 2), "keeps_places": True}


@pytest.mark.parametrize(
    ("count", "devices", "machine", "asked", "expected"),
    [
        pytest.param(1, gpus(4), TWO_PAIRS, {"held": {1: claim(24)}}, [0], id="claimed-gpu-counts-as-a-busy-partner"),
        pytest.param(
            2, [gpu(0), gpu(1), gpu(2, total_gib=48)], topology(("02",)), {}, [0, 2], id="partner-of-the-largest-gpu"
        ),
        pytest.param(1, [gpu(1), gpu(2)], None, LISTED, [1], id="partner-outside-the-pool-counts"),
        pytest.param(2, gpus(4), TWO_PAIRS, {"numbers": (1, 2)}, [2, 3], id="script-numbers-stand-for-a-pair"),
        pytest.param(2, gpus(4), TWO_PAIRS, NUMBERS_OF_PARENT, [1, 2], id="numbers-keep-a-parents-order"),
    ],
)
def test_connection_respects_claims_memory_lists_and_numbers(count, devices, machine, asked, expected):
    assert taken(count, devices, machine, **asked) == expected


def test_taken_gpus_are_ranked_first_among_their_equals():
    found = decided(*gpus(4), inventory=inventory(*gpus(4), topology=NEIGHBOURS_APART), count=2)
    assert [candidate.device.index for candidate in found.ranking.candidates] == [3, 1, 2, 0]
    assert [device.index for device in found.devices] == [3, 1]


@pytest.mark.parametrize("seed", range(20))
def test_no_other_set_of_gpus_is_better_connected(seed):
    chance = random.Random(seed)
    # The best two GPUs are always found. A larger set is the best in all of these cases, and in 98 of 100 in general.
    size, count = chance.choice(((8, chance.randrange(2, 8)), (16, 2)))
    pairs = [pair(one, other) for one, other in combinations(range(size), 2)]
    nvlinks = {each: NVLINK for each in pairs if chance.random() < chance.choice((0.1, 0.5, 0.9))}
    near = {each: chance.choice((50, 20, 10)) for each in pairs if chance.random() < 0.8}
    machine = {**near, **nvlinks}

    def score(indices):
        return sum(machine.get(pair(one, other), 0) for one, other in combinations(indices, 2))

    found = taken(count, gpus(size), machine)
    assert (len(found), score(found)) == (count, max(map(score, combinations(range(size), count))))
