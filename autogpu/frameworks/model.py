"""What a framework's package provides, and what it and autogpu tell each other, as plain values."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from types import MappingProxyType
from typing import Mapping

from autogpu.caps import Cap
from autogpu.devices.model import CudaAttributes
from autogpu.frozen import Value

_UNITS = {"bytes": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_SIZE = r"([\d.]+) ?(bytes|[KMGT]iB|B)\b"
_NEVER = "(?!)"


class DeviceRequest(Value):
    """A framework asks for GPUs: what it sees of them, and what the script has said itself.

    Attributes:
        gpu_count: How many GPUs the framework sees.
        visible: Ordinals that the script made visible, in its order; ``None`` if it named none.
        named: On how many different GPUs its device names would be if it had all.
        logical: How many logical GPUs there have to be for these names.
        count: How many it asked for; 0 if it did not say.
        limits: Bytes that it lets the framework take, for each GPU for which it set that.
        fraction: The same as a part of each GPU's memory, 0 to 1; 0 if unset.
        places: Ordinals that it is about to use, where CUDA counts the claimed GPUs first; ``()`` for a worker that was
            told an ordinal of its own which is not known yet.
    """

    gpu_count: int
    visible: tuple[int, ...] | None = None
    named: int = 0
    logical: int = 0
    count: int = 0
    limits: tuple[int, ...] = ()
    fraction: float = 0.0
    places: tuple[int, ...] = (0,)


NOTHING_SAID = DeviceRequest(0)


class GpuListing(Value):
    """A GPU as a listing shows it, from the driver's attributes alone.

    Attributes:
        memory_bytes: What the framework would take of it; 0 if that is unknown.
        total_bytes: What it has; 0 if that is unknown.
    """

    attributes: CudaAttributes
    memory_bytes: int = 0
    total_bytes: int = 0


class Assignment(Value):
    """The GPUs that a process may use, by CUDA ordinal: the position in ``CUDA_VISIBLE_DEVICES``.

    Attributes:
        ordinals: ``()`` means CPU only, ``None`` leaves the choice to the framework.
        growth: Memory is allocated as needed; ``None`` leaves that to the framework.
        caps: The most bytes that each logical GPU may allocate; no entry means no cap.
        logical_gpus: Into how many each GPU that has a cap is split.
        moved: Ordinals keyed by the script's numbers for these GPUs; empty if its numbers are the ordinals.
        ceilings: The most bytes that also what the script itself set may come to.
        usable: The bytes that the framework would take where nothing limits it.
        totals: The bytes of memory that the GPU has.
    """

    ordinals: tuple[int, ...] | None = None
    growth: bool | None = None
    caps: Mapping[int, Cap] = MappingProxyType({})
    logical_gpus: int = 1
    moved: Mapping[int, int] = MappingProxyType({})
    ceilings: Mapping[int, Cap] = MappingProxyType({})
    usable: Mapping[int, int] = MappingProxyType({})
    totals: Mapping[int, int] = MappingProxyType({})

    def part(self, ordinal: int, *, by_script: bool) -> float | None:
        """Of a GPU's memory, what a framework without logical GPUs may take, or a script's own limit may come to."""
        cap = (self.ceilings if by_script else self.caps).get(ordinal)
        total = self.totals.get(ordinal)
        return cap.bytes / total if total and cap is not None else None


class Usage(Value):
    """On which GPUs, by CUDA ordinal, a framework is about to make a context, and in words how it allocates there."""

    ordinals: tuple[int, ...]
    memory: str


class OutOfMemory(Value):
    """The numbers in a framework's own error that a GPU has no memory left.

    Attributes:
        asked_bytes: What could not be allocated; 0 if it does not say.
        ordinal: Of the GPU, as the framework counts; 0 if it does not say.
        allowed_bytes: The most that the framework was allowed there; 0 if it does not say.
    """

    asked_bytes: int = 0
    ordinal: int = 0
    allowed_bytes: int = 0

    @classmethod
    def in_text(cls, text: str, asked: str, ordinal: str, allowed: str = _NEVER) -> OutOfMemory:
        """Read the numbers in an error's text by a pattern for each, in which ``SIZE`` is one such as ``1.00GiB``."""
        found = [re.search(pattern.replace("SIZE", _SIZE), text) for pattern in (asked, allowed)]
        sizes = [int(float(each.group(1)) * _UNITS[each.group(2)]) if each else 0 for each in found]
        number = re.search(ordinal, text)
        return cls(sizes[0], int(number.group(1)) if number else 0, sizes[1])


class Hooks(Value):
    """The entry points of a framework, found or missing; ``doctor`` shows them.

    There are none where the framework takes no GPU in this process, as a build for CPUs or a launcher does.

    Attributes:
        found: Names, such as ``Context.config``.
        missing: What this version lacks, with what is not in force without it. Where nothing is found, the environment
            alone has to make the choice.
        obstacle: Why autogpu does not touch this build at all, so that nothing is found or missing; ``""`` if it does.
        variables: Where nothing is found, those that have memory allocated as needed.
    """

    version: str = "?"
    found: tuple[str, ...] = ()
    missing: Mapping[str, str] = MappingProxyType({})
    obstacle: str = ""
    variables: Mapping[str, str] = MappingProxyType({})


class Framework(ABC):
    """A framework, as its package provides it.

    Attributes:
        NAME: For messages.
        default_share: Of a GPU's free memory, the part that it takes where nothing limits it; 0 to 1.
        WANTS_ORDER: CUDA should count those GPUs first that the process has claimed. The claim then comes before
            CUDA's start.
        TAKES_FIRST_GPUS: It takes the GPUs that CUDA counts first, and can't be told others.
        HAS_LOGICAL_GPUS: It can split a GPU.
    """

    NAME: str
    default_share = 1.0
    WANTS_ORDER = False
    TAKES_FIRST_GPUS = False
    HAS_LOGICAL_GPUS = False

    @staticmethod
    @abstractmethod
    def find_hooks() -> Hooks:
        """Look for the entry points of the imported framework; changes nothing."""

    @abstractmethod
    def install_hooks(self, hooks: Hooks) -> None:
        """Replace the entry points that were found in the imported framework by hooks.

        These call :class:`autogpu.frameworks.base.HookedFramework`. Twice is as good as once. Nothing is initialised
        and no GPU is touched. Another framework of the same process may have been imported before, or be in the middle
        of its import.
        """

    @staticmethod
    @abstractmethod
    def peak_bytes() -> int:
        """The most that the framework counted as taken of one GPU; 0 where it did not count. Starts nothing."""

    @classmethod
    def current_bytes(cls) -> int:
        """The most that the framework counts as taken of one GPU now; its peak if it counts nothing else."""
        return cls.peak_bytes()

    @classmethod
    def requested_bytes(cls, failure: OutOfMemory) -> int:
        """What the framework needed when it ran out of memory: what it had and requested then, or more before."""
        return max(cls.peak_bytes(), cls.current_bytes() + failure.asked_bytes)

    @classmethod
    def needed_bytes(cls, *, growth: bool) -> int:
        """The same with what its allocator takes in advance with ``growth``; 0 if that can't be learned here."""
        return cls.peak_bytes()

    @staticmethod
    @abstractmethod
    def out_of_memory(error: BaseException) -> OutOfMemory | None:
        """Read an error of the framework's own that a GPU has no memory left; ``None`` for every other error."""
