"""The driver is read from outside the process, and nothing that it does hurts the process."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from tests.gpusim import Gpu, Server
from tests.lease.conftest import needs_root

GIB = 1 << 30

# The reader prints an Inventory as Python source; the test evaluates it to the value again.
READ = """
import os, sys
from autogpu.devices import probe
print(repr(probe.start(os.environ).result(float(sys.argv[1]))))
"""


def read(server, deadline_s=30.0, program=READ):
    from types import MappingProxyType as mappingproxy  # noqa: F401  (for eval)

    from autogpu.devices.model import (  # noqa: F401  (for eval)
        Device,
        Inventory,
        Process,
        Topology,
        TopologyQuestion,
        UnreadableDevice,
    )

    done = server.run([sys.executable, "-c", program, str(deadline_s)])
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return eval(done.stdout)


@pytest.fixture
def machine(tmp_path):
    def running(*gpus, **faults):
        return Server(gpus, folder=tmp_path, **faults)

    return running


def test_every_reading_arrives(machine):
    described = Gpu(
        name="NVIDIA A100",
        memory="40GiB",
        used="1GiB",
        processes={5004242: "2GiB"},
        graphics={5000017: "0.25GiB"},
        utilization=93,
        compute_mode="exclusive_process",
    )
    with machine(described) as server:
        inventory = read(server)
        (device,) = inventory.devices
        assert (device.uuid, device.index, device.name) == (server.gpus[0].uuid, 0, "NVIDIA A100")
    assert device.memory_total_bytes == 40 * GIB
    assert device.memory_free_bytes == int(36.75 * GIB)
    assert device.utilization_percent == 93
    assert [(p.pid, p.memory_used_bytes) for p in device.compute_processes] == [(5004242, 2 * GIB)]
    assert [p.pid for p in device.graphics_processes] == [5000017]
    assert (device.compute_mode, device.mig_enabled) == ("exclusive_process", False)
    assert (inventory.failure, inventory.failure_cause, inventory.driver_version) == (None, None, "550.54.15")


def test_a_pause_between_two_batches_is_not_idleness(machine):
    with machine(Gpu(utilization_samples=[90, 90, 90, 90, 0])) as server:
        assert read(server).devices[0].utilization_percent == 72


@pytest.mark.parametrize(
    ("gpu", "idle_s"),
    [
        (Gpu(utilization_samples=[90, 80, 0, 0, 0, 0]), 4.0),
        (Gpu(utilization_samples=[0] * 31), 30.0),
        (Gpu(utilization_samples=[0, 1]), 0.0),
        (Gpu(unsupported=["samples"]), None),
    ],
    ids=["since-it-worked", "as-far-as-the-samples-reach", "works", "unknown"],
)
def test_how_long_a_gpu_has_been_idle(machine, gpu, idle_s):
    with machine(gpu) as server:
        assert read(server).devices[0].idle_s == idle_s


@pytest.mark.parametrize(
    ("reading", "field"),
    [
        ("memory", "memory_total_bytes"),
        ("processes", "compute_processes"),
        ("graphics_processes", "graphics_processes"),
        ("compute_mode", "compute_mode"),
        ("pci", "pci_bus_id"),
    ],
)
def test_a_reading_that_is_not_supported_is_missing_and_the_others_stand(machine, reading, field):
    with machine(Gpu(unsupported=[reading], name="A"), Gpu(name="B")) as server:
        first, second = read(server).devices
    assert getattr(first, field) is None
    assert getattr(second, field) is not None
    assert first.name == "A"


def test_without_samples_the_momentary_utilization_counts(machine):
    with machine(Gpu(unsupported=["samples"], utilization_samples=[0, 0, 80])) as server:
        assert read(server).devices[0].utilization_percent == 80


def test_without_any_utilization_it_is_unknown(machine):
    with machine(Gpu(unsupported=["samples", "utilization"])) as server:
        assert read(server).devices[0].utilization_percent is None


@pytest.mark.parametrize("error", ["GPU_IS_LOST", "RESET_REQUIRED"])
def test_a_gpu_that_cannot_be_read_is_named_and_the_others_stand(machine, error):
    with machine(Gpu(), Gpu(nvml=error), Gpu()) as server:
        inventory = read(server)
    assert [device.index for device in inventory.devices] == [0, 2]
    assert [lost.index for lost in inventory.unreadable] == [1]
    assert inventory.unreadable[0].reason


def test_a_gpu_that_this_process_may_not_use_is_not_there(machine):
    with machine(Gpu(), Gpu(nvml="NO_PERMISSION"), Gpu()) as server:
        inventory = read(server)
    assert [device.index for device in inventory.devices] == [0, 2]
    assert (inventory.unreadable, inventory.denied) == ((), 1)


@pytest.mark.parametrize(
    ("error", "cause"),
    [("DRIVER_NOT_LOADED", "no-driver"), ("LIB_RM_VERSION_MISMATCH", "driver"), ("UNKNOWN", "driver")],
)
def test_a_driver_that_does_not_start_is_a_failure_in_words(machine, error, cause):
    with machine(Gpu(), nvml=error) as server:
        inventory = read(server)
    assert inventory.devices == ()
    assert inventory.failure.startswith("NVML reports: ")
    assert inventory.failure_cause == cause


@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="this machine has a driver")
def test_no_library_is_a_machine_without_gpu():
    done = subprocess.run(
        [sys.executable, "-c", READ + "\n", "30"], capture_output=True, text=True, timeout=60, check=True
    )
    assert "failure_cause='no-driver'" in done.stdout


def test_a_driver_that_crashes_takes_only_the_probe_along(machine):
    with machine(Gpu(), nvml="crash") as server:
        assert read(server).failure == "the process that reads NVML ended with signal 6"


def test_a_driver_that_hangs_costs_the_deadline_and_leaves_no_process(machine):
    program = """
        import os, sys, time
        from autogpu.devices import probe
        probe_ = probe.start(os.environ)
        before = time.monotonic()
        print(repr((probe_.result(float(sys.argv[1])), time.monotonic() - before, probe_.pid)))
    """
    with machine(Gpu(), nvml="hang") as server:
        inventory, waited_s, pid = read(server, 0.5, textwrap.dedent(program))
        # The hung process has no test for its parent's end; SIGKILL at the parent's exit is what ends it.
        deadline = time.monotonic() + 10
        while _is_running(pid) and time.monotonic() < deadline:
            time.sleep(0.01)
    assert inventory is None
    assert 0.3 < waited_s < 5
    assert not _is_running(pid)


def test_where_python_is_embedded_the_driver_is_read_in_a_thread(machine):
    program = """
        import os, sys
        sys.executable = "/usr/bin/uwsgi"
        from autogpu.devices import probe
        print(repr(probe.start(os.environ).result(float(sys.argv[1]))))
    """
    with machine(Gpu(), Gpu()) as server:
        assert len(read(server, program=textwrap.dedent(program)).devices) == 2


def test_the_process_itself_never_imports_pynvml(machine):
    program = READ + "assert 'pynvml' not in sys.modules\n"
    with machine(Gpu()) as server:
        read(server, program=program)


def _is_running(pid):
    try:
        with Path(f"/proc/{pid}/stat").open() as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def test_a_gpu_that_hangs_is_named_and_the_others_stand(machine):
    with machine(Gpu(), Gpu(nvml="hang"), Gpu()) as server:
        inventory = read(server)
    assert [device.index for device in inventory.devices] == [0, 2]
    assert [(lost.index, lost.reason) for lost in inventory.unreadable] == [(1, "it does not answer")]


AGAIN = """
import os, sys, time
from autogpu.devices import probe
first = probe.start(os.environ).result(30.0)
print("first", flush=True)
sys.stdin.readline()
second = probe.start_in_process(os.environ, first)
begun_s = time.monotonic()
print(repr((second.result(float(sys.argv[1])), time.monotonic() - begun_s, type(second).__name__)))
"""


def read_twice(server, change=lambda: None, deadline_s=30.0):
    from types import MappingProxyType as mappingproxy  # noqa: F401  (for eval)

    from autogpu.devices.model import (  # noqa: F401  (for eval)
        Device,
        Inventory,
        Process,
        Topology,
        TopologyQuestion,
        UnreadableDevice,
    )

    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    asking = server.popen([sys.executable, "-c", AGAIN, str(deadline_s)], **pipes)
    assert asking.stdout.readline() == "first\n"
    change()
    told, _ = asking.communicate("\n", timeout=60)
    assert asking.returncode == 0
    return eval(told)


def test_the_second_reading_is_taken_inside_and_is_fresh(machine):
    with machine(Gpu(), Gpu()) as server:
        inventory, _, kind = read_twice(server, lambda: server.change(1, utilization=88))
    assert kind == "ThreadReading"
    assert [device.utilization_percent for device in inventory.devices] == [0, 88]


def test_a_gpu_that_did_not_answer_is_not_asked_again(machine):
    with machine(Gpu(), Gpu(nvml="hang")) as server:
        inventory, waited_s, _ = read_twice(server)
    assert [device.index for device in inventory.devices] == [0]
    assert [(lost.index, lost.reason) for lost in inventory.unreadable] == [(1, "it does not answer")]
    assert waited_s < 2.5


def test_a_gpu_that_answers_again_is_read_again(machine):
    with machine(Gpu(), Gpu(nvml="GPU_IS_LOST")) as server:
        inventory, _, kind = read_twice(server, lambda: server.change(1, nvml=""))
    assert kind == "ThreadReading"
    assert ([device.index for device in inventory.devices], inventory.unreadable) == ([0, 1], ())


def test_a_gpu_that_begins_to_hang_costs_the_deadline_and_not_the_process(machine):
    with machine(Gpu(), Gpu()) as server:
        inventory, waited_s, _ = read_twice(server, lambda: server.change(1, nvml="hang"), deadline_s=0.5)
    assert [device.index for device in inventory.devices] == [0]
    assert [(lost.index, lost.reason) for lost in inventory.unreadable] == [(1, "it does not answer")]
    assert 0.3 < waited_s < 5


def test_a_driver_that_failed_is_asked_outside_again(machine):
    with machine(Gpu(), nvml="UNKNOWN") as server:
        inventory, _, kind = read_twice(server)
    assert (kind, inventory.failure is not None) == ("ProcessReading", True)


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
def test_a_user_with_as_many_processes_as_allowed_gets_a_failure_in_words(machine):
    with machine(Gpu()) as server:
        inventory = read(server, program=AT_THE_LIMIT)
    assert inventory.failure.startswith("neither a process nor a thread can be started to read NVML: ")


ASKS_WRONGLY = """
import os
from autogpu.devices import probe
first = probe.start(os.environ).result(30.0)
reading = probe.start_in_process(os.environ, first, lambda inventory: 1 / 0)
print([device.index for device in reading.result(30.0).devices])
"""


def test_a_question_that_can_not_be_asked_costs_neither_the_reading_nor_a_word(machine):
    with machine(Gpu(), Gpu()) as server:
        done = server.run([sys.executable, "-c", ASKS_WRONGLY], timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[0, 1]\n", "")
