"""GPUs whose device file a process can't open: in containers, and in jobs with a device cgroup."""

import pytest

from tests.gpusim import Gpu
from tests.support.simulator_client import device_files, run_cuda, run_nvml, seen_by_cuda


@pytest.fixture
def three(server_of, tmp_path):
    """Start a server of three GPUs, of which those with these numbers have a file."""

    return lambda *numbers, **options: server_of(*[Gpu()] * 3, device_files=device_files(tmp_path, *numbers), **options)


@pytest.mark.parametrize("denied", ["refuse", "omit"])
def test_cuda_passes_over_a_denied_gpu(three, denied):
    server = three(0, 2, denied=denied)
    first, second, third = (gpu.uuid for gpu in server.gpus)
    environs = [{}, {"CUDA_VISIBLE_DEVICES": "1"}, {"CUDA_VISIBLE_DEVICES": second}]
    assert seen_by_cuda(server, environs) == [[first, third], [third], []]


REFUSED, NOT_FOUND, INVALID = "NVMLError_NoPermission", "NVMLError_NotFound", "NVMLError_InvalidArgument"


@pytest.mark.parametrize(
    ("denied", "count", "by_index", "by_name"),
    [
        pytest.param("refuse", 3, [[0, 0], REFUSED, [2, 2]], REFUSED, id="counted-and-refused"),
        pytest.param("omit", 2, [[0, 0], [1, 2], INVALID], NOT_FOUND, id="omitted-and-the-others-numbered-anew"),
    ],
)
def test_what_nvml_says_of_a_denied_gpu(three, denied, count, by_index, by_name):
    server = three(0, 2, denied=denied)
    said = run_nvml(
        server,
        f"""
        def about(gpu):
            readers = "nvmlDeviceGetIndex", "nvmlDeviceGetMinorNumber", "nvmlDeviceGetUUID"
            return gpu if isinstance(gpu, str) else [ask(name, gpu) for name in readers]

        nvml.nvmlInit()
        say(nvml.nvmlDeviceGetCount())
        say(*[about(ask("nvmlDeviceGetHandleByIndex", index)) for index in range(3)])
        say(ask("nvmlDeviceGetHandleByUUID", {server.gpus[1].uuid!r}))
        say(ask("nvmlDeviceGetHandleByPciBusId", {server.gpus[1].pci!r}))
        """,
    )
    with_uuids = [each if isinstance(each, str) else [*each, server.gpus[each[1]].uuid] for each in by_index]
    assert said == [[count], with_uuids, [by_name], [by_name]]


def test_calls_are_logged_by_the_position_on_the_machine(three):
    server = three(0, 2, denied="omit")
    assert run_cuda(server, "cuda.cuInit(0); say(context(1), allocate(1 << 20)[0])") == [[0, 0]]
    assert [call.gpu for call in server.calls() if call.gpu is not None] == [2, 2]


def test_a_gpu_that_is_denied_later_refuses_a_handle_from_before(three, tmp_path):
    program = f"""
        nvml.nvmlInit()
        gpu = nvml.nvmlDeviceGetHandleByIndex(0)
        say(ask("nvmlDeviceGetIndex", gpu))
        os.unlink({str(tmp_path / "dev" / "nvidia0")!r})
        say(ask("nvmlDeviceGetIndex", gpu))
    """
    assert run_nvml(three(0, 2), program) == [[0], [REFUSED]]


@pytest.mark.parametrize(("denied", "count"), [("refuse", 3), ("omit", 0)])
def test_without_any_device_file_no_gpu_is_left(three, denied, count):
    server = three(denied=denied)
    assert run_cuda(server, "say(cuda.cuInit(0))") == [[100]]
    assert run_nvml(server, "nvml.nvmlInit(); say(nvml.nvmlDeviceGetCount())") == [[count]]
