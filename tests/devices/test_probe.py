"""Readings of the driver in a child process or a thread, where a crash or a hang can't stop the script."""

import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from pathlib import Path

import pytest

from autogpu.devices import model
from tests.devices.printed import value_of
from tests.gpusim import Gpu, Server
from tests.lease.conftest import needs_root

GIB = 1 << 30

READ = """
import os, sys
from autogpu.devices import probe
print(repr(probe.start(os.environ).result(float(sys.argv[1]))))
"""


def read(server, deadline_s=30.0, program=READ):
    done = server.run([sys.executable, "-c", textwrap.dedent(program), str(deadline_s)])
    assert (done.returncode, done.stderr) == (0, "")
    return value_of(done.stdout)


def indices(inventory):
    return [device.index for device in inventory.devices]


def lost(inventory):
    return [(gpu.index, gpu.reason) for gpu in inventory.unreadable]


SILENT = [(1, "the driver does not answer")]


@pytest.fixture
def machine(tmp_path):
    return lambda *gpus, **faults: Server(gpus, folder=tmp_path, **faults)


READINGS: dict[str, tuple[Gpu, dict[str, object]]] = {
    # A GPU that pauses between two batches is not idle.
    "pauses": (Gpu(utilization_samples=[90, 90, 90, 90, 0]), {"utilization_percent": 72}),
    "idle": (Gpu(utilization_samples=[0] * 31), {"utilization_percent": 0}),
    "works": (Gpu(utilization_samples=[0, 1]), {"utilization_percent": 1}),
    "momentary": (Gpu(unsupported=["samples"], utilization_samples=[0, 0, 80]), {"utilization_percent": 80}),
    "no-utilization": (Gpu(unsupported=["samples", "utilization"]), {"utilization_percent": None}),
    "no-memory": (Gpu(unsupported=["memory"]), {"memory_total_bytes": None}),
    "no-processes": (Gpu(unsupported=["processes"]), {"compute_processes": None}),
    "no-graphics": (Gpu(unsupported=["graphics_processes"]), {"graphics_processes": None}),
    "no-mode": (Gpu(unsupported=["compute_mode"]), {"compute_mode": None}),
    "no-bus": (Gpu(unsupported=["pci"]), {"pci_bus_id": None}),
}


def test_unsupported_readings_are_missing_and_pynvml_is_not_imported(machine):
    with machine(*[replace(gpu, name=name) for name, (gpu, _) in READINGS.items()]) as server:
        devices = read(server, program=READ + "assert 'pynvml' not in sys.modules\n").devices
    told = {each.name: {field: getattr(each, field) for field in READINGS[each.name][1]} for each in devices}
    assert told == {name: expected for name, (_, expected) in READINGS.items()}
    for field in ("memory_total_bytes", "compute_processes", "graphics_processes", "compute_mode", "pci_bus_id"):
        assert [getattr(each, field) for each in devices].count(None) == 1


@pytest.mark.slow
def test_unreadable_gpus_are_reported_and_the_others_are_read(machine):
    failing = [Gpu(nvml=fault) for fault in ("GPU_IS_LOST", "RESET_REQUIRED", "hang")]
    with machine(Gpu(), *failing, Gpu(nvml="NO_PERMISSION"), Gpu()) as server:
        inventory = read(server)
    assert indices(inventory) == [0, 5]
    # A GPU that this process may not use is counted, and not listed as unreadable.
    reasons = dict(lost(inventory))
    assert ([*reasons], inventory.denied) == ([1, 2, 3], 1)
    assert reasons[1] and reasons[2] and reasons[3] == "the driver does not answer"


@pytest.mark.parametrize(
    ("error", "failure", "cause"),
    [
        ("DRIVER_NOT_LOADED", "NVML reports: ", "no-driver"),
        ("LIB_RM_VERSION_MISMATCH", "NVML reports: ", "driver"),
        ("UNKNOWN", "NVML reports: ", "driver"),
        ("crash", "the process that reads NVML ended with signal 6", "driver"),
    ],
)
def test_driver_that_does_not_start_is_a_failure_with_its_cause(machine, error, failure, cause):
    with machine(Gpu(), nvml=error) as server:
        inventory = read(server)
    assert (inventory.devices, inventory.failure_cause) == ((), model.FailureCause(cause))
    assert inventory.failure.startswith(failure)


@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="this machine has a driver")
def test_missing_nvml_library_means_that_there_is_no_driver():
    done = subprocess.run([sys.executable, "-c", READ, "30"], capture_output=True, text=True, timeout=60, check=True)
    assert "failure_cause=<FailureCause.NO_DRIVER: 'no-driver'>" in done.stdout


@pytest.mark.slow
def test_wait_for_a_hanging_driver_ends_in_time_and_leaves_no_process(machine):
    program = """
        import os, sys, time
        from autogpu.devices import probe
        probe_ = probe.start(os.environ)
        before = time.monotonic()
        print(repr((probe_.result(float(sys.argv[1])), time.monotonic() - before, probe_.pid)))
    """
    with machine(Gpu(), nvml="hang") as server:
        inventory, waited_s, pid = read(server, 0.5, program)
        # The hung process can't check for the end of its parent. The SIGKILL at the parent's exit ends it.
        deadline = time.monotonic() + 10
        while _is_running(pid) and time.monotonic() < deadline:
            time.sleep(0.01)
    assert inventory is None
    assert 0.3 < waited_s < 5
    assert not _is_running(pid)


@pytest.mark.parametrize("is_embedder", [False, True], ids=["other-program", "embedded-python"])
def test_an_application_with_a_pythons_name_is_not_started_again(machine, tmp_path, is_embedder):
    application = tmp_path / "python3"
    application.write_text(f"#!/bin/sh\ntouch {tmp_path}/started\nsleep 60\n")
    application.chmod(0o755)
    program = "import os, sys\n"
    program += "sys.orig_argv = []\n" if is_embedder else f"sys.executable = {str(application)!r}\n"
    program += READ + "print('autogpu._vendor.pynvml' in sys.modules)"
    with machine(Gpu(), Gpu()) as server:
        begun_s = time.monotonic()
        done = server.run([sys.executable, "-c", program, "30"])
    inventory, is_in_process = done.stdout.splitlines()
    assert (indices(value_of(inventory)), is_in_process, done.stderr) == ([0, 1], "True", "")
    assert not (tmp_path / "started").exists()
    assert time.monotonic() - begun_s < 5


@pytest.mark.parametrize("writes", [False, True], ids=["no-file-is-open", "another-file-has-the-number"])
def test_unused_reading_closes_no_file_of_the_script(machine, tmp_path, writes):
    program = f"""
        import os, sys
        from autogpu.devices import probe
        reading = probe.start(os.environ)
        os.closerange(3, 256)
        if {writes}:
            file = open({str(tmp_path / "result")!r}, "w")
            file.write("kept")
    """
    with machine(Gpu()) as server:
        done = server.run([sys.executable, "-c", textwrap.dedent(program)])
    assert (done.returncode, done.stderr) == (0, "")
    assert not writes or (tmp_path / "result").read_text() == "kept"


# Each takes longer to import than all modules that are imported before the driver is read.
SLOW = {"typing", "contextlib", "pathlib", "subprocess", "json", "re"}


def test_no_slow_module_is_imported_before_a_reading_or_by_its_process():
    devices = Path(model.__file__).parent
    for path, module in ((devices.parent.parent, "autogpu.activation"), (devices, "nvml")):
        program = "import sys; sys.path.append(sys.argv[1]); __import__(sys.argv[2]); print(*sys.modules)"
        command = [sys.executable, "-I", "-S", "-c", program, str(path), module]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        assert SLOW.isdisjoint(done.stdout.split()), module


def _is_running(pid):
    try:
        with Path(f"/proc/{pid}/stat").open() as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


AGAIN = """
import os, sys, time
from autogpu.devices import probe
first = probe.start(os.environ).result(30.0)
print("first", flush=True)
sys.stdin.readline()
second = probe.start_in_process(os.environ, first)
begun_s = time.monotonic()
print(repr((second.result(30.0), time.monotonic() - begun_s, type(second).__name__)))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "change", "expected", "unreadable", "within_s"),
    [
        pytest.param("", {}, [0, 88], [], (0, 30), id="driver-answers"),
        pytest.param("hang", {}, [0], SILENT, (0, 2.5), id="gpu-still-hangs"),
        pytest.param("GPU_IS_LOST", {"nvml": ""}, [0, 88], [], (0, 30), id="lost-gpu-answers-again"),
        pytest.param("", {"nvml": "hang"}, [0], SILENT, (2.5, 8), id="gpu-begins-to-hang"),
    ],
)
def test_second_reading_is_fresh_and_taken_by_a_thread(machine, before, change, expected, unreadable, within_s):
    with machine(Gpu(), Gpu(nvml=before)) as server:
        inventory, waited_s, kind = read_twice(server, {"utilization": 88, **change})
    assert [device.utilization_percent for device in inventory.devices] == expected
    assert (lost(inventory), kind) == (unreadable, "ThreadReading")
    assert within_s[0] <= waited_s < within_s[1]


def test_driver_that_failed_is_read_by_a_child_process_again(machine):
    with machine(Gpu(), Gpu(), nvml="UNKNOWN") as server:
        inventory, _, kind = read_twice(server, {})
    assert (kind, inventory.failure is not None) == ("ProcessReading", True)


def read_twice(server, change):
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    asking = server.popen([sys.executable, "-c", AGAIN], **pipes)
    assert asking.stdout.readline() == "first\n"
    server.change(1, **change)
    told, _ = asking.communicate("\n", timeout=60)
    assert asking.returncode == 0
    return value_of(told)


FORKED = """
import os, sys, time, warnings
from autogpu.devices import probe
warnings.simplefilter("ignore")  # of a fork beside a thread
sys.executable = "/usr/bin/uwsgi"
reading = probe.start(os.environ)
if not os.fork():
    begun_s = time.monotonic()
    print(repr((reading.result(float(sys.argv[1])), time.monotonic() - begun_s)), flush=True)
    os._exit(0)
os.wait()
os._exit(0)
"""


def test_forked_child_does_not_wait_for_a_thread_of_its_parent(machine):
    with machine(Gpu(), nvml="hang") as server:
        inventory, waited_s = read(server, program=FORKED)
    assert inventory is None
    assert waited_s < 5


FORKED_BESIDE = """
import os, signal, sys, time, warnings
from autogpu.devices import probe
warnings.simplefilter("ignore")
spawn = probe._spawn
def spawn_beside_a_fork(*arguments):
    global pid
    pid = os.fork()
    if not pid:
        time.sleep(60)
        os._exit(0)
    return spawn(*arguments)
probe._spawn = spawn_beside_a_fork
reading = probe.start(os.environ)
begun_s = time.monotonic()
print(repr((reading.result(float(sys.argv[1])), time.monotonic() - begun_s)), flush=True)
os.kill(pid, signal.SIGKILL)
"""


def test_fork_in_another_thread_does_not_delay_a_reading(machine):
    with machine(Gpu(), Gpu()) as server:
        inventory, waited_s = read(server, program=FORKED_BESIDE)
    assert indices(inventory) == [0, 1]
    assert waited_s < 20


AT_THE_LIMIT = """
import importlib.machinery, os, resource, sys, threading
import pynvml
from autogpu.devices import model, nvml, probe
nvml.load_pynvml()
os.setuid(12345)
resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
print(repr(probe.start(os.environ).result(float(sys.argv[1]))))
"""


@needs_root
def test_user_at_the_process_limit_gets_a_failure_with_its_reason(machine):
    with machine(Gpu()) as server:
        inventory = read(server, program=AT_THE_LIMIT)
    assert inventory.failure.startswith("can't start a process or a thread to read NVML: ")


TWO_THREADS = """
import os, sys, threading
from autogpu.devices import probe
readings = probe.Readings(probe, os.environ, probe.start(os.environ))
gate, found, errors = threading.Barrier(2), [], []
threading.excepthook = lambda error: errors.append(error.exc_value)

def wait():
    gate.wait()
    found.append(readings.wait(float(sys.argv[1])))

threads = [threading.Thread(target=wait) for _ in range(2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(repr((found[0] is found[1], errors, found[0])))
"""


def test_two_threads_that_wait_for_one_reading_both_get_it(machine):
    with machine(Gpu()) as server:
        is_same, errors, inventory = read(server, program=TWO_THREADS)
    assert (is_same, errors, indices(inventory)) == (True, [], [0])


HAS_CHILDREN = """
import os, subprocess, sys, threading
from autogpu.devices import probe
child = subprocess.Popen(["cat"], stdin=subprocess.PIPE) if {has_child} else None
reading, ended = probe.start(os.environ), []
waits = threading.Thread(target=lambda: ended.append(os.wait()[0] == child.pid)) if child else None
if waits:
    waits.start()
inventory = reading.result(float(sys.argv[1]))
if waits:
    child.stdin.close()
    waits.join()
print(repr((type(reading).__name__, ended, inventory)))
"""


@pytest.mark.parametrize(
    ("has_child", "kind", "ended"), [(True, "ThreadReading", [True]), (False, "ProcessReading", [])]
)
def test_wait_for_any_child_in_a_script_returns_its_own_child(machine, has_child, kind, ended):
    with machine(Gpu()) as server:
        found = read(server, program=HAS_CHILDREN.format(has_child=has_child))
    assert (*found[:2], indices(found[2])) == (kind, ended, [0])
