"""Time of one decision, and of a start of TensorFlow with autogpu compared with one without.

    python benchmarks/decision.py [--runs N]

The server has eight simulated GPUs. Both sides of each ratio are measured in the same run of this benchmark:

* **decision**: a whole process in which autogpu decides (policy, reading, ranking, environment). It is compared with a
  process that calls nvitop's ``select_devices``, and with one that reads the same values with bare pynvml.
* **import tensorflow**, **first context**: the import, and the first tensor on a GPU, timed inside the process with
  autogpu and with AUTOGPU=0.

The commands take turns, so that a change in the machine's speed affects all of them. The table shows medians.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.gpusim import Gpu, Server  # noqa: E402
from tests.support import environments  # noqa: E402

GOALS = {"decision / nvitop": "0.60", "import tensorflow": "1.03", "first context, growth in both": "+15 ms"}

AUTOGPU = """
import os
from autogpu import activation
activation.before_import("tensorflow", None)
activation.after_import("tensorflow", None)
assert os.environ["AUTOGPU_ORIG_WRITTEN"].startswith("GPU-")
"""

NVITOP = """
from nvitop import select_devices
assert select_devices(format="uuid", max_count=1)
"""

PYNVML = """
import pynvml as nvml
nvml.nvmlInit()
for index in range(nvml.nvmlDeviceGetCount()):
    gpu = nvml.nvmlDeviceGetHandleByIndex(index)
    nvml.nvmlDeviceGetUUID(gpu), nvml.nvmlDeviceGetName(gpu), nvml.nvmlDeviceGetPciInfo(gpu)
    nvml.nvmlDeviceGetMemoryInfo(gpu), nvml.nvmlDeviceGetSamples(gpu, nvml.NVML_GPU_UTILIZATION_SAMPLES, 0)
    nvml.nvmlDeviceGetComputeRunningProcesses(gpu), nvml.nvmlDeviceGetGraphicsRunningProcesses(gpu)
    nvml.nvmlDeviceGetComputeMode(gpu)
"""

TENSORFLOW = """
import time
start = time.perf_counter()
import tensorflow as tf
imported = time.perf_counter()
with tf.device("/GPU:0"):
    tf.zeros((8, 8)) + 1
print("seconds", imported - start, time.perf_counter() - imported)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=15, help="runs of each command (default: 15)")
    options = parser.parse_args()

    print("installing nvitop and TensorFlow if they are missing", file=sys.stderr)
    python = environments.tensorflow_with_autogpu()
    nvitop = environments.environment(python.resolve(), ["nvitop"])
    with tempfile.TemporaryDirectory() as folder, Server([Gpu()] * 8, folder=Path(folder)) as server:
        decision = decisions(server, nvitop, folder, options.runs)
        start = tensorflow_start(server, python, folder, options.runs)
    report({**decision, **start})


def decisions(server: Server, python: Path, folder: str, runs: int) -> dict[str, dict[str, float]]:
    programs = {"pynvml": PYNVML, "autogpu": AUTOGPU, "nvitop": NVITOP}
    times: dict[str, list[float]] = {name: [] for name in programs}
    for turn in range(runs + 1):
        for name, program in programs.items():
            begun = time.perf_counter()
            # Run outside the checkout, so that the installed package is measured.
            done = server.run([str(python), "-c", program], cwd=folder)
            if done.returncode:
                raise SystemExit(f"{name} failed:\n{done.stderr}")
            if turn:  # the first turn fills caches
                times[name].append(time.perf_counter() - begun)
    return {
        "decision / nvitop": ratio(times["autogpu"], times["nvitop"]),
        "decision / pynvml": ratio(times["autogpu"], times["pynvml"]),
    }


def tensorflow_start(server: Server, python: Path, folder: str, runs: int) -> dict[str, dict[str, float]]:
    """Time the import and then the first tensor, which makes the context, inside the process.

    At its first context plain TensorFlow prepares to manage the memory of the whole GPU. Growth avoids this, which
    favours autogpu. The last row removes this advantage: both sides use growth.
    """
    # All variants see one GPU: without autogpu TensorFlow would make a context on each of the eight.
    one_gpu = {"CUDA_VISIBLE_DEVICES": server.gpus[0].uuid, "TF_CPP_MIN_LOG_LEVEL": "3"}
    growth = {**one_gpu, "TF_FORCE_GPU_ALLOW_GROWTH": "true"}
    variants = {
        "plain": {**one_gpu, "AUTOGPU": "0"},
        "autogpu": one_gpu,
        "plain with growth": {**growth, "AUTOGPU": "0"},
        "autogpu with growth": growth,
    }
    imports: dict[str, list[float]] = {name: [] for name in variants}
    contexts: dict[str, list[float]] = {name: [] for name in variants}
    for turn in range(runs + 1):
        for name in sorted(variants, reverse=bool(turn % 2)):
            # Run outside the checkout, whose pyproject.toml would be read as a policy.
            done = server.run([str(python), "-c", TENSORFLOW], environ=variants[name], timeout=300, cwd=folder)
            words = done.stdout.split()
            if done.returncode or words[:1] != ["seconds"]:
                raise SystemExit(f"TensorFlow failed:\n{done.stderr}")
            if turn:
                imports[name].append(float(words[1]))
                contexts[name].append(float(words[2]))
    return {
        "import tensorflow": ratio(imports["autogpu"], imports["plain"]),
        "first context": ratio(contexts["autogpu"], contexts["plain"]),
        "first context, growth in both": ratio(contexts["autogpu with growth"], contexts["plain with growth"]),
    }


def ratio(ours: list[float], theirs: list[float]) -> dict[str, float]:
    """Return the medians of the pairwise ratios, of the pairwise differences, and of each side; times in ms."""
    return {
        "ratio": statistics.median(a / b for a, b in zip(ours, theirs)),
        "more_ms": statistics.median(a - b for a, b in zip(ours, theirs)) * 1000,
        "ours_ms": statistics.median(ours) * 1000,
        "theirs_ms": statistics.median(theirs) * 1000,
    }


def report(results: dict[str, dict[str, float]]) -> None:
    print(f"{'':30}{'ratio':>8}{'goal':>8}{'ours':>12}{'theirs':>12}{'more':>12}")
    for name, row in results.items():
        times = f"{row['ours_ms']:9.1f} ms{row['theirs_ms']:9.1f} ms{row['more_ms']:9.1f} ms"
        print(f"{name:30}{row['ratio']:8.3f}{GOALS.get(name, ''):>8}{times}")


if __name__ == "__main__":
    # With PYTHONDONTWRITEBYTECODE each process would compile autogpu again, but not the packages compared with it.
    for name in [name for name in os.environ if name.startswith(("AUTOGPU", "CUDA_", "PYTHON"))]:
        del os.environ[name]
    main()
