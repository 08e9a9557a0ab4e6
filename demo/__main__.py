"""``make demo``: two jobs at once on a simulated server of four GPUs, first without autogpu, then with it.

Always simulated: on a real server the first half would take colleagues' memory.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from demo.story import GIB, Phase, phase, sentence
from tests import environments
from tests.gpusim import Gpu, Server

SCRIPT = Path(__file__).with_name("train.py")
JOBS = 2

# Two of the four belong to colleagues. CUDA's own "GPU 0" is one of those, as it happens on the first morning.
LAB = (
    Gpu(name="NVIDIA GeForce RTX 2080 Ti", memory="11GiB", processes={4242: "6.5GiB"}, utilization=97),
    Gpu(name="NVIDIA GeForce RTX 2080 Ti", memory="11GiB"),
    Gpu(name="NVIDIA GeForce RTX 2080 Ti", memory="11GiB", processes={4243: "9GiB"}, utilization=88),
    Gpu(name="NVIDIA GeForce RTX 2080 Ti", memory="11GiB"),
)
BUSY = (0, 2)


def main() -> int:
    console, progress = Console(), Console(stderr=True)
    with progress.status("setting up: TensorFlow (once: a minute, 2 GB) ..."):
        plain = environments.environment(
            environments.tensorflow().resolve(), on_top_of=environments.tensorflow(), with_autogpu=False
        )
        with_autogpu = environments.tensorflow_with_autogpu()
    with progress.status("two jobs at once, without autogpu ..."):
        without = run(plain)
    with progress.status("the same two jobs at once, with autogpu ..."):
        with_ = run(with_autogpu)
    console.print(f"\nThe script: {SCRIPT.relative_to(Path.cwd()) if SCRIPT.is_relative_to(Path.cwd()) else SCRIPT}")
    console.print("A plain Keras training; it says nothing about GPUs. Started twice at the same moment.\n")
    console.print(table(without, with_))
    if with_.lines:
        console.print("\nWhat autogpu said:")
        for line in with_.lines:
            console.print(f"  {line}", markup=False, highlight=False, soft_wrap=True)
    console.print(f"\n[bold]{sentence(without, with_, BUSY)}[/bold]\n", soft_wrap=True)
    return 1 if any(with_.exit_statuses) else 0


def run(python: Path) -> Phase:
    """Start the jobs together on a fresh server and wait for both."""
    with tempfile.TemporaryDirectory() as folder, Server(LAB, folder=Path(folder)) as server:
        jobs = [
            server.popen(
                [str(python), str(SCRIPT)],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                cwd=folder,
                environ={"TF_CPP_MIN_LOG_LEVEL": "3", "AUTOGPU_LEASE_DIR": folder},
            )
            for _ in range(JOBS)
        ]
        errors = [job.communicate(timeout=600)[1] for job in jobs]
        statuses = [job.returncode for job in jobs]
        return phase(server.calls(), [job.pid for job in jobs], statuses, len(LAB), errors)


def table(without: Phase, with_: Phase) -> Table:
    """Each GPU's memory before, without and with autogpu."""
    shown = Table(
        box=box.SIMPLE_HEAD,
        title="Memory in use on each GPU (11 GiB each), at the most",
        title_justify="left",
    )
    for heading in ("GPU", "before", "without autogpu", "with autogpu"):
        shown.add_column(heading, justify="left" if heading == "GPU" else "right")
    for index, gpu in enumerate(LAB):
        before = sum(environ_bytes(size) for size in gpu.processes.values())
        whose = "a colleague's job" if index in BUSY else "idle"
        shown.add_row(
            f"{index}  {whose}",
            f"{before / GIB:.1f} GiB",
            cell(before, without, index),
            cell(before, with_, index),
        )
    return shown


def cell(before: int, run: Phase, gpu: int) -> str:
    """The memory, and which jobs are on the GPU."""
    jobs = [str(number) for number, gpus in enumerate(run.working_gpus, start=1) if gpu in gpus]
    who = f"  [bold]job {' + '.join(jobs)}[/bold]" if jobs else ""
    return f"{(before + run.most_bytes[gpu]) / GIB:.1f} GiB{who}"


def environ_bytes(size: str) -> int:
    from tests.gpusim.fleet import size_bytes

    return size_bytes(size)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("stopped")
