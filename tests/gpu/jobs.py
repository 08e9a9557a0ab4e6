"""Jobs that run side by side on a real driver, judged by the memory that NVML shows and by the leases."""

import os
import subprocess
from typing import Any

from autogpu.devices import probe
from tests.support.live_jobs import leases

# A context takes more than this, and the memory of other programs changes by less.
NOTICEABLE_BYTES = 64 << 20


def reading():
    inventory = probe.start(os.environ).result(30.0)
    assert inventory is not None
    assert inventory.failure is None
    return inventory


def used_bytes():
    """Return the bytes that all processes use on each GPU, keyed by UUID."""
    return {gpu.uuid: gpu.memory_total_bytes - gpu.memory_free_bytes for gpu in reading().devices}


class Jobs:
    """Scripts that run side by side, with a lease folder of their own."""

    def __init__(self, python, folder):
        self._python = python
        self._folder = folder
        self.leases = folder / "leases"
        self.leases.mkdir()
        self._processes = []
        self._before = used_bytes()

    def start(self, script, **environ):
        file = self._folder / f"job{len(self._processes)}.py"
        file.write_text(script)
        mine = {name: value for name, value in os.environ.items() if not name.startswith(("AUTOGPU", "CUDA_"))}
        everything = {**mine, "AUTOGPU_LEASE_DIR": str(self.leases), **environ}
        pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        command = [str(self._python), "-W", "ignore", str(file)]
        self._processes.append(subprocess.Popen(command, env=everything, cwd=str(self._folder), text=True, **pipes))
        return self._processes[-1]

    def claims(self):
        """Return the GPUs of each lease, keyed by the pid of its holder."""
        return {lease["pid"]: sorted(lease["gpus"]) for lease in leases(self.leases).values()}

    def taken(self):
        """Return the GPUs with more memory in use than before the first job: additional bytes keyed by UUID."""
        now = used_bytes()
        return {uuid: now[uuid] - used for uuid, used in self._before.items() if now[uuid] - used > NOTICEABLE_BYTES}

    def close(self):
        for process in self._processes:
            process.kill()
            process.communicate(timeout=120)


def go_on(job):
    job.stdin.write("\n")
    job.stdin.flush()
