"""What it costs to choose the best connected of 16 equally idle GPUs, the most that are sold in one server.

    python benchmarks/topology.py [--runs N] [--json]

The whole decision, in ms, for a job of each size: without a reading of what connects the GPUs; with NVSwitch between
all; with two sockets of eight, in each four PCIe switches of two; with eight NVLink pairs; and the worst, where no two
GPUs are connected alike, which is not sold. Medians of N runs; the goal is 20 ms.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from itertools import combinations
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from autogpu.devices.model import NVLINK  # noqa: E402
from autogpu.policy import Policy  # noqa: E402
from autogpu.selection.decide import decide  # noqa: E402
from autogpu.selection.model import SelectionRequest, VisibleSpec  # noqa: E402
from tests.support.values import gpu, inventory  # noqa: E402

GPUS = 16
SIZES = (1, 2, 4, 8, 12)

DEVICES = [gpu(index) for index in range(GPUS)]
PAIRS = list(combinations(range(GPUS), 2))


def named(pair: tuple[int, int]) -> frozenset[str]:
    return frozenset(DEVICES[index].uuid for index in pair)


def sockets(pair: tuple[int, int]) -> int:
    one, other = pair
    return 50 if one // 2 == other // 2 else 20 if one // 8 == other // 8 else 10


def all_different() -> dict[frozenset[str], int]:
    chance = random.Random(16)
    kinds = {pair: NVLINK if chance.random() < 0.5 else chance.randrange(10, 61) for pair in PAIRS}
    return {named(pair): kind for pair, kind in kinds.items()}


MACHINES = {
    "nothing read": {},
    "NVSwitch": dict.fromkeys(map(named, PAIRS), NVLINK),
    "two sockets": {named(pair): sockets(pair) for pair in PAIRS},
    "eight pairs": {named((index, index + 1)): NVLINK for index in range(0, GPUS, 2)},
    "all different": all_different(),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=11)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = {name: {size: cost_ms(machine, size, options.runs) for size in SIZES} for name, machine in MACHINES.items()}
    if options.json:
        print(json.dumps(found, indent=2))
        return
    print(f"{'ms, GPUs wanted:':18}" + "".join(f"{size:>8}" for size in SIZES))
    for name, row in found.items():
        print(f"{name:18}" + "".join(f"{value:>8.1f}" for value in row.values()))


def cost_ms(machine: dict[frozenset[str], int], size: int, runs: int) -> float:
    """The median of the whole decision."""
    request = SelectionRequest(
        Policy(count=size),
        VisibleSpec(),
        inventory(*DEVICES, topology=machine),
        [device.uuid for device in DEVICES],
        gpu_count=GPUS,
        own_uid=1000,
        own_pid=1,
    )
    times = []
    for _ in range(runs):
        begun = time.perf_counter()
        decision = decide(request)
        times.append(time.perf_counter() - begun)
        assert len(decision.devices) == size
    return 1000 * statistics.median(times)


if __name__ == "__main__":
    main()
