"""Who is on the server: what is there when one comes, and what comes and goes afterwards. Pure.

The people, their pids in a picture and how long they have been there are made up. Which GPU a job gets, what it claims
and what the driver shows of it is not: the jobs are processes on the simulated server, which decide, claim and
allocate as autogpu and CUDA do.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import Iterator, Mapping, Sequence

PEOPLE = ("anna", "ben", "chen", "dora", "emil", "fatma")


@dataclass(frozen=True)
class Part:
    """One process on the server.

    Attributes:
        who: One of ``PEOPLE``.
        script: What it runs.
        share: Of a GPU's memory that it allocates, on each of its GPUs.
        need: Of a GPU's memory that it says it needs; 0 for a job that says nothing.
        settings: Its ``AUTOGPU_*`` variables besides.
        has_autogpu: Without, it takes the GPU that CUDA calls the first, and makes no claim.
        utilization: Percent, of its GPUs while it runs.
        minutes: How long ago it claimed or began to wait.
        stays_s: How long it keeps its GPUs, of those that are there first from when one comes; ``None`` for as long as
            the server is there.
        pid: Where a picture shows it.
    """

    who: str
    script: str
    share: float
    need: float = 0
    settings: Mapping[str, str] | None = None
    has_autogpu: bool = True
    utilization: int = 0
    minutes: float = 0
    stays_s: float | None = None
    pid: int = 0

    def environ(self, memory_bytes: int) -> dict[str, str]:
        """Its variables, on GPUs with so much memory."""
        need = {"AUTOGPU_NEED": f"{round(self.need * memory_bytes / 2**20)}MiB"} if self.need else {}
        return {**need, **(self.settings or {})}


# As they come; on a server with fewer GPUs those that don't fit any more share or wait.
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
WAITING = Part(
    "fatma",
    "sweep.py",
    0.5,
    settings={"AUTOGPU_DEVICES": "0", "AUTOGPU_BUSY": "wait"},
    utilization=81,
    minutes=12,
    pid=24402,
)
GPUS_OF_ALL, GPUS_WITH_A_LOST_ONE, GPUS_WITH_A_NOTEBOOK, GPUS_OF_SEVERAL = 7, 5, 4, 3
MOST_FOR_VISITORS = 2


@dataclass(frozen=True)
class Scene:
    """What is there when one comes.

    Attributes:
        lost: The index of the GPU that has fallen off the bus; ``None`` where each is needed.
        parts: In the order in which they start, one after the other.
    """

    lost: int | None
    parts: tuple[Part, ...]


def scene_for(gpus: int, *, is_cut: bool = False) -> Scene:
    """The scene on a server with so many GPUs; the more there are, the more happens. One of two or more stays free.

    Args:
        gpus: Cards, as NVML counts them.
        is_cut: Whether some of them are cut into MIG instances.
    """
    lost = gpus - 1 if gpus >= GPUS_WITH_A_LOST_ONE else None
    notebook = (NOTEBOOK,) if gpus >= GPUS_WITH_A_NOTEBOOK else ()
    if is_cut:
        # Small enough for an instance each.
        parts = (replace(part, need=0.1, share=0.08) for part in SMALL)
        return Scene(lost, (UNMANAGED, *notebook, LARGE[0], *parts, WAITING))
    if gpus < GPUS_OF_ALL:
        # Each says where it wants to be: of their own the second would take the free GPU, and others go by NVLinks.
        at = gpus - 1 - (lost is not None)
        small = SMALL if gpus >= GPUS_OF_SEVERAL else ()
        placed = [(part, at) for part in notebook] + [(part, at - len(notebook)) for part in small]
        there = (replace(part, settings={"AUTOGPU_DEVICES": str(gpu)}) for part, gpu in placed)
        return Scene(lost, (UNMANAGED, *there, WAITING))
    # The second ones say where they want to be: of their own they would take two GPUs of one socket, and a free one.
    (one, two), (first, second) = LARGE, SMALL
    across = replace(two, settings={**(two.settings or {}), "AUTOGPU_DEVICES": f"{gpus - 5}-{gpus - 4}"})
    beside = replace(second, settings={"AUTOGPU_DEVICES": str(gpus - 6)})
    return Scene(lost, (UNMANAGED, *notebook, one, across, first, beside, WAITING))


def comings(seed: int, kept_free: Sequence[str]) -> Iterator[tuple[float, Part]]:
    """Who comes after how many seconds, without end; the same for the same seed.

    Args:
        kept_free: UUIDs of GPUs on which none of them goes: a visitor is to find one that is free.
    """
    chance = Random(seed)
    names = ("train.py", "finetune.py", "eval.py", "gan.py", "segment.py", "augment.py")
    while True:
        need = chance.choice((0.3, 0.4, 0.5, 0))
        yield (
            chance.uniform(4, 12),
            Part(
                chance.choice(PEOPLE),
                chance.choice(names),
                need * chance.uniform(0.5, 0.9) or chance.uniform(0.5, 0.9),
                need,
                {"AUTOGPU_BUSY": "wait", "AUTOGPU_EXCLUDE": ",".join(kept_free)},
                utilization=chance.randint(35, 99),
                stays_s=chance.uniform(20, 70),
            ),
        )
