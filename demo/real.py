"""``make demo-real``: the same two jobs on this machine's own GPUs.

The demo asks first, and uses only GPUs on which no process runs. It caps the memory of every job in both runs, so that
other users of the machine lose nothing. By default TensorFlow would take whole GPUs, as the simulated demo shows.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from rich.console import Console

from autogpu.devices import probe
from autogpu.devices.model import Device, Inventory
from demo.pythons import pythons_on_top_of
from demo.story import Phase, compare
from tests.support import environments

SCRIPT = Path(__file__).with_name("train.py")
JOBS = 2
LIMIT_MIB = 1024

# The script sets this memory limit itself, so that it applies with and without autogpu.
CAPPED = """
import runpy, sys
import tensorflow as tf
for gpu in tf.config.list_physical_devices("GPU"):
    tf.config.set_logical_device_configuration(gpu, [tf.config.LogicalDeviceConfiguration(memory_limit={limit})])
sys.argv = [{script!r}]
runpy.run_path({script!r}, run_name="__main__")
""".format(limit=LIMIT_MIB, script=str(SCRIPT))


def main() -> int:
    """Run the jobs twice and show both runs; return 1 if no GPU can be used or a job failed with autogpu."""
    machine = reading()
    free = [device for device in machine.devices if is_unused(device)]
    if not free:
        sys.exit("All GPUs are in use, and this demo uses only idle ones. Run `make demo`, which needs no GPU.")
    names = ", ".join(f"GPU {device.index} ({device.name})" for device in free)
    question = f"Train a small network twice, {JOBS} jobs at once of at most {LIMIT_MIB} MiB each, on {names}? [y/N] "
    if Console().input(question).strip().lower() not in ("y", "yes"):
        return 1
    with Console(stderr=True).status("setting up: installing TensorFlow with CUDA (once: some minutes, 6 GB) ..."):
        python = environments.tensorflow().resolve()
        base = environments.environment(python, ["tensorflow[and-cuda]==2.21.*"], with_autogpu=False)
        both = pythons_on_top_of(base)
    before = [device.memory_used_bytes or 0 for device in machine.devices]
    busy = [device.index for device in machine.devices if device not in free]
    return compare(lambda python: run(python, free, before), both, before, busy)


def reading() -> Inventory:
    """Return a new reading of the GPUs; end the program with the reason if they can't be read."""
    inventory = probe.finish(probe.start(os.environ))
    if inventory.failure:
        sys.exit(f"The GPUs can't be read: {inventory.failure}. Run `make demo`, which needs no GPU.")
    return inventory


def is_unused(device: Device) -> bool:
    """True if MIG is off, and no process except those of a desktop uses the GPU."""
    return not (device.mig_enabled or device.compute_processes or device.unlisted_bytes)


def run(python: Path, free: list[Device], before: list[int]) -> Phase:
    """Start the jobs together, confined to the unused GPUs, and watch NVML until both have ended."""
    environ = {k: v for k, v in os.environ.items() if not k.startswith("AUTOGPU")}
    environ["CUDA_VISIBLE_DEVICES"] = ",".join(device.uuid for device in free)
    environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    command = [str(python), "-c", CAPPED]
    jobs = [
        subprocess.Popen(command, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        for _ in range(JOBS)
    ]
    try:
        most, taken = watch(jobs, before)
        errors = [job.communicate(timeout=60)[1] for job in jobs]
    finally:
        for job in jobs:
            job.kill()
            job.wait()
    return Phase([job.returncode for job in jobs], most, taken, errors)


def watch(jobs: list[subprocess.Popen[str]], before: list[int]) -> tuple[list[int], list[dict[int, int]]]:
    """Return the peak memory in use above ``before`` for each GPU, and the peak of each job, keyed by GPU index."""
    most = [0] * len(before)
    taken: dict[int, dict[int, int]] = {job.pid: {} for job in jobs}
    started_s = time.monotonic()
    while any(job.poll() is None for job in jobs) and time.monotonic() - started_s < 600:
        for position, device in enumerate(reading().devices):
            most[position] = max(most[position], (device.memory_used_bytes or 0) - before[position])
            for process in device.compute_processes or ():
                if process.pid in taken:
                    its = taken[process.pid]
                    its[position] = max(its.get(position, 0), process.memory_used_bytes or 0)
    return most, list(taken.values())


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (KeyboardInterrupt, EOFError):
        sys.exit("stopped")
