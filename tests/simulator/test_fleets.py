"""Servers as they are sold."""

import json

import pytest

from tests.gpusim.fleets import FLEETS
from tests.support.simulator_client import NVML, PYTHON, lines_of

# What connects the two that `autogpu pick` takes, as NVML tells it.
CONNECTED = {
    "t4": ("2,3", None),
    "rtx-2080-ti": ("2,3", 100),
    "rtx-4090": ("6,7", 30),
    "l40s": ("2,3", None),
    **dict.fromkeys(("dgx-a100", "h100", "h200", "b200"), ("6,7", 100)),
    "gb200": ("2,3", 100),
    # Of its cards that are whole.
    "a100-mig": ("2,3", 100),
}

TELL = f"""{NVML}
import contextlib, io
from autogpu.cli.main import cli
from autogpu.devices import probe

for name, environ in json.load(sys.stdin).items():
    if os.fork():
        os.wait()
        continue
    os.environ.update(environ)
    nvml.nvmlInit()
    gpus = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
    with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()) as said:
        cli(["pick", "--count", "2", "--format", "index"], standalone_mode=False)
    inventory, picked = probe.finish(probe.start(os.environ)), ",".join(sorted(said.getvalue().strip().split(",")))
    pair = frozenset(each.uuid for each in inventory.devices if each.parent is None and str(each.index) in picked)
    say(name, [
        [nvml.nvmlDeviceGetName(gpu), nvml.nvmlDeviceGetMemoryInfo(gpu).total >> 20,
         "%d.%d" % nvml.nvmlDeviceGetCudaComputeCapability(gpu), nvml.nvmlDeviceGetPciInfo(gpu).busId[4:].lower()]
        for gpu in gpus], [picked, inventory.topology.get(pair)])
    os._exit(0)
"""


@pytest.mark.slow
def test_nvml_shows_each_server_and_what_connects_its_gpus(server_of):
    servers = {name: server_of(*fleet.gpus) for name, fleet in FLEETS.items()}
    environs = {name: server.environ for name, server in servers.items()}
    done = servers["t4"].run([PYTHON, "-c", TELL], input=json.dumps(environs))
    shown = {name: (gpus, connected) for name, gpus, connected in lines_of(done)}
    assert shown == {
        name: (
            [[gpu.name, gpu.memory_bytes >> 20, gpu.compute_capability, gpu.pci] for gpu in fleet.gpus],
            list(CONNECTED[name]),
        )
        for name, fleet in FLEETS.items()
    }
    assert {len(gpus) for gpus, _ in shown.values()} == {4, 8}
