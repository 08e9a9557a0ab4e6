"""The simulated users and their jobs: the first jobs of a server, and the jobs that come later. Pure functions."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Mapping

PEOPLE = ("anna", "ben", "chen", "dora", "emil", "fatma")


@dataclass(frozen=True)
class Part:
    """One process on the server.

    Attributes:
        share: Fraction of the memory that it allocates on each of its GPUs.
        need: Stated need, as a fraction of a GPU's memory; 0 without a stated need.
        settings: Its other environment variables.
        has_autogpu: False if it runs without autogpu and makes no claim.
        utilization: Utilization of its GPUs while it runs, in percent.
        minutes: Minutes since it claimed its GPUs or began to wait.
        stays_s: Seconds for which it keeps its GPUs.
        pid: Pid that the pictures show.
    """

    who: str
    script: str
    share: float
    need: float = 0
    settings: Mapping[str, str] = field(default_factory=dict)
    has_autogpu: bool = True
    utilization: int = 0
    minutes: float = 0
    stays_s: float = float("inf")
    pid: int = 0

    def environ(self, memory_bytes: int) -> dict[str, str]:
        need = {"AUTOGPU_NEED": f"{round(self.need * memory_bytes / 2**20)}MiB"} if self.need else {}
        return {**need, **self.settings}


# The first jobs.
NOTEBOOK = Part("chen", "ipykernel_launcher.py", 0.06, minutes=26 * 60, pid=8211)
# A user who looked at nvidia-smi once, and wrote a fixed GPU into the script.
FIXED = {"CUDA_VISIBLE_DEVICES": "0"}
UNMANAGED = Part("dora", "python", 0.6, settings=FIXED, has_autogpu=False, utilization=64, pid=23150)
SMALL = (
    Part("anna", "train.py", 0.33, need=0.45, utilization=97, minutes=42, pid=21877),
    Part("ben", "eval.py", 0.24, need=0.4, utilization=97, minutes=7, pid=24019, stays_s=80),
)
LARGE = Part("ben", "bert.py", 0.87, utilization=88, minutes=190, pid=20518)
TWO = {"AUTOGPU_COUNT": "2"}
ON_TWO_GPUS = Part("emil", "resnet.py", 0.71, settings=TWO, utilization=93, minutes=75, pid=22306, stays_s=100)
# This job started before its GPU became faulty. No other job gets that GPU.
ON_FAULTY_GPU = Part("emil", "diffusion.py", 0.55, utilization=76, minutes=15 * 60)
FOR_GPU_0 = {"AUTOGPU_DEVICES": "0", "AUTOGPU_BUSY": "wait"}
WAITING = Part("fatma", "sweep.py", 0.5, settings=FOR_GPU_0, utilization=81, minutes=12, pid=24402)

# The jobs that come later, again and again. They leave GPU 1 to visitors.
LATER = {"AUTOGPU_BUSY": "wait", "AUTOGPU_EXCLUDE": "1"}
COMING = (
    Part("anna", "finetune.py", 0.25, need=0.3, settings=LATER, utilization=72, stays_s=40),
    Part("emil", "gan.py", 0.35, need=0.4, settings=LATER, utilization=95, stays_s=60),
    Part("fatma", "segment.py", 0.7, settings=LATER, utilization=88, stays_s=35),
    Part("ben", "augment.py", 0.4, need=0.5, settings=LATER, utilization=41, stays_s=25),
)
FAULTY_GPU = 7  # of a server with eight GPUs


def scene_for(gpus: int, *, is_cut: bool = False) -> tuple[Part, ...]:
    """Return the first jobs of a server with four or eight GPUs, in the order of their start. GPU 1 stays free.

    Args:
        is_cut: True if some of the GPUs are split into MIG instances.
    """
    if is_cut:
        # Make the small jobs fit into one instance each.
        small = (on(replace(part, need=0.1, share=0.08), "4-6") for part in SMALL)
        return (UNMANAGED, on(NOTEBOOK, "3"), on(LARGE, "2"), *small, WAITING)
    small = (on(part, "2") for part in SMALL)
    if gpus <= FAULTY_GPU:
        return (UNMANAGED, on(NOTEBOOK, "3"), *small, WAITING)
    return (UNMANAGED, on(NOTEBOOK, "6"), on(LARGE, "5"), on(ON_TWO_GPUS, "3-4"), *small, WAITING)


def on(part: Part, devices: str) -> Part:
    return replace(part, settings={**part.settings, "AUTOGPU_DEVICES": devices})
