"""Comparison of autogpu's readings of a real driver with those of nvidia-smi and pynvml."""

import json
import os
import shutil
import sys

import pytest

from autogpu.devices import probe
from autogpu.devices.model import ComputeMode
from tests.devices.test_contract import check_identity
from tests.devices.test_nvml import BOTH
from tests.gpu.conftest import answer, needs_driver
from tests.gpu.jobs import go_on, reading
from tests.support.framework_jobs import AT_ONCE

pytestmark = [pytest.mark.gpu, needs_driver, pytest.mark.timeout(300), pytest.mark.xdist_group("gpu")]

needs_nvidia_smi = pytest.mark.skipif(shutil.which("nvidia-smi") is None, reason="no nvidia-smi on this machine")

FIELDS = ("memory.total", "memory.used", "memory.reserved", "utilization.gpu", "temperature.gpu", "power.draw")
# Memory, temperature and power change between two readings, and nvidia-smi rounds memory to MiB.
SLACK_MIB, SLACK_CELSIUS, SLACK_WATTS = 64, 3, 30


def query(what, *fields):
    """Return the rows that nvidia-smi prints. A value such as ``[N/A]`` is left out."""
    lines = answer("nvidia-smi", f"--query-{what}={','.join(fields)}", "--format=csv,noheader,nounits").splitlines()
    rows = [dict(zip(fields, line.split(", "))) for line in lines]
    return [{name: value for name, value in row.items() if not value.startswith("[")} for row in rows]


def numbers(gpu):
    return {name: float(gpu[name]) for name in FIELDS if name in gpu}


def mib(size):
    return None if size is None else size >> 20


def check(ours, bounds, slack):
    """Fail if autogpu's value is not within ``slack`` of nvidia-smi's values, or if only one of both has a value."""
    assert (ours is None) == (not bounds), (ours, bounds)
    assert ours is None or min(bounds) - slack <= ours <= max(bounds) + slack, (ours, bounds)


@needs_nvidia_smi
def test_readings_of_gpus_equal_those_of_nvidia_smi(record_property):
    names = ("uuid", "compute_mode", *FIELDS)
    before, devices, after = query("gpu", *names), reading().devices, query("gpu", *names)
    gpus = [gpu for gpu in devices if gpu.instance is None]
    assert [gpu.uuid for gpu in gpus] == [row["uuid"] for row in before]
    for gpu, row, around in zip(gpus, before, zip(map(numbers, before), map(numbers, after))):
        both = {name: [each[name] for each in around if name in each] for name in FIELDS}
        assert gpu.compute_mode == ComputeMode[row["compute_mode"].upper()]
        check(mib(gpu.memory_total_bytes), both["memory.total"], 1)
        # nvidia-smi reports the driver's reserved memory separately. Version 1 of NVML's call counts it as used.
        used = both["memory.used"]
        check(mib(gpu.memory_used_bytes), [*used, *map(sum, zip(used, both["memory.reserved"]))], SLACK_MIB)
        check(gpu.temperature_celsius, both["temperature.gpu"], SLACK_CELSIUS)
        check(gpu.power_watts, both["power.draw"], SLACK_WATTS)
        # autogpu's utilization is a mean over ten seconds, so the two values may be far apart.
        check(gpu.utilization_percent, both["utilization.gpu"], 100)
        ours = (mib(gpu.memory_used_bytes), gpu.utilization_percent, gpu.temperature_celsius, gpu.power_watts)
        _, used_mib, reserved_mib, *others = (both[name][0] if both[name] else None for name in FIELDS)
        theirs = in_words(f"{used_mib} + {reserved_mib} reserved", *others)
        record_property("measured", f"GPU {gpu.index}: {in_words(*ours)}; nvidia-smi: {theirs}")


def in_words(used, utilization, temperature, power):
    return f"{used} MiB, {utilization} %, {temperature} C, {power} W"


@needs_nvidia_smi
def test_listed_processes_equal_those_of_nvidia_smi(jobs, framework, record_property):
    job = jobs.start(AT_ONCE[framework])
    go_on(job)
    assert [job.stdout.readline().split()[0] for _ in range(2)] == ["imported", "ready"]
    [uuid] = jobs.taken()
    [gpu] = [gpu for gpu in reading().devices if gpu.uuid == uuid]
    rows = query("compute-apps", "gpu_uuid", "pid", "used_gpu_memory")
    theirs = {int(row["pid"]): row.get("used_gpu_memory") for row in rows if row["gpu_uuid"] == uuid}
    ours = {process.pid: mib(process.memory_used_bytes) for process in gpu.compute_processes or ()}
    assert ours.keys() == theirs.keys()
    for pid, used in ours.items():
        check(used, [float(theirs[pid])] if theirs[pid] else [], SLACK_MIB)
    # Inside a container the driver's pids are those of the host, or hidden.
    own = f"{ours[job.pid]} MiB" if job.pid in ours else "its pid is not listed"
    record_property("measured", f"a job of {framework}: {own}; {len(ours)} processes listed")


def test_second_reading_finds_the_same_gpus():
    first = probe.finish(probe.start(os.environ))
    check_identity(first)
    second = probe.start_in_process(os.environ, first).result(60.0)
    assert second is not None
    assert [device.uuid for device in second.devices] == [device.uuid for device in first.devices]


def test_readings_equal_those_of_pynvml():
    ours, theirs = json.loads(answer(sys.executable, "-c", BOTH))
    # autogpu's utilization is a mean over ten seconds, and the other values change on a machine in use.
    for row in (*ours["devices"], *theirs["devices"]):
        for moving in ("utilization_percent", "memory_used_bytes", "power_watts", "temperature_celsius"):
            del row[moving]
    assert ours["devices"] == theirs["devices"]
    assert ours["driver_version"] == theirs["driver_version"]
