"""What connects the GPUs is read where it is asked for, once, and by no more calls of NVML than that takes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter

import pytest

from tests.gpusim import Gpu, Server

# Reads the GPUs, then in the process what connects those with these indices; twice, and prints what it was told.
READ = """
import json, os, sys
from autogpu.devices import probe
from autogpu.devices.model import TopologyQuestion

indices, with_paths = json.loads(sys.argv[1])
def asks(inventory):
    if "wait" in sys.argv:
        print("read", flush=True)
        sys.stdin.readline()
    uuids = frozenset(device.uuid for device in inventory.devices if device.index in indices)
    return TopologyQuestion(uuids, with_paths) if uuids else None

inventory = probe.finish(probe.start(os.environ))
index = {device.uuid: device.index for device in inventory.devices}
for _ in range(1 if "wait" in sys.argv else 2):
    inventory = probe.start_in_process(os.environ, inventory, asks).result(30.0)
def named(pair):
    return "-".join(sorted(str(index[uuid]) for uuid in pair))
topology = inventory.topology
print(json.dumps([
    {named(pair): count for pair, count in topology.nvlinks.items()},
    sorted(map(named, topology.switched)),
    {named(pair): ancestor for pair, ancestor in topology.ancestors.items()},
]), flush=True)
os._exit(0)
"""

AT = [f"0000:0{bus}:00.0" for bus in range(1, 9)]
SWITCHES = ["0000:c4:00.0", "0000:c5:00.0"]

PAIRS = [Gpu(pci=AT[place], nvlinks=[AT[place ^ 1]] * 4, path=f"{place // 2}/0/{place}") for place in range(4)]
SWITCHED = [Gpu(pci=AT[place], nvlinks=SWITCHES * 6) for place in range(8)]
PLAIN = [Gpu(path=f"{place // 4}/{place // 2}/{place}") for place in range(8)]
NO_BRIDGE = [Gpu(nvlinks=["", ""], path=f"0/{place}") for place in range(2)]


def read(server, indices, *, with_paths):
    """What connects the GPUs, and how often NVML was asked what."""
    done = server.run([sys.executable, "-c", READ, json.dumps([indices, with_paths])], timeout=60)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    asked = Counter(call.call for call in server.calls() if call.call in ("nvlink", "p2p", "ancestor"))
    return json.loads(done.stdout), dict(asked)


@pytest.mark.parametrize(
    ("gpus", "indices", "with_paths", "expected", "asked"),
    [
        pytest.param(PAIRS, [0, 1, 2, 3], False, [{"0-1": 4, "2-3": 4}, [], {}], {"nvlink": 16}, id="pairs"),
        pytest.param(
            PAIRS,
            [0, 1, 2, 3],
            True,
            [{"0-1": 4, "2-3": 4}, [], dict.fromkeys(("0-2", "0-3", "1-2", "1-3"), "system")],
            {"nvlink": 16, "ancestor": 4},
            id="pairs-and-what-is-between-them",
        ),
        pytest.param(PAIRS, [0, 3], False, [{"0-1": 4, "2-3": 4}, [], {}], {"nvlink": 8}, id="some-of-them"),
        pytest.param(
            SWITCHED,
            list(range(8)),
            True,
            [{}, sorted(f"{one}-{other}" for other in range(8) for one in range(other)), {}],
            {"nvlink": 8, "p2p": 7},
            id="nvswitch",
        ),
        pytest.param(
            PLAIN,
            list(range(8)),
            True,
            [
                {},
                [],
                {
                    f"{a}-{b}": "hostbridge" if a // 2 == b // 2 else "node" if a // 4 == b // 4 else "system"
                    for b in range(8)
                    for a in range(b)
                },
            ],
            {"ancestor": 28},
            id="no-nvlink",
        ),
        pytest.param(NO_BRIDGE, [0, 1], True, [{}, [], {"0-1": "node"}], {"nvlink": 4, "ancestor": 1}, id="no-bridge"),
        pytest.param(PAIRS, [], True, [{}, [], {}], {}, id="nothing-is-asked"),
        pytest.param(
            [Gpu(nvlinks=SWITCHES), Gpu(nvlinks=["0000:c9:00.0"])],
            [0, 1],
            False,
            [{}, [], {}],
            {"nvlink": 2, "p2p": 1},
            id="two-switches-that-nothing-joins",
        ),
        pytest.param(
            [*PAIRS[:2], Gpu(unsupported=["nvlinks", "p2p", "topology"])],
            [0, 1, 2],
            True,
            [{"0-1": 4}, [], {}],
            {"nvlink": 8},
            id="one-that-tells-nothing",
        ),
    ],
)
def test_what_connects_gpus(tmp_path, gpus, indices, with_paths, expected, asked):
    with Server(gpus, folder=tmp_path) as server:
        told, calls = read(server, indices, with_paths=with_paths)
    assert (told, calls) == (expected, asked)


def test_gpus_whose_partner_is_denied_to_this_process_have_none(tmp_path):
    with Server([PAIRS[0], Gpu(pci=AT[1], nvml="NO_PERMISSION"), *PAIRS[2:]], folder=tmp_path) as server:
        told, _ = read(server, [0, 2, 3], with_paths=False)
    assert told == [{"2-3": 4}, [], {}]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        pytest.param("GPU_IS_LOST", [{"0-1": 4, "2-3": 4}, [], {"0-2": "system", "1-2": "system"}], id="lost"),
        pytest.param("UNKNOWN", [{"0-1": 4, "2-3": 4}, [], {"0-2": "system", "1-2": "system"}], id="failing"),
        pytest.param("hang", [{}, [], {}], id="hanging"),
    ],
)
def test_a_gpu_that_fails_after_it_was_read_costs_what_connects_it(tmp_path, fault, expected):
    with Server(PAIRS, folder=tmp_path) as server:
        command = [sys.executable, "-c", READ, json.dumps([[0, 1, 2, 3], True]), "wait"]
        reading = server.popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert reading.stdout.readline() == "read\n"
        server.change(3, nvml=fault)
        told, errors = reading.communicate("go on\n", timeout=60)
    assert (reading.returncode, errors) == (0, "")
    assert json.loads(told) == expected
