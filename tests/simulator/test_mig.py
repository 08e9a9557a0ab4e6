"""Cards in MIG mode: what NVML and CUDA show of their instances."""

import dataclasses

import pytest

from tests.gpusim import Gpu, Instance
from tests.gpusim.fleets import A100
from tests.support.simulator_client import GIB, MIB, PCI, hold, run_cuda, run_nvml, seen_by_cuda

BEFORE_R570, R570 = "550.54.15", "570.133.20"
BALANCED = ("3g.20gb", "2g.10gb", "1g.5gb", "1g.5gb")
NAME = "NVIDIA A100-SXM4-40GB"
MISSING, NOT_FOUND, INVALID = "NVMLError_NotSupported", "NVMLError_NotFound", "NVMLError_InvalidArgument"


def a100(*mig, **fields):
    return dataclasses.replace(A100, mig=mig, **fields)


def uuids(server):
    return [each.uuid for each in server.instances]


# ---- NVML ----


def test_nvml_describes_the_instances_of_a_card(server_of):
    server = server_of(a100("3g.20gb", "2g.10gb", "", "1g.5gb"))
    program = """
        nvml.nvmlInit()
        card = nvml.nvmlDeviceGetHandleByIndex(0)
        for index in range(nvml.nvmlDeviceGetMaxMigDeviceCount(card)):
            gpu = ask("nvmlDeviceGetMigDeviceHandleByIndex", card, index)
            if isinstance(gpu, str):
                say(gpu)
                continue
            say(nvml.nvmlDeviceGetName(gpu), nvml.nvmlDeviceGetUUID(gpu), nvml.nvmlDeviceGetIndex(gpu),
                nvml.nvmlDeviceGetGpuInstanceId(gpu), nvml.nvmlDeviceGetComputeInstanceId(gpu),
                nvml.nvmlDeviceGetMemoryInfo(gpu).total >> 20, nvml.nvmlDeviceIsMigDeviceHandle(gpu).value,
                nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(gpu)))
    """
    names, card = uuids(server), server.gpus[0].uuid
    assert run_nvml(server, program) == [
        [f"{NAME} MIG 3g.20gb", names[0], 0, 2, 0, 20096, 1, card],
        [f"{NAME} MIG 2g.10gb", names[1], 1, 3, 0, 9984, 1, card],
        [NOT_FOUND],
        [f"{NAME} MIG 1g.5gb", names[2], 3, 9, 0, 4864, 1, card],
        *[[NOT_FOUND]] * 3,
    ]
    assert all(name.startswith("MIG-") for name in names)
    assert len(set(names)) == 3


def test_the_mode_of_a_card(server_of):
    program = """
        nvml.nvmlInit()
        for card in map(nvml.nvmlDeviceGetHandleByIndex, range(nvml.nvmlDeviceGetCount())):
            say(ask("nvmlDeviceGetMigMode", card), ask("nvmlDeviceGetMaxMigDeviceCount", card),
                nvml.nvmlDeviceIsMigDeviceHandle(card).value,
                *[ask("nvmlDeviceGetMigDeviceHandleByIndex", card, index) for index in (6, 7)],
                ask("nvmlDeviceGetGpuInstanceId", card))
    """
    cut, without_instances, whole, one_that_cannot = a100(*BALANCED), a100(), A100, Gpu()
    assert run_nvml(server_of(cut, without_instances, whole, one_that_cannot), program) == [
        [[1, 1], 7, 0, NOT_FOUND, INVALID, INVALID],
        [[1, 1], 7, 0, NOT_FOUND, INVALID, INVALID],
        [[0, 0], 0, 0, INVALID, INVALID, INVALID],
        [MISSING, 0, 0, MISSING, MISSING, MISSING],
    ]


# Readings that a card in MIG mode has, and its instances lack; that both lack; that both have.
OF_CARDS = [
    *("PowerUsage", "Temperature", "PciInfo", "ComputeMode", "CudaComputeCapability"),
    *("MigMode", "EccMode", "MinorNumber"),
]
OF_NEITHER = ["UtilizationRates", "Samples", "EncoderUtilization", "RemappedRows", "NumGpuCores"]
OF_BOTH = ["MemoryInfo", "ComputeRunningProcesses", "GraphicsRunningProcesses"]


def test_readings_that_a_card_in_mig_mode_and_its_instances_lack(server_of):
    program = f"""
        more = {{"Temperature": [0], "Samples": [1, 0]}}
        nvml.nvmlInit()
        card = nvml.nvmlDeviceGetHandleByIndex(0)
        for gpu in (card, nvml.nvmlDeviceGetMigDeviceHandleByIndex(card, 0)):
            say(*[name for name in {[*OF_CARDS, *OF_NEITHER, *OF_BOTH]}
                  if ask(f"nvmlDeviceGet{{name}}", gpu, *more.get(name, [])) == {MISSING!r}])
    """
    card = a100(*BALANCED, ecc=True, utilization=50)
    assert run_nvml(server_of(card), program) == [OF_NEITHER, [*OF_CARDS, *OF_NEITHER]]


def test_nvml_finds_an_instance_by_either_name(server_of):
    server = server_of(Gpu(), a100(*BALANCED))
    first, card = uuids(server)[0], f"MIG-{server.gpus[1].uuid}"
    program = f"""
        nvml.nvmlInit()
        say(*[nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetHandleByUUID(name)) for name in {[first, f"{card}/2/0"]}])
        say(ask("nvmlDeviceGetHandleByUUID", "{card}/4/0"))
    """
    assert run_nvml(server, program) == [[first] * 2, [NOT_FOUND]]


def test_memory_and_processes_are_of_the_instance_and_of_its_card(server_of):
    others = Instance("2g.10gb", used="1GiB", processes={5004242: "2GiB"})
    server = server_of(a100("3g.20gb", others, "1g.5gb"), Gpu(processes={5000001: "1GiB"}))
    own = hold(server, 0, GIB, CUDA_VISIBLE_DEVICES=uuids(server)[2])
    said = run_nvml(
        server,
        """
        def on(gpu):
            named = lambda number: None if number == 0xFFFFFFFF else number
            return nvml.nvmlDeviceGetMemoryInfo(gpu).used >> 20, [
                [p.pid, p.usedGpuMemory >> 20, named(p.gpuInstanceId), named(p.computeInstanceId)]
                for p in nvml.nvmlDeviceGetComputeRunningProcesses(gpu)]

        nvml.nvmlInit()
        card = nvml.nvmlDeviceGetHandleByIndex(0)
        for gpu in (card, *[nvml.nvmlDeviceGetMigDeviceHandleByIndex(card, index) for index in range(3)],
                    nvml.nvmlDeviceGetHandleByIndex(1)):
            say(*on(gpu))
        """,
    )
    stranger, ours = [5004242, 2048, 3, 0], [own.pid, 1280, 9, 0]
    assert said == [
        [4352, [stranger, ours]],
        [0, []],
        [3072, [stranger]],
        [1280, [ours]],
        [1024, [[5000001, 1024, None, None]]],
    ]
    assert (server.used_bytes(0, 2), server.used_bytes(0)) == (GIB + 256 * MIB, 4 * GIB + 256 * MIB)
    calls = [(call.call, call.gpu, call.instance) for call in server.calls(pid=own.pid)]
    assert calls == [("cuInit", None, None), ("context", 0, 2), ("allocate", 0, 2)]


def test_load_moves_on_an_instance_and_a_fault_is_its_own(server_of):
    server = server_of(a100("3g.20gb", "1g.5gb"))
    program = f"""
        nvml.nvmlInit()
        card = ask("nvmlDeviceGetHandleByIndex", 0)
        if isinstance(card, str):
            say(card, ask("nvmlDeviceGetHandleByUUID", {uuids(server)[1]!r}))
            sys.exit()
        found = [ask("nvmlDeviceGetMigDeviceHandleByIndex", card, index) for index in range(2)]
        say(*[gpu if isinstance(gpu, str) else nvml.nvmlDeviceGetMemoryInfo(gpu).used >> 20 for gpu in found])
    """
    assert run_nvml(server, program) == [[0, 0]]
    server.change(0, instance=1, processes={5000001: "1GiB"})
    assert run_nvml(server, program) == [[0, 1024]]
    server.change(0, instance=0, nvml="GPU_IS_LOST")
    assert run_nvml(server, program) == [["NVMLError_GpuIsLost", 1024]]
    server.change(0, nvml="UNKNOWN")
    assert run_nvml(server, program) == [["NVMLError_Unknown"] * 2]


# ---- CUDA ----


def names_of(server):
    """By letters: A, B for whole cards, a0, a1 for the instances of the first one, a0:old for their older names."""
    names = {chr(ord("A") + place): gpu.uuid for place, gpu in enumerate(server.gpus)}
    for each in server.instances:
        short = f"{chr(ord('a') + each.card)}{each.index}"
        names[short] = each.uuid
        names[f"{short}:old"] = f"MIG-{server.gpus[each.card].uuid}/{each.gpu_instance}/0"
    return names


def seen(server, *values):
    """What CUDA shows of each value of CUDA_VISIBLE_DEVICES, in letters; ``None`` is not set."""
    names = names_of(server)
    environs = [
        {
            **PCI,
            **({} if value is None else {"CUDA_VISIBLE_DEVICES": ",".join(names.get(w, w) for w in value.split(","))}),
        }
        for value in values
    ]
    letters = {uuid.partition("-")[2]: letter for letter, uuid in names.items()}
    return [" ".join(letters[each[4:]] for each in shown) for shown in seen_by_cuda(server, environs)]


# A: cut in two; B: whole; C: in MIG mode without instances; D: cut in two; E: whole. By the rule: the variable, what
# is seen with a driver before R570, and since.
VISIBLE = {
    "not set": (None, "a0", "B E a0 a1 d0 d1"),
    "whole cards are numbered first": ("0", "B", "B"),
    "second whole card": ("1", "E", "E"),
    "then instances": ("2", "a0", "a0"),
    "before, one of each card": ("3", "d0", "a1"),
    "before, no more numbers": ("4", "", "d0"),
    "whole cards": ("0,1", "B E", "B E"),
    "two numbers of instances": ("2,3", "a0", "a0 a1"),
    "whole and instance by number": ("0,3", "d0", "B a1"),
    "instance": ("a1", "a1", "a1"),
    "two instances": ("a1,d0", "a1", "a1 d0"),
    "whole and instance": ("B,d1", "d1", "B d1"),
    "two whole by name": ("B,E", "B E", "B E"),
    "older name": ("a1:old", "a1", "a1"),
    "twice by both names": ("a1:old,a1", "", ""),
    "twice": ("a1,a1", "", ""),
    "card in MIG mode by name": ("A", "a0", "a0"),
    "card without instances": ("C", "", ""),
    "ends at an invalid entry": ("a1,nonsense,d0", "a1", "a1"),
    "kinds are not mixed": ("a1,0", "a1", "a1"),
    "unknown": ("MIG-00000000-0000-0000-0000-000000000000", "", ""),
    "no abbreviation": ("MIG-", "", ""),
    "lower case": ("mig-", "", ""),
}


@pytest.mark.parametrize(("driver", "since"), [(BEFORE_R570, False), (R570, True)], ids=["before-R570", "R570"])
def test_a_list_of_visible_devices_is_read_as_cuda_does(server_of, driver, since):
    halves = a100("3g.20gb", "1g.5gb"), a100("2g.10gb", "2g.10gb")
    server = server_of(halves[0], A100, a100(), halves[1], A100, driver=driver)
    shown = seen(server, *[value for value, _, _ in VISIBLE.values()])
    assert dict(zip(VISIBLE, shown)) == {rule: new if since else old for rule, (_, old, new) in VISIBLE.items()}
    name = uuids(server)[0][4:]
    assert seen(server, f"MIG-{name.upper()}", f"mig-{name}") == ["a0", ""], "the prefix counts as written"


def test_cuda_describes_an_instance(server_of):
    server = server_of(a100(*BALANCED))
    one = server.instances[3]
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
    out_of_memory = 2
    assert run_cuda(server, program, CUDA_VISIBLE_DEVICES=one.uuid) == [
        [f"{NAME} MIG 1g.5gb", 4864, 14],
        [server.gpus[0].uuid, f"GPU-{one.uuid[4:]}"],
        [0, 0, out_of_memory],
    ]
    assert [(call.gpu, call.instance) for call in server.calls(call="refused")] == [(0, 3)]


def test_a_full_or_a_lost_instance_leaves_its_neighbours_alone(server_of):
    lost = Instance("1g.5gb", nvml="GPU_IS_LOST")
    server = server_of(a100("1g.5gb", Instance("1g.5gb", used="4GiB"), lost))
    program = "cuda.cuInit(0); say(context(0), allocate(1 << 30)[0])"
    said = [run_cuda(server, program, CUDA_VISIBLE_DEVICES=name)[0] for name in uuids(server)]
    out_of_memory, unknown, no_context = 2, 999, 201
    assert said == [[0, 0], [0, out_of_memory], [unknown, no_context]]


# ---- containers ----


@pytest.fixture
def contained(server_of, tmp_path):
    """Start a server of these cards in a container with these device files."""

    def started(files, *cards, **options):
        for file in files:
            path = tmp_path / "dev" / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        return server_of(*cards, device_files=str(tmp_path / "dev"), **options)

    return started


ONE_INSTANCE = ("nvidia0", "nvidia-caps/gpu0/gi3/access")


def test_a_container_has_one_instance_alone(contained):
    server = contained(ONE_INSTANCE, a100(*BALANCED), a100(*BALANCED), denied="omit")
    one, other = server.instances[1], server.instances[0]
    program = f"""
        nvml.nvmlInit()
        say(nvml.nvmlDeviceGetCount())
        card = nvml.nvmlDeviceGetHandleByIndex(0)
        say(ask("nvmlDeviceGetMemoryInfo", card), ask("nvmlDeviceGetComputeRunningProcesses", card))
        gpu = nvml.nvmlDeviceGetMigDeviceHandleByIndex(card, 0)
        say(nvml.nvmlDeviceGetUUID(gpu), nvml.nvmlDeviceGetIndex(gpu), nvml.nvmlDeviceGetMemoryInfo(gpu).total >> 20)
        say(ask("nvmlDeviceGetMigDeviceHandleByIndex", card, 1), ask("nvmlDeviceGetHandleByUUID", {other.uuid!r}))
        nvml.nvmlDeviceGetHandleByUUID({one.uuid!r})
    """
    refused = "NVMLError_NoPermission"
    assert run_nvml(server, program) == [[1], [refused, refused], [one.uuid, 0, 9984], [NOT_FOUND, NOT_FOUND]]
    assert seen(server, None, "0", other.uuid) == ["a1", "a1", ""]


def test_who_may_monitor_sees_the_card_as_a_whole(contained):
    program = """
        nvml.nvmlInit()
        say(nvml.nvmlDeviceGetMemoryInfo(nvml.nvmlDeviceGetHandleByIndex(0)).used >> 20)
    """
    card = a100("3g.20gb", Instance("2g.10gb", used="1GiB"))
    assert run_nvml(contained((*ONE_INSTANCE, "nvidia-caps/monitor"), card), program) == [[1024]]
