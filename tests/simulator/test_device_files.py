"""GPUs whose device file a process can't open: in containers, and in jobs with a device cgroup."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.gpusim import FleetError, Gpu, Server
from tests.support import simulator_client
from tests.support.simulator_client import run_cuda

nvml_python, run_nvml = simulator_client.nvml_python, simulator_client.run_nvml


def device_files(folder: Path, *numbers: int) -> str:
    """A folder with the files of these GPUs. Root opens whatever is there, so what is denied is missing."""
    made = folder / "dev"
    made.mkdir(exist_ok=True)
    for number in numbers:
        (made / f"nvidia{number}").touch()
    return str(made)


@pytest.fixture
def three(tmp_path):
    """Start a server of three GPUs, of which only the middle one is denied."""
    servers = []

    def started(**options):
        server = Server([Gpu()] * 3, folder=tmp_path, device_files=device_files(tmp_path, 0, 2), **options)
        servers.append(server)
        return server.__enter__()

    yield started
    for server in servers:
        server.__exit__(None, None, None)


@pytest.mark.parametrize("denied", ["refuse", "omit"])
def test_cuda_passes_over_a_denied_gpu(three, denied):
    server = three(denied=denied)
    uuids = [gpu.uuid for gpu in server.gpus]
    program = "cuda.cuInit(0); say(*[uuid(i) for i in range(count())])"
    assert run_cuda(server, program) == [[uuids[0], uuids[2]]]
    assert run_cuda(server, program, CUDA_VISIBLE_DEVICES="1") == [[uuids[2]]]
    assert run_cuda(server, "say(cuda.cuInit(0))", CUDA_VISIBLE_DEVICES=uuids[1]) == [[100]]


# What NVML says of each index, and of the denied GPU by its other names.
ASK = """
    def about(gpu):
        return gpu if isinstance(gpu, str) else [
            ask(name, gpu) for name in ("nvmlDeviceGetUUID", "nvmlDeviceGetIndex", "nvmlDeviceGetMinorNumber")]

    nvml.nvmlInit()
    say(nvml.nvmlDeviceGetCount())
    for index in range(3):
        say(about(ask("nvmlDeviceGetHandleByIndex", index)))
    say(*[ask("nvmlDeviceGetHandleByUUID", {uuid!r}), ask("nvmlDeviceGetHandleByPciBusId", {pci!r})])
"""


def test_nvml_counts_a_denied_gpu_and_refuses_it(three, run_nvml):
    server = three()
    uuids = [gpu.uuid for gpu in server.gpus]
    refused = "NVMLError_NoPermission"
    assert run_nvml(server, ASK.format(uuid=uuids[1], pci=server.gpus[1].pci)) == [
        [3],
        [[uuids[0], 0, 0]],
        [refused],
        [[uuids[2], 2, 2]],
        [refused, refused],
    ]


def test_nvml_omits_a_denied_gpu_and_numbers_the_others_anew(three, run_nvml):
    server = three(denied="omit")
    uuids = [gpu.uuid for gpu in server.gpus]
    missing = "NVMLError_NotFound"
    assert run_nvml(server, ASK.format(uuid=uuids[1], pci=server.gpus[1].pci)) == [
        [2],
        [[uuids[0], 0, 0]],
        [[uuids[2], 1, 2]],
        ["NVMLError_InvalidArgument"],
        [missing, missing],
    ]


def test_calls_are_logged_by_the_position_on_the_machine(three):
    server = three(denied="omit")
    assert run_cuda(server, "cuda.cuInit(0); say(context(1), allocate(1 << 20)[0])") == [[0, 0]]
    assert [call.gpu for call in server.calls() if call.gpu is not None] == [2, 2]


def test_a_gpu_that_is_denied_later_refuses_a_handle_from_before(three, run_nvml, tmp_path):
    program = """
        nvml.nvmlInit()
        gpu = nvml.nvmlDeviceGetHandleByIndex(0)
        say(ask("nvmlDeviceGetIndex", gpu))
        os.unlink({file!r})
        say(ask("nvmlDeviceGetIndex", gpu))
    """
    server = three()
    assert run_nvml(server, program.format(file=str(tmp_path / "dev" / "nvidia0"))) == [[0], ["NVMLError_NoPermission"]]


@pytest.mark.parametrize("denied", ["refuse", "omit"])
def test_without_any_device_file_no_gpu_is_left(tmp_path, run_nvml, denied):
    with Server([Gpu()] * 2, folder=tmp_path, device_files=device_files(tmp_path), denied=denied) as server:
        assert run_cuda(server, "say(cuda.cuInit(0))") == [[100]]
        counted = run_nvml(server, "nvml.nvmlInit(); say(nvml.nvmlDeviceGetCount())")
    assert counted == [[2 if denied == "refuse" else 0]]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"device_files": "dev"}, "device_files: 'dev' is not a path from the root of up to 1023 characters, or \"\""),
        ({"denied": "hide"}, "denied: 'hide' is not one of refuse, omit"),
    ],
)
def test_an_impossible_answer_is_refused_by_its_key(tmp_path, fields, message):
    with pytest.raises(FleetError) as caught:
        Server([Gpu()], folder=tmp_path, **fields)
    assert str(caught.value) == message
