"""The simulated users and their jobs: the first jobs of a server, and the jobs that come later. Pure functions."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import cycle
from typing import Iterator, Mapping, Sequence

PEOPLE = ("anna", "ben", "chen", "dora", "emil", "fatma")


@dataclass(frozen=True)
class Part:
    """One process on the server.

    Attributes:
        share: Fraction of the memory that it allocates on each of its GPUs.
        need: Stated need, as a fraction of a GPU's memory; 0 without a stated need.
        settings: Its other ``AUTOGPU_*`` variables.
        has_autogpu: False if it runs without autogpu: it then uses GPU 0 and makes no claim.
        utilization: Utilization of its GPUs while it runs, in percent.
        minutes: Minutes since it claimed its GPUs or began to wait.
        stays_s: Seconds for which it keeps its GPUs; ``None`` if it keeps them until the server ends.
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
    stays_s: float | None = None
    pid: int = 0

    def environ(self, memory_bytes: int) -> dict[str, str]:
        need = {"AUTOGPU_NEED": f"{round(self.need * memory_bytes / 2**20)}MiB"} if self.need else {}
        return {**need, **self.settings}


# The first jobs. Function scene_for chooses jobs for the number of GPUs, and their order.
NOTEBOOK = Part("chen", "ipykernel_launcher.py", 0.06, minutes=26 * 60, pid=8211)
UNMANAGED = Part("dora", "python", 0.6, has_autogpu=False, utilization=64, pid=23150)
SMALL = (
    Part("anna", "train.py", 0.33, need=0.45, utilization=97, minutes=42, pid=21877),
    Part("ben", "eval.py", 0.24, need=0.4, utilization=97, minutes=7, pid=24019, stays_s=80),
)
LARGE = (
    Part("ben", "bert.py", 0.87, utilization=88, minutes=190, pid=20518),
    Part(
        "emil", "resnet.py", 0.71, settings={"AUTOGPU_COUNT": "2"}, utilization=93, minutes=75, pid=22306, stays_s=100
    ),
)
# This job started before its GPU became faulty. No other job gets that GPU.
ON_FAULTY_GPU = Part("emil", "diffusion.py", 0.55, utilization=76, minutes=15 * 60)
WAITING = Part(
    "fatma",
    "sweep.py",
    0.5,
    settings={"AUTOGPU_DEVICES": "0", "AUTOGPU_BUSY": "wait"},
    utilization=81,
    minutes=12,
    pid=24402,
)
COMING = (
    (6, Part("anna", "finetune.py", 0.25, need=0.3, utilization=72, stays_s=40)),
    (9, Part("emil", "gan.py", 0.35, need=0.4, utilization=95, stays_s=60)),
    (5, Part("fatma", "segment.py", 0.7, utilization=88, stays_s=35)),
    (11, Part("ben", "augment.py", 0.4, need=0.5, utilization=41, stays_s=25)),
)
GPUS_OF_ALL, GPUS_WITH_A_FAULTY_ONE, GPUS_WITH_A_NOTEBOOK, GPUS_OF_SEVERAL = 7, 5, 4, 3
MOST_FOR_VISITORS = 2


def faulty_gpu(gpus: int) -> int | None:
    """Return the index of the GPU whose memory is faulty; ``None`` if the server has too few GPUs for one."""
    return gpus - 1 if gpus >= GPUS_WITH_A_FAULTY_ONE else None


def scene_for(gpus: int, *, is_cut: bool = False) -> tuple[Part, ...]:
    """Return the first jobs of a server, in the order of their start.

    A server with two or more GPUs keeps one free. None of these jobs gets the faulty GPU.

    Args:
        is_cut: True if some of the GPUs are split into MIG instances.
    """
    notebook = (NOTEBOOK,) if gpus >= GPUS_WITH_A_NOTEBOOK else ()
    if is_cut:
        # Make the small jobs fit into one instance each.
        parts = (replace(part, need=0.1, share=0.08) for part in SMALL)
        return (UNMANAGED, *notebook, LARGE[0], *parts, WAITING)
    if gpus < GPUS_OF_ALL:
        # Without device lists, the second small job would take the free GPU, and the choice would depend on NVLinks.
        last = gpus - 1 if faulty_gpu(gpus) is None else gpus - 2
        small = SMALL if gpus >= GPUS_OF_SEVERAL else ()
        listed = [on(part, str(last)) for part in notebook]
        listed += [on(part, str(last - len(notebook))) for part in small]
        return (UNMANAGED, *listed, WAITING)
    # Without device lists, the second large job would take two GPUs of one socket, and the second small job a free GPU.
    across = on(LARGE[1], f"{gpus - 5}-{gpus - 4}")
    beside = on(SMALL[1], str(gpus - 6))
    return (UNMANAGED, *notebook, LARGE[0], across, SMALL[0], beside, WAITING)


def on(part: Part, devices: str) -> Part:
    return replace(part, settings={**part.settings, "AUTOGPU_DEVICES": devices})


def comings(kept_free: Sequence[str]) -> Iterator[tuple[float, Part]]:
    """Yield delays in seconds and the jobs that start after them, without end. No job uses a GPU of ``kept_free``."""
    settings = {"AUTOGPU_BUSY": "wait", "AUTOGPU_EXCLUDE": ",".join(kept_free)}
    for delay_s, part in cycle(COMING):
        yield delay_s, replace(part, settings=settings)
