"""``make demo``: two jobs at once on a simulated server of four GPUs, first without autogpu, then with it.

The server is always simulated: on a real one the jobs without autogpu would take colleagues' memory.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Sequence, Tuple

from rich.console import Console

from demo.pytorch import pythons_with_torch
from demo.story import Phase, compare, phase
from tests.gpusim import Gpu, Server
from tests.gpusim.fleet import size_bytes
from tests.gpusim.imports import record_torch
from tests.support import environments

KERAS, TORCH = (Path(__file__).with_name(name) for name in ("train.py", "train_torch.py"))

# A job is an interpreter and a script.
Job = Tuple[Path, Path]

# Colleagues' jobs run on two of the four GPUs. One of these is GPU 0, which CUDA uses by default.
LAB = (
    Gpu(name="NVIDIA GeForce RTX 2080 Ti", memory="11GiB", processes={5004242: "6.5GiB"}, utilization=97),
    Gpu(name="NVIDIA GeForce RTX 2080 Ti", memory="11GiB"),
    Gpu(name="NVIDIA GeForce RTX 2080 Ti", memory="11GiB", processes={5004243: "9GiB"}, utilization=88),
    Gpu(name="NVIDIA GeForce RTX 2080 Ti", memory="11GiB"),
)


def main() -> int:
    """Run the jobs twice and show both runs; return 1 if a job failed with autogpu."""
    console = Console()
    with Console(stderr=True).status("setting up: installing TensorFlow (once: about a minute, 2 GB) ..."):
        python = environments.tensorflow()
        plain = environments.environment(python.resolve(), on_top_of=python, with_autogpu=False)
        with_autogpu = environments.tensorflow_with_autogpu()
        torch = pythons_with_torch()
    server = f"at the same time on a simulated server with {len(LAB)} GPUs of 11 GiB.\n"
    console.print("\ndemo/train.py is a plain Keras script that selects no GPU.")
    jobs = [[(python, KERAS)] * 2 for python in (plain, with_autogpu)]
    if torch:
        console.print("demo/train_torch.py is a plain PyTorch script (used because your `python` has PyTorch).")
        console.print(f"Both start {server}")
        jobs = [[first, (python, TORCH)] for (first, _), python in zip(jobs, torch)]
    else:
        console.print(f"Two copies of it start {server}")
    before = [sum(map(size_bytes, gpu.processes.values())) for gpu in LAB]
    return compare(run, jobs[0], jobs[1], before, [index for index, gpu in enumerate(LAB) if gpu.processes])


def run(starts: Sequence[Job]) -> Phase:
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
        statuses = [job.returncode for job in jobs]
        for status, error in zip(statuses, errors):
            if status:
                print(f"a job ended with status {status}:\n{error[-2000:]}", file=sys.stderr)
        return phase(server.calls(), [job.pid for job in jobs], statuses, len(LAB), errors)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("stopped")
