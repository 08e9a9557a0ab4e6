"""The topology of the GPUs: read once, with the first reading, and with as few NVML calls as possible."""

import json
import subprocess
import sys
from collections import Counter
from typing import Any

import pytest

from tests.gpusim import Gpu, Server

# Reads the GPUs twice, the second time in this process, and prints the topology of both readings.
READ = """
import json, os, sys
from autogpu.devices import probe

if "embedded" in sys.argv:
    sys.executable = "/usr/bin/uwsgi"
first = probe.finish(probe.start(os.environ))
second = probe.start_in_process(os.environ, first).result(30.0)
index = {device.uuid: device.index for device in first.devices}
def topology(inventory):
    return {"-".join(sorted(str(index[uuid]) for uuid in pair)): what for pair, what in inventory.topology.items()}
print(json.dumps([topology(first), topology(second)]))
"""

AT = [f"0000:0{bus}:00.0" for bus in range(1, 9)]

PAIRS = [Gpu(pci=AT[place], nvlinks=[AT[place ^ 1]] * 4, path=f"{place // 2}/0/{place}") for place in range(4)]
DENIED = [PAIRS[0], Gpu(pci=AT[1], nvml="NO_PERMISSION"), *PAIRS[2:]]
ACROSS = dict.fromkeys(("0-2", "0-3", "1-2", "1-3"), 10)
SWITCHED = [Gpu(pci=AT[place], nvlinks=["0000:c4:00.0", "0000:c5:00.0"] * 6) for place in range(8)]
PLAIN = [Gpu(path=f"{place // 4}/{place // 2}/{place}") for place in range(8)]
EIGHT = [(one, other) for other in range(8) for one in range(other)]


def near(one, other):
    return 30 if one // 2 == other // 2 else 20 if one // 4 == other // 4 else 10


@pytest.mark.parametrize(
    ("gpus", "expected", "asked"),
    [
        pytest.param(PAIRS, {"0-1": 100, "2-3": 100, **ACROSS}, {"p2p": 6, "ancestor": 4}, id="nvlink-pairs"),
        pytest.param(SWITCHED, {f"{a}-{b}": 100 for a, b in EIGHT}, {"p2p": 28}, id="nvswitch"),
        pytest.param(PLAIN, {f"{a}-{b}": near(a, b) for a, b in EIGHT}, {"p2p": 28, "ancestor": 28}, id="no-nvlink"),
        pytest.param([Gpu()], {}, {}, id="one-gpu"),
        pytest.param([*PAIRS[:2], Gpu(unsupported=["p2p", "topology"])], {"0-1": 100}, {"p2p": 1}, id="unsupported"),
        pytest.param(DENIED, {"2-3": 100, "0-2": 10, "0-3": 10}, {"p2p": 3, "ancestor": 2}, id="denied-partner"),
    ],
)
def test_topology_is_read_with_few_nvml_calls(tmp_path, gpus, expected, asked):
    with Server(gpus, folder=tmp_path) as server:
        done = server.run([sys.executable, "-c", READ], timeout=60)
        calls = Counter(call.call for call in server.calls() if call.call in ("p2p", "ancestor"))
    assert (done.returncode, done.stderr) == (0, "")
    assert (json.loads(done.stdout), dict(calls)) == ([expected, expected], asked)


def test_thread_reads_the_topology_if_python_is_embedded(tmp_path):
    with Server(PAIRS, folder=tmp_path) as server:
        done = server.run([sys.executable, "-c", READ, "embedded"], timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == [{"0-1": 100, "2-3": 100, **ACROSS}] * 2


# Reads the GPUs, waits for a line on stdin, and then reads the topology.
IN_STEPS = """
import json, sys, threading
from autogpu._vendor import pynvml
from autogpu.devices import nvml

ask, lock, told = pynvml.nvmlDeviceGetP2PStatus, threading.Lock(), []
def ask_when_told(*arguments):
    with lock:
        if not told:
            print("read", flush=True)
            told.append(sys.stdin.readline())
    return ask(*arguments)
pynvml.nvmlDeviceGetP2PStatus = ask_when_told
reading = nvml.read_inventory()
index = {device["uuid"]: device["index"] for device in reading["devices"]}
print(json.dumps({f"{index[one]}-{index[other]}": what for (one, other), what in reading["topology"]}))
"""


@pytest.mark.parametrize("fault", ["GPU_IS_LOST", "UNKNOWN"])
def test_gpu_that_fails_after_its_reading_loses_its_connections(tmp_path, fault):
    with Server(PAIRS, folder=tmp_path) as server:
        pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        reading = server.popen([sys.executable, "-c", IN_STEPS], **pipes)
        assert reading.stdout.readline() == "read\n"
        server.change(3, nvml=fault)
        told, errors = reading.communicate("go on\n", timeout=60)
    assert (reading.returncode, errors) == (0, "")
    assert json.loads(told) == {"0-1": 100, "0-2": 10, "1-2": 10}
