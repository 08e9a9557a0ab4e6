"""Jobs of real TensorFlow on a cluster of simulated servers, and what became of them."""

from __future__ import annotations

import json
import subprocess
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Callable, Sequence

from tests.engines.slurm import Slurm, device_folder
from tests.gpusim import Gpu, Server

GIB = 1 << 30

# Takes one tensor on each GPU that it gets. TensorFlow takes memory by regions, each twice the one before and the last
# one cut off at the limit: so a tensor larger than half the limit shows the limit, and nothing has to be refused, for
# which TensorFlow waits ten seconds.
FILL = """
import json, os, sys
visible = os.environ.get("CUDA_VISIBLE_DEVICES")
import tensorflow as tf

gib = float(sys.argv[1])
blocks = []
for gpu in tf.config.list_logical_devices("GPU"):
    with tf.device(gpu.name):
        try:
            blocks.append(tf.raw_ops.Empty(shape=[round(gib * 1024), 1 << 18], dtype=tf.float32))
        except tf.errors.ResourceExhaustedError:
            pass
tf.zeros((2, 2))
task = [int(os.environ.get(name, 0)) for name in ("SLURM_NODEID", "SLURM_PROCID", "SLURM_ARRAY_TASK_ID")]
told = {"pid": os.getpid(), "task": task, "visible": visible}
print(json.dumps(told), flush=True)
if "hold" in sys.argv:
    sys.stdin.read()
"""

# What a tensor must have in GiB, to be refused by half of a GPU of 24 GiB, and to show the end of such a half. The rest
# of the GPU goes to the context, and to what TensorFlow leaves to the system.
WHOLE, HALF = 22.0, 10.5
# At the most a half.
MOST_OF_HALF = 12.0


class Cluster:
    """Slurm, the simulated servers of its nodes, and a script that takes their memory.

    Args:
        python: What runs the script.
    """

    def __init__(self, slurm: Slurm, python: Path) -> None:
        self.slurm, self.servers = slurm, slurm.servers
        self.file = slurm.folder / "train.py"
        self.file.write_text(FILL)
        self.python = str(python)

    def fill(self, gib: float = WHOLE, *more: str) -> list[str]:
        """The command that takes ``gib`` on each of its GPUs."""
        return [self.python, str(self.file), str(gib), *more]

    def taken(self, done: subprocess.CompletedProcess[str]) -> list[dict[int, str]]:
        """What each task has taken, in the order of their ranks: by GPU, ``whole``, ``half``, or the size."""
        # pytest explains bare assertions in files of tests only.
        assert done.returncode == 0, f"exit status {done.returncode}\n{done.stdout}\n{done.stderr}"
        reports = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        assert reports, done.stderr
        return [self.taken_by(told) for told in sorted(reports, key=lambda told: told["task"])]

    def taken_by(self, told: dict[str, Any]) -> dict[int, str]:
        # By the process: SLURM_NODEID counts the nodes of a job, which need not begin with the cluster's first one.
        used = (server for server in self.servers if server.calls(pid=told["pid"], call="context"))
        server = next(used, self.servers[told["task"][0]])
        sizes = {call.gpu: 0 for call in server.calls(pid=told["pid"], call="context")}
        for call in server.calls(pid=told["pid"], call="allocate"):
            sizes[call.gpu] += call.bytes or 0
        return {gpu: in_words(size) for gpu, size in sorted(sizes.items())}

    def keep_from_others(self, *arguments: str) -> None:
        """Give these resources, to the end, to a job that uses no GPU: Slurm grants the lowest numbers first."""
        self.slurm.popen(*arguments, command=["/bin/sh", "-c", "echo; exec cat"]).stdout.readline()

    def held(self, *arguments: str, gib: float = 0.5) -> tuple[subprocess.Popen[str], dict[str, Any]]:
        """A job that keeps what it has until its input ends, and what it told."""
        job = self.slurm.popen(*arguments, command=self.fill(gib, "hold"))
        for line in job.stdout:
            if line.startswith("{"):
                return job, json.loads(line)
        raise AssertionError(f"it ended without a report\n{job.communicate(timeout=60)[1]}")


def in_words(size: int) -> str:
    gib = size / GIB
    if gib >= WHOLE:
        return "whole"
    return "half" if HALF <= gib <= MOST_OF_HALF else f"{gib:.1f} GiB"


def said(done: subprocess.CompletedProcess[str]) -> list[str]:
    """What autogpu printed."""
    return [line for line in done.stderr.splitlines() if line.startswith("autogpu: ")]


class Clusters:
    """Starts clusters, each in a new folder; ``close`` ends them."""

    def __init__(self, new_folder: Callable[[str], Path], python: Path) -> None:
        self._new_folder, self._python = new_folder, python
        self._running = ExitStack()

    def __call__(self, *nodes: Sequence[Gpu], denied: str = "", **options: Any) -> Cluster:
        """Start one with these GPUs on its nodes.

        Args:
            denied: What NVML does with GPUs that a cgroup keeps from a job; ``""`` for no cgroups.
            options: Of ``Slurm``.
        """
        folder = self._new_folder("slurm")
        servers = []
        for position, gpus in enumerate(nodes or ([Gpu()] * 4,)):
            place = folder / f"server{position}"
            place.mkdir()
            files = {"device_files": str(device_folder(folder, position)), "denied": denied} if denied else {}
            servers.append(self._running.enter_context(Server(gpus, folder=place, **files)))
            options.setdefault("gpus", len(gpus))
        slurm = Slurm(folder, *servers, cgroup=bool(denied), **options)
        return Cluster(self._running.enter_context(slurm), self._python)

    def close(self) -> None:
        self._running.close()
