"""What NVML says connects the simulated GPUs."""

from __future__ import annotations

import pytest

from tests.gpusim import FleetError, Gpu, Server
from tests.support import simulator_client

nvml_python, run_nvml = simulator_client.nvml_python, simulator_client.run_nvml

ONE, TWO, SWITCH, OTHER_SWITCH = "0000:01:00.0", "0000:02:00.0", "0000:c1:00.0", "0000:c2:00.0"

ASK = """
    nvml.nvmlInit()
    first, second = map(nvml.nvmlDeviceGetHandleByIndex, range(2))
    def remote(link):
        found = ask("nvmlDeviceGetNvLinkRemotePciInfo", first, link)
        return getattr(found, "busId", found)
    for link in range(3):
        say(ask("nvmlDeviceGetNvLinkState", first, link), remote(link),
            ask("nvmlDeviceGetNvLinkRemoteDeviceType", first, link))
    say(ask("nvmlDeviceGetP2PStatus", first, second, nvml.NVML_P2P_CAPS_INDEX_NVLINK),
        ask("nvmlDeviceGetTopologyCommonAncestor", first, second))
"""
INVALID, LACKS = ["NVMLError_InvalidArgument"] * 3, ["NVMLError_NotSupported"] * 3


@pytest.mark.parametrize(
    ("links", "links_of_second", "told", "p2p"),
    [
        pytest.param((), (), [LACKS] * 3, 5, id="no-nvlink"),
        pytest.param(
            ("", TWO),
            (ONE,),
            [[0, "NVMLError_NotSupported", 255], [1, "00000000:02:00.0", 0], INVALID],
            0,
            id="bridge-on-one-of-two-links",
        ),
        pytest.param((SWITCH,), (SWITCH,), [[1, "00000000:C1:00.0", 2], INVALID, INVALID], 0, id="same-switch"),
        pytest.param((SWITCH,), (OTHER_SWITCH,), [[1, "00000000:C1:00.0", 2], INVALID, INVALID], 5, id="two-switches"),
        pytest.param(("",), ("",), [[0, "NVMLError_NotSupported", 255], INVALID, INVALID], 5, id="no-bridge"),
    ],
)
def test_nvlinks_lead_to_gpus_and_to_switches(tmp_path, run_nvml, links, links_of_second, told, p2p):
    gpus = [Gpu(pci=ONE, nvlinks=links), Gpu(pci=TWO, nvlinks=links_of_second)]
    with Server(gpus, folder=tmp_path) as server:
        said = run_nvml(server, ASK)
    assert said == [*told, [p2p, "NVMLError_NotSupported"]]


@pytest.mark.parametrize(
    ("paths", "level"),
    [
        pytest.param(("0/0/0/0/0", "0/0/0/0/0"), 0, id="one-board"),
        pytest.param(("0/0/0/0/0", "0/0/0/0/1"), 10, id="one-switch"),
        pytest.param(("0/0/0/0", "0/0/0/1"), 20, id="two-switches"),
        pytest.param(("0/0/0", "0/0/1"), 30, id="one-host-bridge"),
        pytest.param(("0/0", "0/1"), 40, id="one-node"),
        pytest.param(("0", "1"), 50, id="two-nodes"),
        pytest.param(("0", ""), "NVMLError_NotSupported", id="not-told"),
    ],
)
def test_gpus_are_as_near_as_their_paths_are_alike(tmp_path, run_nvml, paths, level):
    with Server([Gpu(path=path) for path in paths], folder=tmp_path) as server:
        assert run_nvml(server, ASK)[-1] == [5, level]


READERS = {
    "nvlinks": ("nvmlDeviceGetNvLinkState", 0),
    "p2p": ("nvmlDeviceGetP2PStatus", "gpu", 2),
    "topology": ("nvmlDeviceGetTopologyCommonAncestor", "gpu"),
}


@pytest.mark.parametrize("missing", READERS)
def test_a_reading_that_a_gpu_lacks_fails_alone(tmp_path, run_nvml, missing):
    program = f"""
        nvml.nvmlInit()
        gpu = nvml.nvmlDeviceGetHandleByIndex(0)
        for name, (function, *rest) in {READERS!r}.items():
            if ask(function, gpu, *[gpu if each == "gpu" else each for each in rest]) == "NVMLError_NotSupported":
                say(name)
    """
    with Server([Gpu(nvlinks=[TWO], path="0/0", unsupported=[missing])], folder=tmp_path) as server:
        assert run_nvml(server, program) == [[missing]]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"nvlinks": ["GPU 1"]}, "nvlinks: ['GPU 1'] is not a list of up to 18 addresses"),
        ({"nvlinks": [ONE] * 19}, "nvlinks: ["),
        ({"path": "0/0/0/0/0/0"}, "path: '0/0/0/0/0/0' is not up to five numbers"),
    ],
)
def test_an_impossible_connection_is_refused_by_its_key(fields, message):
    with pytest.raises(FleetError) as caught:
        Gpu(**fields)
    assert str(caught.value).startswith(message)
