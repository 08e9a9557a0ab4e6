"""Servers as they are sold."""

from __future__ import annotations

import json

import pytest

from tests.gpusim.fleets import FLEETS
from tests.support.simulator_client import NVML, PYTHON, lines_of

# What `autogpu pick` says of the two that it takes; None where nothing is published of what connects them.
CONNECTED = {
    "t4": None,
    "rtx-2080-ti": "2 NVLinks between GPU 2 and GPU 3",
    "rtx-4090": "one PCIe host bridge between GPU 6 and GPU 7",
    "l40s": None,
    "dgx-a100": "NVSwitch between GPU 6 and GPU 7",
    "h100": "NVSwitch between GPU 6 and GPU 7",
    "h200": "NVSwitch between GPU 6 and GPU 7",
    "b200": "NVSwitch between GPU 6 and GPU 7",
    "gb200": "NVSwitch between GPU 2 and GPU 3",
    # Of its cards that are whole.
    "a100-mig": "NVSwitch between GPU 2 and GPU 3",
}

TELL = f"""{NVML}
import contextlib, io
from autogpu.cli.main import cli

for name, environ in json.load(sys.stdin).items():
    if os.fork():
        os.wait()
        continue
    os.environ.update(environ)
    nvml.nvmlInit()
    gpus = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
    with contextlib.redirect_stderr(io.StringIO()) as said, contextlib.redirect_stdout(io.StringIO()):
        cli(["pick", "--count", "2", "--explain"], standalone_mode=False)
    say(name, [
        [nvml.nvmlDeviceGetName(gpu), nvml.nvmlDeviceGetMemoryInfo(gpu).total >> 20,
         "%d.%d" % nvml.nvmlDeviceGetCudaComputeCapability(gpu), nvml.nvmlDeviceGetPciInfo(gpu).busId[4:].lower()]
        for gpu in gpus], [line for line in said.getvalue().splitlines() if " between " in line])
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
            [f"autogpu:   {CONNECTED[name]}"] if CONNECTED[name] else [],
        )
        for name, fleet in FLEETS.items()
    }
    assert {len(gpus) for gpus, _ in shown.values()} == {4, 8}
