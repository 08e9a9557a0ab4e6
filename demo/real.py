"""``make demo-real``: the same two jobs on this machine's own GPUs.

The demo asks first, and uses only GPUs on which no process runs. It caps the memory of every job in both runs, so that
other users of the machine lose nothing. By default TensorFlow would take whole GPUs, as the simulated demo shows.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from rich.console import Console

from autogpu.devices import probe
from autogpu.devices.model import Device, Inventory
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
    progress = Console(stderr=True)
    if shutil.which("nvidia-smi") is None:
        progress.print("nvidia-smi not found: this demo needs an NVIDIA GPU. Run `make demo`, which needs none.")
        return 1
    machine = reading()
    free = [device for device in machine.devices if is_unused(device)]
    if not free:
        progress.print("All GPUs are in use, and this demo uses only idle ones. Run `make demo`, which needs no GPU.")
        return 1
    names = ", ".join(f"GPU {device.index} ({device.name})" for device in free)
    question = f"Train a small network twice, {JOBS} jobs at once of at most {LIMIT_MIB} MiB each, on {names}? [y/N] "
    if Console().input(question).strip().lower() not in ("y", "yes"):
        return 1
    with progress.status("setting up: installing TensorFlow with CUDA (once: some minutes, 6 GB) ..."):
        base = environments.environment(
            environments.tensorflow().resolve(), ["tensorflow[and-cuda]==2.21.*"], with_autogpu=False
        )
        plain = environments.environment(base.resolve(), on_top_of=base, with_autogpu=False)
        with_autogpu = environments.environment(base.resolve(), on_top_of=base, with_hook=True)
    before = [device.memory_used_bytes or 0 for device in machine.devices]
    busy = [device.index for device in machine.devices if device not in free]
    return compare(lambda python: run(python, free, machine), plain, with_autogpu, before, busy)


def reading() -> Inventory:
    """Return a new reading of the GPUs; end the program with the reason if they can't be read."""
    inventory = probe.start(os.environ).result(30.0)
    if inventory is None or inventory.failure:
        raise SystemExit(f"the GPUs can't be read: {inventory.failure if inventory else 'the driver does not answer'}")
    return inventory


def is_unused(device: Device) -> bool:
    """True if MIG is off, no compute process is listed, and non-graphics use of the memory is below 1 GiB."""
    hidden_bytes = (device.memory_used_bytes or 0) - sum(
        p.memory_used_bytes or 0 for p in device.graphics_processes or ()
    )
    return not device.compute_processes and not device.mig_enabled and hidden_bytes < 1 << 30


def run(python: Path, free: list[Device], before: Inventory) -> Phase:
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
        most, held = watch(jobs, before)
        errors = [job.communicate(timeout=60)[1] for job in jobs]
    finally:
        for job in jobs:
            job.kill()
            job.wait()
    # A context alone takes some hundred MiB. A job works on the GPU on which it holds the most memory.
    working = tuple(frozenset([max(gpus, key=lambda gpu: gpus[gpu])] if gpus else []) for gpus in held)
    return Phase(
        exit_statuses=tuple(job.returncode for job in jobs),
        most_bytes=tuple(most),
        working_gpus=working,
        context_gpus=tuple(frozenset(gpus) for gpus in held),
        lines=tuple(line for error in errors for line in error.splitlines() if line.startswith("autogpu: ")),
    )


def watch(jobs: list[subprocess.Popen[str]], before: Inventory) -> tuple[list[int], list[dict[int, int]]]:
    """Return the peak memory in use above ``before`` for each GPU, and the peak of each job, keyed by GPU index."""
    most = [0] * len(before.devices)
    held: list[dict[int, int]] = [{} for _ in jobs]
    started_s = time.monotonic()
    while any(job.poll() is None for job in jobs) and time.monotonic() - started_s < 600:
        for position, device in enumerate(reading().devices):
            grown = (device.memory_used_bytes or 0) - (before.devices[position].memory_used_bytes or 0)
            most[position] = max(most[position], grown)
            for process in device.compute_processes or ():
                for job, gpus in zip(jobs, held):
                    if job.pid == process.pid:
                        gpus[position] = max(gpus.get(position, 0), process.memory_used_bytes or 0)
    return most, held


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (KeyboardInterrupt, EOFError):
        sys.exit("stopped")
