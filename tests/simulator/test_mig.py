"""Cards in MIG mode: what NVML and CUDA show of their instances."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.gpusim import FleetError, Gpu, Instance, Server, read_fleet
from tests.gpusim.fleets import A100, H100
from tests.support import simulator_client
from tests.support.simulator_client import GIB, MIB, hold, run_cuda

nvml_python, run_nvml = simulator_client.nvml_python, simulator_client.run_nvml

BEFORE_R470, BEFORE_R570, R570 = "460.73.01", "550.54.15", "570.133.20"
BALANCED = ("3g.20gb", "2g.10gb", "1g.5gb", "1g.5gb")
MISSING, NOT_FOUND, INVALID = "NVMLError_NotSupported", "NVMLError_NotFound", "NVMLError_InvalidArgument"


def a100(*mig: str | Instance, **fields) -> Gpu:
    return Gpu(**{**vars(A100), "mig": mig, **fields})


def uuids(server: Server) -> list[str]:
    return [each.uuid for each in server.instances]


# ---- NVML ----

ABOUT_INSTANCES = """
    nvml.nvmlInit()
    card = nvml.nvmlDeviceGetHandleByIndex(0)
    for index in range(nvml.nvmlDeviceGetMaxMigDeviceCount(card)):
        gpu = ask("nvmlDeviceGetMigDeviceHandleByIndex", card, index)
        if isinstance(gpu, str):
            say(gpu)
            continue
        attributes = nvml.nvmlDeviceGetAttributes_v2(gpu)
        say(
            nvml.nvmlDeviceGetName(gpu), nvml.nvmlDeviceGetUUID(gpu), nvml.nvmlDeviceGetIndex(gpu),
            nvml.nvmlDeviceGetGpuInstanceId(gpu), nvml.nvmlDeviceGetComputeInstanceId(gpu),
            nvml.nvmlDeviceGetMemoryInfo(gpu).total >> 20, attributes.multiprocessorCount, attributes.memorySizeMB,
            attributes.gpuInstanceSliceCount, nvml.nvmlDeviceIsMigDeviceHandle(gpu).value,
            nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(gpu)),
        )
"""


def test_nvml_describes_the_instances_of_a_card(tmp_path, run_nvml):
    with Server([a100("3g.20gb", "2g.10gb", "", "1g.5gb")], folder=tmp_path) as server:
        said = run_nvml(server, ABOUT_INSTANCES)
        names, card = uuids(server), server.gpus[0].uuid
    assert said == [
        ["NVIDIA A100-SXM4-40GB MIG 3g.20gb", names[0], 0, 2, 0, 20096, 42, 20096, 3, 1, card],
        ["NVIDIA A100-SXM4-40GB MIG 2g.10gb", names[1], 1, 3, 0, 9984, 28, 9984, 2, 1, card],
        [NOT_FOUND],
        ["NVIDIA A100-SXM4-40GB MIG 1g.5gb", names[2], 3, 9, 0, 4864, 14, 4864, 1, 1, card],
        *[[NOT_FOUND]] * 3,
    ]
    assert all(name.startswith("MIG-") for name in names)
    assert len(set(names)) == 3


def test_an_older_driver_names_an_instance_by_its_card(tmp_path, run_nvml):
    with Server([a100(*BALANCED)], folder=tmp_path, driver=BEFORE_R470) as server:
        said = run_nvml(server, ABOUT_INSTANCES)
        card = server.gpus[0].uuid
        assert uuids(server) == [f"MIG-{card}/{number}/0" for number in (2, 3, 9, 10)]
        assert [each[1] for each in said[:4]] == uuids(server)


@pytest.mark.parametrize(
    ("gpu", "mode", "most", "instance"),
    [
        pytest.param(a100(*BALANCED), [1, 1], 7, INVALID, id="cut"),
        pytest.param(a100(), [1, 1], 7, INVALID, id="in-the-mode-without-instances"),
        pytest.param(A100, [0, 0], 0, INVALID, id="whole"),
        pytest.param(Gpu(), MISSING, 0, MISSING, id="a-card-that-cannot"),
    ],
)
def test_the_mode_of_a_card(tmp_path, run_nvml, gpu, mode, most, instance):
    program = """
        nvml.nvmlInit()
        card = nvml.nvmlDeviceGetHandleByIndex(0)
        say(ask("nvmlDeviceGetMigMode", card), ask("nvmlDeviceGetMaxMigDeviceCount", card),
            nvml.nvmlDeviceIsMigDeviceHandle(card).value, ask("nvmlDeviceGetMigDeviceHandleByIndex", card, 7),
            ask("nvmlDeviceGetGpuInstanceId", card), ask("nvmlDeviceGetAttributes_v2", card), nvml.nvmlDeviceGetCount())
    """
    with Server([gpu], folder=tmp_path) as server:
        assert run_nvml(server, program) == [[mode, most, 0, instance, instance, MISSING, 1]]


READINGS_OF_CARDS = """
    nvml.nvmlInit()
    card = nvml.nvmlDeviceGetHandleByIndex(0)
    instance = nvml.nvmlDeviceGetMigDeviceHandleByIndex(card, 0)
    for gpu in (card, instance):
        say(*[name for name, *more in (
            ("nvmlDeviceGetMemoryInfo",), ("nvmlDeviceGetComputeRunningProcesses",),
            ("nvmlDeviceGetGraphicsRunningProcesses",), ("nvmlDeviceGetPowerUsage",), ("nvmlDeviceGetTemperature", 0),
            ("nvmlDeviceGetPciInfo",), ("nvmlDeviceGetComputeMode",), ("nvmlDeviceGetCudaComputeCapability",),
            ("nvmlDeviceGetMigMode",), ("nvmlDeviceGetUtilizationRates",), ("nvmlDeviceGetSamples", 1, 0),
            ("nvmlDeviceGetEncoderUtilization",), ("nvmlDeviceGetRemappedRows",), ("nvmlDeviceGetEccMode",),
            ("nvmlDeviceGetMinorNumber",), ("nvmlDeviceGetNvLinkState", 0), ("nvmlDeviceGetNumGpuCores",),
        ) if ask(name, gpu, *more) == "NVMLError_NotSupported"])
"""


def test_readings_that_a_card_in_mig_mode_and_its_instances_lack(tmp_path, run_nvml):
    card = a100(*BALANCED, ecc=True, utilization=50, nvlinks=["0000:ff:00.0"])
    with Server([card], folder=tmp_path) as server:
        of_card, of_instance = run_nvml(server, READINGS_OF_CARDS)
    assert of_card == [
        "nvmlDeviceGetUtilizationRates",
        "nvmlDeviceGetSamples",
        "nvmlDeviceGetEncoderUtilization",
        "nvmlDeviceGetRemappedRows",
        "nvmlDeviceGetNumGpuCores",
    ]
    assert of_instance == [
        "nvmlDeviceGetPowerUsage",
        "nvmlDeviceGetTemperature",
        "nvmlDeviceGetPciInfo",
        "nvmlDeviceGetComputeMode",
        "nvmlDeviceGetCudaComputeCapability",
        "nvmlDeviceGetMigMode",
        "nvmlDeviceGetUtilizationRates",
        "nvmlDeviceGetSamples",
        "nvmlDeviceGetEncoderUtilization",
        "nvmlDeviceGetRemappedRows",
        "nvmlDeviceGetEccMode",
        "nvmlDeviceGetMinorNumber",
        "nvmlDeviceGetNvLinkState",
        "nvmlDeviceGetNumGpuCores",
    ]


def test_nvml_finds_an_instance_by_either_name(tmp_path, run_nvml):
    program = """
        nvml.nvmlInit()
        say(*[nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetHandleByUUID(name)) for name in {names!r}])
        say(ask("nvmlDeviceGetHandleByUUID", {card!r} + "/4/0"))
    """
    with Server([Gpu(), a100(*BALANCED)], folder=tmp_path) as server:
        first, card = uuids(server)[0], f"MIG-{server.gpus[1].uuid}"
        assert run_nvml(server, program.format(names=[first, f"{card}/2/0"], card=card)) == [[first] * 2, [NOT_FOUND]]


PROCESSES = """
    def on(gpu):
        none = 0xFFFFFFFF
        return nvml.nvmlDeviceGetMemoryInfo(gpu).used >> 20, [
            [p.pid, p.usedGpuMemory >> 20, *[None if n == none else n for n in (p.gpuInstanceId, p.computeInstanceId)]]
            for p in nvml.nvmlDeviceGetComputeRunningProcesses(gpu)]

    nvml.nvmlInit()
    card = nvml.nvmlDeviceGetHandleByIndex(0)
    say(*on(card))
    for index in range(3):
        say(*on(nvml.nvmlDeviceGetMigDeviceHandleByIndex(card, index)))
    whole = nvml.nvmlDeviceGetHandleByIndex(1)
    say(*on(whole))
"""


def test_memory_and_processes_are_of_the_instance_and_of_its_card(tmp_path, run_nvml):
    others = Instance("2g.10gb", used="1GiB", processes={5004242: "2GiB"})
    cards = [a100("3g.20gb", others, "1g.5gb"), Gpu(processes={5000001: "1GiB"})]
    with Server(cards, folder=tmp_path) as server:
        own = hold(server, 0, GIB, CUDA_VISIBLE_DEVICES=uuids(server)[2])
        said = run_nvml(server, PROCESSES)
        assert server.used_bytes(0, 2) == GIB + 256 * MIB
        assert server.used_bytes(0) == 4 * GIB + 256 * MIB
        assert [(call.call, call.gpu, call.instance) for call in server.calls(pid=own.pid)] == [
            ("cuInit", None, None),
            ("context", 0, 2),
            ("allocate", 0, 2),
        ]
    stranger, ours = [5004242, 2048, 3, 0], [own.pid, 1280, 9, 0]
    assert said == [
        [4352, [stranger, ours]],
        [0, []],
        [3072, [stranger]],
        [1280, [ours]],
        [1024, [[5000001, 1024, None, None]]],
    ]


def test_load_moves_on_an_instance_and_a_fault_is_its_own(tmp_path, run_nvml):
    program = """
        nvml.nvmlInit()
        card = nvml.nvmlDeviceGetHandleByIndex(0)
        for index in range(2):
            gpu = ask("nvmlDeviceGetMigDeviceHandleByIndex", card, index)
            say(gpu if isinstance(gpu, str) else nvml.nvmlDeviceGetMemoryInfo(gpu).used >> 20)
    """
    with Server([a100("3g.20gb", "1g.5gb")], folder=tmp_path) as server:
        assert run_nvml(server, program) == [[0], [0]]
        server.change(0, instance=1, processes={5000001: "1GiB"})
        assert run_nvml(server, program) == [[0], [1024]]
        server.change(0, instance=0, nvml="GPU_IS_LOST")
        assert run_nvml(server, program) == [["NVMLError_GpuIsLost"], [1024]]
        server.change(0, nvml="UNKNOWN")
        said = run_nvml(server, 'nvml.nvmlInit(); say(ask("nvmlDeviceGetHandleByIndex", 0))')
        assert said == [["NVMLError_Unknown"]]
        by_name = f'nvml.nvmlInit(); say(ask("nvmlDeviceGetHandleByUUID", {uuids(server)[1]!r}))'
        assert run_nvml(server, by_name) == [["NVMLError_Unknown"]]


# ---- CUDA ----

SEEN = """
    error = cuda.cuInit(0)
    say(*([uuid(i, "cuDeviceGetUuid_v2")[4:] for i in range(count())] if error == 0 else [error]))
"""


def seen(server: Server, **environ: str) -> list[str]:
    """What CUDA shows, in letters: A, B for whole cards, and a0, a1 for the instances of the first one."""
    said = run_cuda(server, SEEN, CUDA_DEVICE_ORDER="PCI_BUS_ID", **environ)[0]
    names = {gpu.uuid[4:]: chr(ord("A") + place) for place, gpu in enumerate(server.gpus)}
    names.update({each.uuid[4:]: f"{chr(ord('a') + each.card)}{each.index}" for each in server.instances})
    return [] if said == [100] else [names[each] for each in said]


def in_full(server: Server, visible: str) -> str:
    """``A,a0,a0:old`` as a value for CUDA_VISIBLE_DEVICES; other words stay."""
    names = {chr(ord("A") + place): gpu.uuid for place, gpu in enumerate(server.gpus)}
    for each in server.instances:
        short = f"{chr(ord('a') + each.card)}{each.index}"
        names[short] = each.uuid
        names[f"{short}:old"] = f"MIG-{server.gpus[each.card].uuid}/{each.gpu_instance}/0"
    return ",".join(names.get(word, word) for word in visible.split(","))


@pytest.fixture(scope="module", params=[BEFORE_R570, R570], ids=["before-R570", "R570"])
def mixed(request, tmp_path_factory):
    """A: cut in two; B: whole; C: in MIG mode without instances; D: cut in two; E: whole."""
    cards = [a100("3g.20gb", "1g.5gb"), A100, a100(), a100("2g.10gb", "2g.10gb"), A100]
    with Server(cards, folder=tmp_path_factory.mktemp("mixed"), driver=request.param) as server:
        yield server, request.param == BEFORE_R570


@pytest.mark.parametrize(
    ("visible", "before", "since"),
    [
        pytest.param(None, "a0", "B E a0 a1 d0 d1", id="not-set"),
        pytest.param("0", "B", "B", id="whole-cards-are-numbered-first"),
        pytest.param("1", "E", "E", id="second-whole-card"),
        pytest.param("2", "a0", "a0", id="then-instances"),
        pytest.param("3", "d0", "a1", id="before-one-of-each-card"),
        pytest.param("4", "", "d0", id="no-more-numbers-before"),
        pytest.param("0,1", "B E", "B E", id="whole-cards"),
        pytest.param("2,3", "a0", "a0 a1", id="two-numbers-of-instances"),
        pytest.param("0,3", "d0", "B a1", id="whole-and-instance-by-number"),
        pytest.param("a1", "a1", "a1", id="instance"),
        pytest.param("a1,d0", "a1", "a1 d0", id="two-instances"),
        pytest.param("B,d1", "d1", "B d1", id="whole-and-instance"),
        pytest.param("B,E", "B E", "B E", id="two-whole-by-name"),
        pytest.param("a1:old", "a1", "a1", id="older-name"),
        pytest.param("a1:old,a1", "", "", id="twice-by-both-names"),
        pytest.param("a1,a1", "", "", id="twice"),
        pytest.param("A", "a0", "a0", id="card-in-mig-mode-by-name"),
        pytest.param("C", "", "", id="card-without-instances"),
        pytest.param("a1,nonsense,d0", "a1", "a1", id="ends-at-an-invalid-entry"),
        pytest.param("a1,0", "a1", "a1", id="kinds-are-not-mixed"),
        pytest.param("MIG-00000000-0000-0000-0000-000000000000", "", "", id="unknown"),
        pytest.param("MIG-", "", "", id="no-abbreviation"),
        pytest.param("mig-", "", "", id="lower-case"),
    ],
)
def test_visible_devices(mixed, visible, before, since):
    server, is_before = mixed
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": in_full(server, visible)}
    assert " ".join(seen(server, **environ)) == (before if is_before else since)


def test_the_prefix_counts_as_written(mixed):
    server, _ = mixed
    first = uuids(server)[0]
    assert seen(server, CUDA_VISIBLE_DEVICES=f"MIG-{first[4:].upper()}") == ["a0"]
    assert seen(server, CUDA_VISIBLE_DEVICES=f"mig-{first[4:]}") == []


def test_an_older_driver_knows_no_uuid_of_an_instance(tmp_path):
    with Server([a100("3g.20gb", "1g.5gb")], folder=tmp_path, driver=BEFORE_R470) as server:
        program = """
            size = ctypes.c_size_t()
            say(cuda.cuInit(0), count(), call("cuDeviceTotalMem_v2", ctypes.byref(size), 0), size.value >> 20)
        """
        named = f"MIG-{server.gpus[0].uuid}/9/0"
        assert run_cuda(server, program, CUDA_VISIBLE_DEVICES=named) == [[0, 1, 0, 4864]]
        not_named = server.gpus[0].instances[1].uuid
        assert run_cuda(server, "say(cuda.cuInit(0))", CUDA_VISIBLE_DEVICES=not_named) == [[100]]


def test_cuda_describes_an_instance(tmp_path):
    program = """
        name, size, processors = ctypes.create_string_buffer(99), ctypes.c_size_t(), ctypes.c_int()
        cuda.cuInit(0)
        call("cuDeviceGetName", name, 99, 0)
        call("cuDeviceTotalMem_v2", ctypes.byref(size), 0)
        call("cuDeviceGetAttribute", ctypes.byref(processors), 16, 0)
        say(name.value.decode(), size.value >> 20, processors.value)
        say(uuid(0), uuid(0, "cuDeviceGetUuid_v2"))
        say(context(0), allocate(4 << 30)[0], allocate(1 << 30)[0])
    """
    with Server([a100(*BALANCED)], folder=tmp_path) as server:
        one = server.instances[3]
        said = run_cuda(server, program, CUDA_VISIBLE_DEVICES=one.uuid)
        out_of_memory = 2
        assert said == [
            ["NVIDIA A100-SXM4-40GB MIG 1g.5gb", 4864, 14],
            [server.gpus[0].uuid, f"GPU-{one.uuid[4:]}"],
            [0, 0, out_of_memory],
        ]
        refused = [(call.gpu, call.instance) for call in server.calls(call="refused")]
        assert refused == [(0, 3)]


def test_a_full_instance_leaves_its_neighbour_alone(tmp_path):
    with Server([a100("1g.5gb", Instance("1g.5gb", used="4GiB"))], folder=tmp_path) as server:
        program = "cuda.cuInit(0); say(context(0), allocate(1 << 30)[0])"
        first, second = (run_cuda(server, program, CUDA_VISIBLE_DEVICES=name)[0] for name in uuids(server))
    assert (first, second) == ([0, 0], [0, 2])


# ---- containers ----


def device_files(folder: Path, *files: str) -> str:
    for file in files:
        path = folder / "dev" / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return str(folder / "dev")


def test_a_container_has_one_instance_alone(tmp_path, run_nvml):
    program = """
        nvml.nvmlInit()
        say(nvml.nvmlDeviceGetCount())
        card = nvml.nvmlDeviceGetHandleByIndex(0)
        say(ask("nvmlDeviceGetMemoryInfo", card), ask("nvmlDeviceGetComputeRunningProcesses", card))
        gpu = nvml.nvmlDeviceGetMigDeviceHandleByIndex(card, 0)
        say(nvml.nvmlDeviceGetUUID(gpu), nvml.nvmlDeviceGetIndex(gpu), nvml.nvmlDeviceGetMemoryInfo(gpu).total >> 20)
        say(ask("nvmlDeviceGetMigDeviceHandleByIndex", card, 1))
        say(*[ask("nvmlDeviceGetHandleByUUID", name) if i else 0 for i, name in enumerate({names!r})])
    """
    folder = device_files(tmp_path, "nvidia0", "nvidia-caps/gpu0/gi3/access")
    cards = [a100(*BALANCED), a100(*BALANCED)]
    with Server(cards, folder=tmp_path, device_files=folder, denied="omit") as server:
        one, other = server.instances[1], server.instances[0]
        refused = "NVMLError_NoPermission"
        assert run_nvml(server, program.format(names=[one.uuid, other.uuid])) == [
            [1],
            [refused, refused],
            [one.uuid, 0, 9984],
            [NOT_FOUND],
            [0, NOT_FOUND],
        ]
        assert seen(server) == ["a1"]
        assert seen(server, CUDA_VISIBLE_DEVICES="0") == ["a1"]
        assert seen(server, CUDA_VISIBLE_DEVICES=other.uuid) == []


def test_who_may_monitor_sees_the_card_as_a_whole(tmp_path, run_nvml):
    program = """
        nvml.nvmlInit()
        say(nvml.nvmlDeviceGetMemoryInfo(nvml.nvmlDeviceGetHandleByIndex(0)).used >> 20)
    """
    folder = device_files(tmp_path, "nvidia0", "nvidia-caps/gpu0/gi3/access", "nvidia-caps/monitor")
    cards = [a100("3g.20gb", Instance("2g.10gb", used="1GiB"))]
    with Server(cards, folder=tmp_path, device_files=folder) as server:
        assert run_nvml(server, program) == [[1024]]


# ---- descriptions ----


def test_a_file_describes_instances(tmp_path):
    described = tmp_path / "cut.toml"
    described.write_text(
        """
        [[gpu]]
        name = "NVIDIA A100-SXM4-40GB"
        memory = "40960MiB"
        mig = ["3g.20gb", { profile = "2g.10gb", processes = { 5004242 = "6GiB" } }, "", "1g.5gb"]
        [[gpu]]
        name = "NVIDIA H100 80GB HBM3"
        memory = "81559MiB"
        mig = []
        [[gpu]]
        """
    )
    fleet = read_fleet(described)
    assert [(each.card, each.index, each.name) for each in fleet.instances] == [
        (0, 0, "NVIDIA A100-SXM4-40GB MIG 3g.20gb"),
        (0, 1, "NVIDIA A100-SXM4-40GB MIG 2g.10gb"),
        (0, 3, "NVIDIA A100-SXM4-40GB MIG 1g.5gb"),
    ]
    assert fleet.instances[1].instance.processes == {5004242: "6GiB"}
    assert [gpu.mig is None for gpu in fleet.gpus] == [False, False, True]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        pytest.param('mig = "1g.5gb"', "mig: '1g.5gb' is not a list of up to 7 profiles such as", id="no-list"),
        pytest.param(
            'mig = ["1g.6gb"]',
            "mig: '1g.6gb' is no profile of NVIDIA A100-SXM4-40GB; there are 1g.5gb, 1g.10gb, 2g.10gb,",
            id="no-profile",
        ),
        pytest.param(
            'mig = ["4g.20gb", "3g.20gb", "1g.5gb"]',
            "mig: 4g.20gb, 3g.20gb, 1g.5gb do not fit on one NVIDIA A100-SXM4-40GB",
            id="too-much",
        ),
        pytest.param(
            'mig = ["2g.10gb", "2g.10gb", "2g.10gb", "2g.10gb"]', "2g.10gb do not fit on one", id="no-place-left"
        ),
        pytest.param('mig = [{ profile = "1g.5gb", utilization = 3 }]', "mig 0: utilization: no such key", id="key"),
        pytest.param('mig = [{ profile = "1g.5gb", used = "x" }]', "mig 0: used: 'x' is not a size", id="value"),
        pytest.param('mig = []\nprocesses = { 5004242 = "1GiB" }', "processes: on a card in MIG mode", id="processes"),
        pytest.param(
            'mig = ["1g.5gb"]\nname = "NVIDIA TITAN RTX"',
            "mig: nothing is known of how NVIDIA TITAN RTX is cut",
            id="card",
        ),
    ],
)
def test_an_impossible_cut_is_refused_with_its_reason(tmp_path, line, message):
    described = tmp_path / "cut.toml"
    name = "" if "name" in line else 'name = "NVIDIA A100-SXM4-40GB"'
    described.write_text(f'[[gpu]]\n{name}\nmemory = "40960MiB"\n{line}\n')
    with pytest.raises(FleetError) as caught:
        read_fleet(described)
    assert f"{described}: gpu 0: " in str(caught.value)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("card", "cut", "memory_mib", "gpu_instances"),
    [
        (A100, BALANCED, [20096, 9984, 4864, 4864], [2, 3, 9, 10]),
        (A100, ("1g.5gb",) * 7, [4864] * 7, [7, 8, 9, 10, 11, 12, 13]),
        (A100, ("4g.20gb", "3g.20gb"), [20096, 20096], [2, 1]),
        (A100, ("7g.40gb",), [40320], [0]),
        (H100, ("3g.40gb", "2g.20gb"), [40448, 20096], [2, 3]),
    ],
)
def test_instances_have_the_published_figures(tmp_path, card, cut, memory_mib, gpu_instances):
    with Server([Gpu(**{**vars(card), "mig": cut})], folder=tmp_path) as server:
        assert [each.memory_bytes // MIB for each in server.instances] == memory_mib
        assert [each.gpu_instance for each in server.instances] == gpu_instances


def test_an_instance_fails_cuda_as_nvml(tmp_path):
    with Server([a100(Instance("1g.5gb", nvml="GPU_IS_LOST"), "1g.5gb")], folder=tmp_path) as server:
        lost, well = uuids(server)
        program = "say(cuda.cuInit(0), context(0))"
        unknown = 999
        assert run_cuda(server, program, CUDA_VISIBLE_DEVICES=lost) == [[0, unknown]]
        assert run_cuda(server, program, CUDA_VISIBLE_DEVICES=well) == [[0, 0]]
