"""The interface of a framework's package, and the plain values that the package and autogpu exchange."""

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
    """A framework's request for GPUs, with the settings of the script.

    Attributes:
        gpu_count: How many GPUs the framework sees.
        visible: Ordinals that the script made visible, in the script's order; ``None`` if it set none.
        named: How many different GPUs the script's device names would mean without autogpu.
        logical: How many logical GPUs must exist for these names.
        count: How many GPUs the script asked for; 0 if it set no number.
        limits: Bytes to which the script limits the framework, one entry for each GPU with such a limit.
        fraction: Part of each GPU's memory to which the script limits the framework, 0 to 1; 0 if unset.
        places: Ordinals that the script is about to use, if CUDA counts the claimed GPUs first; ``()`` for a worker
            process whose own ordinal is not known yet.
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
    """A GPU in a list of devices, described by the driver without a context on the GPU.

    Attributes:
        memory_bytes: Memory that the framework would allocate; 0 if that is unknown.
        total_bytes: All memory of the GPU; 0 if that is unknown.
    """

    attributes: CudaAttributes
    memory_bytes: int = 0
    total_bytes: int = 0


class Assignment(Value):
    """The GPUs that a process may use, as CUDA ordinals: positions in ``CUDA_VISIBLE_DEVICES``.

    The mappings are keyed by ordinal, except ``moved``.

    Attributes:
        ordinals: ``()`` means CPU only, ``None`` leaves the choice to the framework.
        growth: True if memory is allocated as needed; ``None`` leaves that to the framework.
        caps: The most bytes that each logical GPU may allocate; a GPU without an entry has no cap.
        logical_gpus: The number of logical GPUs into which each GPU with a cap is split.
        moved: Ordinals keyed by the script's numbers for these GPUs; empty if its numbers are the ordinals.
        ceilings: The most bytes to which the script's own limits on a GPU may add up.
        usable: Bytes that the framework would allocate without a limit.
        totals: All memory of the GPU, in bytes.
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
        """Return a cap as a part of the GPU's memory; ``None`` if there is no cap, or if the memory is unknown.

        Args:
            by_script: True for the ceiling of the script's own limit; False for the cap of a framework without logical
                GPUs.
        """
        cap = (self.ceilings if by_script else self.caps).get(ordinal)
        total = self.totals.get(ordinal)
        return cap.bytes / total if total and cap is not None else None


class Usage(Value):
    """The CUDA ordinals on which a framework is about to make contexts, and how it allocates memory, as a phrase."""

    ordinals: tuple[int, ...]
    memory: str


class OutOfMemory(Value):
    """The numbers in a framework's own out-of-memory error.

    Attributes:
        asked_bytes: Bytes that could not be allocated; 0 if the error does not contain them.
        ordinal: The GPU's number, as the framework counts; 0 if the error does not contain it.
        allowed_bytes: The framework's limit on that GPU; 0 if the error does not contain it.
    """

    asked_bytes: int = 0
    ordinal: int = 0
    allowed_bytes: int = 0

    @classmethod
    def in_text(cls, text: str, asked: str, ordinal: str, allowed: str = _NEVER) -> OutOfMemory:
        """Read the numbers in an error's text by one pattern each. ``SIZE`` matches a size such as ``1.00GiB``."""
        found = [re.search(pattern.replace("SIZE", _SIZE), text) for pattern in (asked, allowed)]
        sizes = [int(float(each.group(1)) * _UNITS[each.group(2)]) if each else 0 for each in found]
        number = re.search(ordinal, text)
        return cls(sizes[0], int(number.group(1)) if number else 0, sizes[1])


class Hooks(Value):
    """The entry points of a framework, found or missing, as ``doctor`` shows them.

    ``found`` and ``missing`` are both empty if the framework uses no GPU in this process, for example because it is a
    CPU build or because the process is a launcher.

    Attributes:
        found: Names, such as ``Context.config``.
        missing: Phrases for the consequences, keyed by the entry points that this version lacks. If no entry point is
            found, autogpu can choose GPUs only through the environment.
        obstacle: Why autogpu does not hook into this build at all; ``""`` if it does. No entry points are found or
            missing then.
        variables: Environment variables that make the framework allocate memory as needed, if no entry point is found.
    """

    version: str = "?"
    found: tuple[str, ...] = ()
    missing: Mapping[str, str] = MappingProxyType({})
    obstacle: str = ""
    variables: Mapping[str, str] = MappingProxyType({})


class Framework(ABC):
    """A framework, as its package provides it.

    Attributes:
        NAME: The framework's name in messages.
        default_share: The part of a GPU's free memory that the framework allocates without a limit, 0 to 1.
        WANTS_ORDER: True if CUDA should count the claimed GPUs first. The claim then comes before CUDA's start.
        TAKES_FIRST_GPUS: True if the framework always uses the GPUs that CUDA counts first.
        HAS_LOGICAL_GPUS: True if the framework can split a GPU into logical GPUs.
    """

    NAME: str
    default_share = 1.0
    WANTS_ORDER = False
    TAKES_FIRST_GPUS = False
    HAS_LOGICAL_GPUS = False

    @staticmethod
    @abstractmethod
    def find_hooks() -> Hooks:
        """Return the entry points of the imported framework. Change nothing."""

    @abstractmethod
    def install_hooks(self, hooks: Hooks) -> None:
        """Replace the entry points that were found in the imported framework by hooks.

        The hooks call :class:`autogpu.frameworks.base.HookedFramework`. A second call changes nothing. Initialise
        nothing, and don't access a GPU. Another framework of the same process may be imported already, or be in the
        middle of its import.
        """

    @staticmethod
    @abstractmethod
    def peak_bytes() -> int:
        """Return the most bytes that the framework has counted on one GPU; 0 if it does not count. Start nothing."""

    @classmethod
    def current_bytes(cls) -> int:
        """Return the most bytes that the framework counts on one GPU now; its peak if it counts only that."""
        return cls.peak_bytes()

    @classmethod
    def requested_bytes(cls, failure: OutOfMemory) -> int:
        """Return the bytes that the framework needed when it ran out of memory.

        These are the bytes that it had, and those of the request that failed; or its peak, if that is higher.
        """
        return max(cls.peak_bytes(), cls.current_bytes() + failure.asked_bytes)

    @property
    def cap_bytes(self) -> int:
        """The lowest cap that autogpu has set on one of the framework's logical GPUs; 0 if there is none."""
        return 0

    def bytes_to_go_on(self, failure: OutOfMemory) -> int:
        """Return the bytes on one logical GPU with which ``failure`` would not have occurred; 0 if they are unknown.

        If the framework has counted less than its cap, the memory left under the cap was in pieces that are too small.
        """
        requested = self.requested_bytes(failure)
        if not 0 < requested <= self.cap_bytes:
            return requested
        return self.cap_bytes + max(failure.asked_bytes, 1)

    @classmethod
    def needed_bytes(cls, *, growth: bool) -> int:
        """Return the peak in bytes, with the surplus that the allocator takes with ``growth``.

        Return 0 if this run does not show how much memory the framework needs.
        """
        return cls.peak_bytes()

    @staticmethod
    @abstractmethod
    def out_of_memory(error: BaseException) -> OutOfMemory | None:
        """Return the numbers in the framework's own out-of-memory error; ``None`` for every other error."""
