"""``make demo``: two jobs at once on a simulated server of four GPUs, first without autogpu, then with it.

The server is always simulated: on a real one the jobs without autogpu would take colleagues' memory.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Sequence

from rich.console import Console

from demo.pythons import pythons_on_top_of, pythons_with_torch
from demo.story import Phase, compare
from tests.gpusim import Call, Gpu, Server
from tests.gpusim.fleet import size_bytes
from tests.gpusim.imports import record_torch
from tests.support import environments

KERAS, TORCH = (Path(__file__).with_name(name) for name in ("train.py", "train_torch.py"))

# Colleagues' jobs run on two of the four GPUs. One of these is GPU 0, which CUDA uses by default.
LAB = (
    Gpu(name="NVIDIA GeForce RTX 2080 Ti", memory="11GiB", processes={5004242: "6.5GiB"}, utilization=97),
    Gpu(name="NVIDIA GeForce RTX 2080 Ti", memory="11GiB"),
    Gpu(name="NVIDIA GeForce RTX 2080 Ti", memory="11GiB", processes={5004243: "9GiB"}, utilization=88),
    Gpu(name="NVIDIA GeForce RTX 2080 Ti", memory="11GiB"),
)
BEFORE_BYTES = [sum(map(size_bytes, gpu.processes.values())) for gpu in LAB]
BUSY = [index for index, used_bytes in enumerate(BEFORE_BYTES) if used_bytes]


def main() -> int:
    """Run the jobs twice and show both runs; return 1 if a job failed with autogpu."""
    console = Console()
    with Console(stderr=True).status("setting up: installing TensorFlow (once: about a minute, 2 GB) ..."):
        jobs = [[(python, KERAS)] * 2 for python in pythons_on_top_of(environments.tensorflow())]
        torch = pythons_with_torch()
    server = f"at the same time on a simulated server with {len(LAB)} GPUs of 11 GiB.\n"
    console.print("\ndemo/train.py is a plain Keras script that selects no GPU.")
    if torch:
        console.print("demo/train_torch.py is a plain PyTorch script (used because your `python` has PyTorch).")
        console.print(f"Both start {server}")
        jobs = [[first, (python, TORCH)] for (first, _), python in zip(jobs, torch)]
    else:
        console.print(f"Two copies of it start {server}")
    return compare(run, jobs, BEFORE_BYTES, BUSY)


def run(starts: Sequence[tuple[Path, Path]]) -> Phase:
    """Start each Python with its script at the same time on a new server, and wait for all of them."""
    preloaded = record_torch("python")
    with tempfile.TemporaryDirectory() as folder, Server(LAB, folder=Path(folder), preloaded=preloaded) as server:
        jobs = [
            server.popen(
                [str(python), str(script)],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                # The history of these runs goes into the demo's temporary folder, not into the user's.
                environ={"TF_CPP_MIN_LOG_LEVEL": "3", "AUTOGPU_LEASE_DIR": folder, "XDG_STATE_HOME": folder},
            )
            for python, script in starts
        ]
        errors = [job.communicate(timeout=600)[1] for job in jobs]
        for job, error in zip(jobs, errors):
            if job.returncode:
                print(f"a job ended with status {job.returncode}:\n{error[-2000:]}", file=sys.stderr)
        most, taken = memory_of(server.calls(), [job.pid for job in jobs])
        return Phase([job.returncode for job in jobs], most, taken, errors)


def memory_of(calls: Sequence[Call], pids: Sequence[int]) -> tuple[list[int], list[dict[int, int]]]:
    """Return the peak memory of all jobs together on each GPU, and what each job took, keyed by GPU."""
    held, most = [0] * len(LAB), [0] * len(LAB)
    taken: dict[int, dict[int, int]] = {pid: {} for pid in pids}
    for call in calls:
        if call.pid not in taken or call.gpu is None or call.bytes is None:
            continue
        if call.call in ("context", "allocate"):
            held[call.gpu] += call.bytes
            most[call.gpu] = max(most[call.gpu], held[call.gpu])
            taken[call.pid][call.gpu] = taken[call.pid].get(call.gpu, 0) + call.bytes
        elif call.call in ("context_end", "free"):
            held[call.gpu] -= call.bytes
    return most, list(taken.values())


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("stopped")
