"""NVML readings as plain values, with each version of pynvml that a user may have installed."""

import ctypes
import json
import os
import shutil
import subprocess
import sys
import threading
import time
import types
from pathlib import Path

import pynvml
import pytest

import autogpu
from autogpu.devices import nvml
from tests.gpusim import Gpu, Server
from tests.support import environments

# Prints autogpu's reading of each GPU, and the reading by pynvml alone.
BOTH = """
import json
import pynvml as theirs
from autogpu.devices import nvml as ours

def asked(call, *arguments):
    try:
        return call(*arguments)
    except theirs.NVMLError:
        return None

def processes(found):
    return None if found is None else sorted([each.pid, each.usedGpuMemory] for each in found)

theirs.nvmlInit()
found = []
for index in range(theirs.nvmlDeviceGetCount()):
    gpu = theirs.nvmlDeviceGetHandleByIndex(index)
    memory, pci = asked(theirs.nvmlDeviceGetMemoryInfo, gpu), asked(theirs.nvmlDeviceGetPciInfo, gpu)
    mig = asked(theirs.nvmlDeviceGetMigMode, gpu)
    rows = asked(theirs.nvmlDeviceGetRemappedRows, gpu)
    milliwatts = asked(theirs.nvmlDeviceGetPowerUsage, gpu)
    kind, since_boot = theirs.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, theirs.NVML_VOLATILE_ECC
    found.append({
        "uuid": theirs.nvmlDeviceGetUUID(gpu),
        "index": index,
        "name": theirs.nvmlDeviceGetName(gpu),
        "pci_bus_id": pci and pci.busId,
        "memory_total_bytes": memory and memory.total,
        "memory_used_bytes": memory and memory.used,
        "compute_processes": processes(asked(theirs.nvmlDeviceGetComputeRunningProcesses, gpu)),
        "graphics_processes": processes(asked(theirs.nvmlDeviceGetGraphicsRunningProcesses, gpu)),
        "compute_mode": asked(theirs.nvmlDeviceGetComputeMode, gpu),
        "mig_enabled": bool(mig and mig[0]),
        "remapping_failed": bool(rows and rows[3]),
        "remapping_pending": bool(rows and rows[2]),
        "retirement_pending": bool(asked(theirs.nvmlDeviceGetRetiredPagesPendingStatus, gpu)),
        "uncorrected_errors": asked(theirs.nvmlDeviceGetTotalEccErrors, gpu, kind, since_boot) or 0,
        "utilization_percent": asked(lambda: theirs.nvmlDeviceGetUtilizationRates(gpu).gpu),
        "temperature_celsius": asked(theirs.nvmlDeviceGetTemperatureV, gpu, theirs.NVML_TEMPERATURE_GPU),
        "power_watts": None if milliwatts is None else round(milliwatts / 1000),
    })
    active = asked(theirs.nvmlDeviceGetProcessUtilization, gpu, 0) or ()
    is_shared = bool(found[-1]["utilization_percent"]) and len(found[-1]["compute_processes"] or ()) > 1
    found[-1]["active_pids"] = [each.pid for each in active if each.smUtil] if is_shared else None
version = theirs.nvmlSystemGetDriverVersion()
reading = ours.read_inventory()
for row in reading["devices"]:
    del row["has_mps"], row["is_small"]  # worked out, and no reading of NVML
    for kind in ("compute_processes", "graphics_processes"):
        row[kind] = row[kind] and sorted(row[kind])
print(json.dumps([reading, {"devices": found, "driver_version": version}]))
"""

FLEET = (
    Gpu(
        name="NVIDIA A100",
        memory="40GiB",
        used="1GiB",
        processes={5004242: "2GiB", 5004243: "3GiB"},
        graphics={5000017: "0.25GiB"},
        utilization=93,
        compute_mode="exclusive_process",
    ),
    Gpu(name="NVIDIA TITAN RTX", processes=dict.fromkeys(range(5000000, 5000060), "64MiB"), utilization=7),
    Gpu(unsupported=["memory", "processes", "graphics_processes", "compute_mode", "pci", "utilization", "samples"]),
    Gpu(processes={5004244: "1GiB"}, unsupported=["process_memory"], compute_mode="prohibited"),
    Gpu(compute_capability="8.0", ecc=True, health=["row_remapping_failed"], uncorrected_errors=3),
    Gpu(compute_capability="9.0", ecc=True, health=["row_remapping_pending"]),
    Gpu(compute_capability="7.0", ecc=True, health=["page_retirement_pending"]),
)
NAMES = ("busy", "60-processes", "unsupported-readings", "unknown-use", "failed-rows", "pending-rows", "retired-pages")


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    with Server(FLEET, folder=tmp_path_factory.mktemp("server")) as server:
        done = server.run([sys.executable, "-c", BOTH])
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("index", range(len(FLEET)), ids=NAMES)
def test_each_reading_equals_the_reading_by_pynvml_alone(both, index):
    ours, theirs = both
    assert ours["devices"][index] == theirs["devices"][index]
    assert ours["driver_version"] == theirs["driver_version"]


# Modules that replace an installed pynvml; `read_with` writes one of them into the folder of packages.
OLD = """
from real_pynvml import *
from real_pynvml import NVMLError
del nvmlDeviceGetMigMode, nvmlDeviceGetSamples
_name = nvmlDeviceGetName
def nvmlDeviceGetName(gpu):
    return _name(gpu).encode()
"""
ONLY_V2 = """
from real_pynvml import *
from real_pynvml import NVMLError, NVML_ERROR_FUNCTION_NOT_FOUND
def nvmlDeviceGetComputeRunningProcesses_v3(gpu):
    raise NVMLError(NVML_ERROR_FUNCTION_NOT_FOUND)
"""
FIRST_VERSION = """
import real_pynvml
from real_pynvml import *
from real_pynvml import NVMLError
def nvmlDeviceGetComputeRunningProcesses(gpu):
    return real_pynvml.nvmlDeviceGetComputeRunningProcesses_v2(gpu)
del nvmlDeviceGetComputeRunningProcesses_v2, nvmlDeviceGetComputeRunningProcesses_v3
"""
MORE_OF_THE_LIBRARY = """
from string import Template, digits
assert Template("$a").substitute(a=digits) == "0123456789"
from real_pynvml import *
from real_pynvml import NVMLError
"""

READ = """
import json, os
from autogpu.devices import probe
reading = probe.finish(probe.start(os.environ))
device = reading.devices[0] if reading.devices else None
print(json.dumps({
    "failure": reading.failure,
    "cause": reading.failure_cause and reading.failure_cause.value,
    "name": device and device.name,
    "pids": device and device.compute_processes and [process.pid for process in device.compute_processes],
    "used": device and device.memory_used_bytes,
}))
"""

GIB = 1 << 30
ONE_USED = (Gpu(processes={5004242: "2GiB"}),)


def read_with(tmp_path, source, program=READ, gpus=ONE_USED, **options):
    """Return the output of a child process whose pynvml has this ``source``; with ``None`` pynvml is not installed."""
    packages = tmp_path / "site-packages"
    packages.mkdir()
    # Link autogpu alone: the pynvml that is installed beside it must not be found.
    (packages / "autogpu").symlink_to(Path(autogpu.__file__).parent.resolve(), target_is_directory=True)
    if source is not None:
        shutil.copy(pynvml.__file__, packages / "real_pynvml.py")
        (packages / "pynvml.py").write_text(source)
    with Server(gpus, folder=tmp_path, **options) as server:
        # With -S only the packages in that folder are installed.
        command = [sys.executable, "-S", "-c", program]
        done = server.run(command, environ={"PYTHONPATH": str(packages)}, cwd=str(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    ("source", "failure"),
    [
        pytest.param(None, "pynvml (nvidia-ml-py) is not installed", id="pynvml-missing"),
        pytest.param("version = 1\n", "is not NVIDIA's pynvml: it has no NVMLError", id="module-of-another-project"),
        pytest.param("raise SystemError('half')\n", "pynvml can't be imported: SystemError: half", id="import-raises"),
        pytest.param("raise SystemExit(3)\n", "pynvml can't be imported: SystemExit: 3", id="import-exits"),
        pytest.param("import gone\n", "pynvml can't be imported: No module named 'gone'", id="import-fails"),
    ],
)
def test_missing_or_unusable_pynvml_is_a_failure_with_its_reason(tmp_path, source, failure):
    told = read_with(tmp_path, source)
    assert told["failure"].endswith(failure)
    assert told["cause"] == "pynvml"


@pytest.mark.parametrize(
    "source",
    [
        pytest.param(OLD, id="old-pynvml"),
        pytest.param(MORE_OF_THE_LIBRARY, id="pynvml-with-more-imports"),
        pytest.param(ONLY_V2, id="driver-without-version-3"),
        pytest.param(FIRST_VERSION, id="pynvml-with-version-1-only"),
    ],
)
def test_other_versions_of_pynvml_read_the_same(tmp_path, source):
    read = {"failure": None, "cause": None, "name": "NVIDIA TITAN RTX", "pids": [5004242], "used": 2 * GIB}
    assert read_with(tmp_path, source) == read


READ_TEMPERATURE = """
import json, os
from autogpu.devices import probe
reading = probe.finish(probe.start(os.environ))
print(json.dumps([reading.failure, reading.devices[0].name, reading.devices[0].temperature_celsius]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("driver", [("450.80.02", "11.0"), ("580.95.05", "13.2"), ("620.10.01", "14.0")], ids=" ".join)
@pytest.mark.parametrize("package", ["nvidia-ml-py==11.450.129", "nvidia-ml-py==13.615.71"])
def test_oldest_and_newest_binding_read_the_temperature(tmp_path, package, driver):
    python = environments.environment(environments.interpreter("3.11"), [package, "click", "rich"])
    with Server([Gpu(utilization=10)], folder=tmp_path, driver=driver[0], cuda=driver[1]) as server:
        done = server.run([str(python), "-c", READ_TEMPERATURE], cwd=str(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    # The oldest binding has only the function that CUDA 14 refuses.
    celsius = None if (package, driver[1]) == ("nvidia-ml-py==11.450.129", "14.0") else 40
    assert json.loads(done.stdout) == [None, "NVIDIA TITAN RTX", celsius]


def test_gpus_are_read_one_by_one_if_no_thread_can_be_started(monkeypatch):
    def refused(thread):
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(threading.Thread, "start", refused)
    assert nvml._ask_all_at_once(str, range(3)) == {0: "0", 1: "1", 2: "2"}


def test_interpreter_lock_held_by_the_script_makes_no_gpu_look_hung(monkeypatch):
    def ask(number):
        for _ in range(5):  # driver calls, each of which releases the interpreter lock
            time.sleep(0.01)
        return number

    answers = {}
    reading = threading.Thread(target=lambda: answers.update(nvml._ask_all_at_once(ask, range(4))))
    monkeypatch.setattr(nvml, "DEVICE_DEADLINE_S", 0.3)
    reading.start()
    time.sleep(0.02)
    ctypes.PyDLL(None).usleep(900_000)
    reading.join()
    assert answers == {0: 0, 1: 1, 2: 2, 3: 3}


FAILING_TOPOLOGY = """
import time
from real_pynvml import *
from real_pynvml import NVMLError
def nvmlDeviceGetTopologyCommonAncestor(one, other):
    {}
"""

READ_TOPOLOGY = """
import json, os, sys, time
if {}:
    sys.executable = "/usr/bin/uwsgi"
from autogpu.devices import probe
begun_s = time.monotonic()
reading = probe.finish(probe.start(os.environ))
waited_s = time.monotonic() - begun_s
print(json.dumps([len(reading.devices), reading.failure, len(reading.topology), waited_s]), flush=True)
os._exit(0)
"""


@pytest.mark.parametrize(
    ("fault", "is_embedded"),
    [
        pytest.param("raise TypeError('of another age')", False, id="call-raises"),
        pytest.param("raise TypeError('of another age')", True, id="call-raises-in-a-thread"),
        pytest.param("time.sleep(60)", False, id="call-hangs", marks=pytest.mark.slow),
        pytest.param("time.sleep(60)", True, id="call-hangs-in-a-thread", marks=pytest.mark.slow),
    ],
)
def test_failing_topology_call_leaves_the_other_readings(tmp_path, fault, is_embedded):
    gpus, source = (Gpu(path="0/0"), Gpu(path="0/1")), FAILING_TOPOLOGY.format(fault)
    *told, waited_s = read_with(tmp_path, source, READ_TOPOLOGY.format(is_embedded), gpus)
    assert told == [2, None, 0]
    assert waited_s < 5


IN_PROCESS = """
import json, os, sys
from autogpu.devices import probe
first = probe.finish(probe.start(os.environ))
sys.path.insert(0, sys.argv[1])
second = probe.start_in_process(os.environ, first)
print(json.dumps([second.result(30.0) is first, "project" in sys.modules, "autogpu._vendor.pynvml" in sys.modules]))
"""


def test_projects_own_pynvml_module_is_never_run(tmp_path):
    project = tmp_path / "project"
    project.mkdir()
    (project / "pynvml.py").write_text("raise SystemExit('run')\n")
    with Server([Gpu()], folder=tmp_path) as server:
        done = server.run([sys.executable, "-c", IN_PROCESS, str(project)])
    assert (done.returncode, json.loads(done.stdout)) == (0, [False, False, True]), done.stderr


def test_projects_own_pynvml_module_is_not_run_by_a_reading_thread(tmp_path):
    (tmp_path / "pynvml.py").write_text("raise SystemExit('run')\n")
    program = READ.replace("import json, os", "import json, os, sys\nsys.executable = '/usr/bin/uwsgi'")
    with Server([Gpu()], folder=tmp_path) as server:
        done = server.run([sys.executable, "-c", program], cwd=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["failure"] is None


def test_library_that_cannot_be_loaded_is_not_a_missing_driver(tmp_path):
    (tmp_path / "libnvidia-ml.so.1").write_text("no library\n")
    environ = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}
    command = [sys.executable, "-c", READ]
    told = json.loads(subprocess.run(command, env=environ, capture_output=True, timeout=60, check=True).stdout)
    assert (told["failure"][:22], told["cause"]) == ("NVML can't be loaded: ", "driver")


class Failed(Exception):
    """A stand-in for pynvml's NVMLError; ``value`` is the error code."""

    def __init__(self, value):
        self.value = value


LOST, NOT_FOUND, NO_PERMISSION, NOT_SUPPORTED, UNKNOWN = 15, 6, 4, 3, 999
CODES = {
    "NVML_ERROR_GPU_IS_LOST": LOST,
    "NVML_ERROR_NO_PERMISSION": NO_PERMISSION,
    "NVML_ERROR_NOT_SUPPORTED": NOT_SUPPORTED,
}


def binding(**calls):
    return nvml.Nvml(types.SimpleNamespace(NVMLError=Failed, **CODES, **calls))


def failing(value):
    def call(*_):
        raise Failed(value)

    return call


def test_error_of_a_lost_gpu_is_raised_by_every_reading():
    """NVML may still have a handle and a UUID for a lost GPU."""
    lost = binding(nvmlDeviceGetMemoryInfo=failing(LOST))
    with pytest.raises(Failed):
        lost.reading("nvmlDeviceGetMemoryInfo", 0)
    assert lost.reading("nvmlDeviceGetName", 0) is None


def raising(error):
    def call(*_):
        raise error

    return call


@pytest.mark.parametrize(
    ("uuid", "reason"),
    [
        pytest.param(failing(NOT_SUPPORTED), "NVML reports no UUID for the GPU", id="uuid-not-supported"),
        pytest.param(
            raising(UnicodeError("bad")), "pynvml fails to read the GPU: UnicodeError: bad", id="uuid-undecodable"
        ),
        pytest.param(None, "pynvml fails to read the GPU: AttributeError: ", id="pynvml-lacks-the-call"),
        pytest.param(failing(NO_PERMISSION), None, id="permission-denied"),
    ],
)
def test_gpu_without_a_readable_uuid_is_reported_with_the_reason(uuid, reason):
    calls = {"nvmlDeviceGetHandleByIndex": lambda index: index, "nvmlDeviceGetUUID": uuid}
    told = nvml._answer(binding(**{name: call for name, call in calls.items() if call}), 0)
    assert told is reason or str(told).startswith(str(reason))


def instances_of(**calls):
    """Return the reading of a card with MIG instances 0 and 2; ``calls`` replace functions of NVML."""
    asked = {
        "nvmlDeviceGetMaxMigDeviceCount": lambda gpu: 7,
        "nvmlDeviceGetMigDeviceHandleByIndex": lambda gpu, number: number if number in (0, 2) else failing(NOT_FOUND)(),
        "nvmlDeviceGetUUID": lambda instance: f"MIG-{instance}",
    }
    card = {"uuid": "GPU-0", "name": "NVIDIA A100", "utilization_percent": 7, "temperature_celsius": 40}
    return nvml.read_instances(binding(**{**asked, **calls}), "GPU-0", card)


def of_the_first(answer):
    return lambda instance: answer if instance == 0 else failing(NOT_SUPPORTED)()


def test_each_mig_instance_is_a_device_even_if_nvml_reads_little_of_it():
    first, last = instances_of(
        nvmlDeviceGetName=lambda instance: "NVIDIA A100" if instance else "NVIDIA A100 MIG 1g.5gb",
        nvmlDeviceGetMemoryInfo=of_the_first(types.SimpleNamespace(total=5 * GIB, used=GIB)),
        nvmlDeviceGetComputeRunningProcesses_v3=of_the_first([types.SimpleNamespace(pid=41, usedGpuMemory=GIB)]),
    )
    of_both = {
        "parent": "GPU-0",
        "mig_enabled": False,
        "temperature_celsius": 40,
        **dict.fromkeys(("utilization_percent", "active_pids", "multiprocessors", "graphics_processes")),
    }
    memory = {"memory_total_bytes": 5 * GIB, "memory_used_bytes": GIB}
    named = {"uuid": "MIG-0", "instance": 0, "name": "NVIDIA A100 MIG 1g.5gb"}
    assert first == {**of_both, **named, **memory, "compute_processes": [(41, GIB)]}
    mute = dict.fromkeys((*memory, "compute_processes"))
    assert last == {**of_both, **mute, "uuid": "MIG-2", "instance": 2, "name": "NVIDIA A100 MIG"}


@pytest.mark.parametrize("reading", ["nvmlDeviceGetMemoryInfo", "nvmlDeviceGetComputeRunningProcesses_v3"])
def test_lost_instance_leaves_the_other_instances_readable(reading):
    found = instances_of(**{reading: lambda instance: None if instance else failing(LOST)()})
    assert [each["uuid"] for each in found] == ["MIG-2"]


@pytest.mark.parametrize("call", ["MaxMigDeviceCount", "MigDeviceHandleByIndex", "UUID"])
def test_card_has_no_instances_if_nvml_cannot_read_them(call):
    assert instances_of(**{f"nvmlDeviceGet{call}": failing(UNKNOWN)}) == []
