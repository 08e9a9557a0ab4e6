"""Jobs that start at the same instant: how many share a GPU that they need alone, and the time until all have one.

    python benchmarks/contention.py [--runs N]

The jobs run on simulated GPUs, once with ``autogpu run --hold`` and once with nvitop's ``select_devices``. A job makes
a CUDA context on its GPU and keeps it until all jobs have one. The driver's log shows the GPU of each job:

* **shared**: jobs that need a whole GPU but got one that another job uses too;
* **over**: the memory that the jobs on one GPU need beyond what it has, for the GPU with the largest excess;
* **seconds**: from the first start until the last job has its context; the median of the runs.

The hand-over is the time from the SIGKILL of a job until the job that waits for its GPU has a context. Its floor is
the time until the same job has a context on an idle server.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import Iterator, Mapping, NamedTuple, Sequence

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.gpusim import Gpu, Server  # noqa: E402  (needs the sys.path entry above)
from tests.support import environments  # noqa: E402

GIB = 1 << 30
GPU_BYTES = 24 * GIB

JOB = """
import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")
device, context = ctypes.c_int(), ctypes.c_void_p()
assert cuda.cuInit(0) == 0 and cuda.cuDeviceGet(ctypes.byref(device), 0) == 0, "no GPU"
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) == 0, "no context"
print("on", flush=True)
sys.stdin.read()
"""

# Without a stated need, a user who wants a whole GPU asks nvitop for nine tenths of one.
NVITOP = """
import os
from nvitop import select_devices
found = select_devices(format="uuid", max_count=1, min_free_memory={need_bytes})
os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(found)
"""


class Scenario(NamedTuple):
    """Jobs that start together; each needs ``1 / jobs_per_gpu`` of a GPU."""

    jobs: int
    gpus: int
    jobs_per_gpu: int = 1

    @property
    def need_bytes(self) -> int:
        return GPU_BYTES // self.jobs_per_gpu


class Outcome(NamedTuple):
    """Result of one start with one tool; the module's docstring explains the fields."""

    shared: int
    over_bytes: int
    seconds: float


SCENARIOS = (Scenario(4, 4), Scenario(16, 8, jobs_per_gpu=2), Scenario(64, 8, jobs_per_gpu=8))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--runs", type=int, default=5, help="starts of each scenario, and number of hand-overs (default: 5)"
    )
    runs = parser.parse_args().runs
    python = environments.environment(environments.interpreter(), ["nvitop"])
    print(f"{'':32}{'shared':>10}{'over':>10}{'seconds':>10}")
    for scenario in SCENARIOS:
        outcomes: dict[str, list[Outcome]] = {"autogpu": [], "nvitop": []}
        for _ in range(runs):
            for tool, of_tool in outcomes.items():
                of_tool.append(start_together(python, scenario, tool))
        report(scenario, outcomes)
    floor_s, handovers_s = hand_over(python, runs)
    median_s = statistics.median(handovers_s)
    print(f"hand-over after SIGKILL: {median_s:.2f} s, {median_s / floor_s:.2f} x a start on an idle GPU")


def report(scenario: Scenario, outcomes: Mapping[str, Sequence[Outcome]]) -> None:
    seconds = {}
    for tool, of_tool in outcomes.items():
        shared = sum(outcome.shared for outcome in of_tool) if scenario.jobs_per_gpu == 1 else "-"
        over_gib = max(outcome.over_bytes for outcome in of_tool) / GIB
        seconds[tool] = statistics.median(outcome.seconds for outcome in of_tool)
        name = f"{scenario.jobs} jobs on {scenario.gpus} GPUs, {tool}"
        print(f"{name:32}{shared:>10}{over_gib:>6.0f} GiB{seconds[tool]:>10.2f}")
    print(f"  seconds, autogpu / nvitop: {seconds['autogpu'] / seconds['nvitop']:.2f}", flush=True)


def start_together(python: Path, scenario: Scenario, tool: str) -> Outcome:
    with simulated(scenario.gpus) as (server, environ):
        begun_s = time.monotonic()
        jobs = [start(server, python, environ, scenario, tool) for _ in range(scenario.jobs)]
        for job in jobs:
            wait_until_on(job)
        seconds = time.monotonic() - begun_s
        jobs_on = Counter(gpu for gpus in server.contexts().values() for gpu in gpus)
        for job in jobs:
            job.communicate(timeout=60)
    assert sum(jobs_on.values()) == scenario.jobs, "some job has no GPU, or two"
    shared = sum(count for count in jobs_on.values() if count > 1)
    over_bytes = max(jobs_on.values()) * scenario.need_bytes - GPU_BYTES
    return Outcome(shared, max(over_bytes, 0), seconds)


def hand_over(python: Path, runs: int) -> tuple[float, list[float]]:
    """Time a start on an idle GPU, then hand-overs: kill a job and time the start of the job that waits for its GPU."""
    one_job = Scenario(1, 1)
    with simulated(1) as (server, environ):
        environ["AUTOGPU_BUSY"] = "wait"
        begun_s = time.monotonic()
        holder = start(server, python, environ, one_job, "autogpu")
        wait_until_on(holder)
        floor_s = time.monotonic() - begun_s
        handovers_s = []
        for _ in range(runs):
            waiter = start(server, python, environ, one_job, "autogpu")
            while not list(Path(environ["AUTOGPU_LEASE_DIR"]).glob("wait.*")):
                time.sleep(0.05)
            time.sleep(random.uniform(0, 3))  # a random moment: a waiting job looks for a free GPU every few seconds
            begun_s = time.monotonic()
            os.killpg(holder.pid, signal.SIGKILL)
            wait_until_on(waiter)
            handovers_s.append(time.monotonic() - begun_s)
            holder = waiter
        holder.communicate(timeout=60)
    return floor_s, handovers_s


@contextmanager
def simulated(gpus: int) -> Iterator[tuple[Server, dict[str, str]]]:
    with tempfile.TemporaryDirectory() as folder:
        environ = {"AUTOGPU_LEASE_DIR": f"{folder}/leases", "AUTOGPU_POLICY": os.devnull, "HOME": folder}
        with Server([Gpu(memory=GPU_BYTES)] * gpus, folder=Path(folder)) as server:
            yield server, environ


def start(
    server: Server, python: Path, environ: Mapping[str, str], scenario: Scenario, tool: str
) -> subprocess.Popen[str]:
    if tool == "nvitop":
        need_bytes = scenario.need_bytes if scenario.jobs_per_gpu > 1 else GPU_BYTES * 9 // 10
        command = [str(python), "-c", NVITOP.format(need_bytes=need_bytes) + JOB]
    else:
        need = ["--need", f"{scenario.need_bytes >> 20}MiB"] if scenario.jobs_per_gpu > 1 else []
        command = [str(python), "-m", "autogpu", "run", *need, "--hold", "--", str(python), "-c", JOB]
    pipe = subprocess.PIPE
    # The root folder has no pyproject.toml with a policy. A session per job: killing its group ends all its processes.
    return server.popen(
        command, environ=environ, cwd="/", stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, start_new_session=True
    )


def wait_until_on(job: subprocess.Popen[str]) -> None:
    assert job.stdout is not None
    if job.stdout.readline() != "on\n":
        raise SystemExit(f"contention.py: a job got no GPU and ended with status {job.wait(timeout=60)}")


if __name__ == "__main__":
    for name in [name for name in os.environ if name.startswith(("AUTOGPU", "CUDA_", "GPUSIM"))]:
        if name != "AUTOGPU_TEST_CACHE":
            del os.environ[name]
    main()
