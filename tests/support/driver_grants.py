"""Memory that the driver granted to a process, in a few words for each GPU. Tests use these words.

TensorFlow takes memory from the driver in regions. Without growth, an allocator gets one region and no other. With
growth, its first region is small, each next one is twice as large as the one before, and the last is cut off at the
limit. So one tensor larger than half the limit makes the limit visible. No allocation has to fail, which is good
because TensorFlow waits ten seconds before it gives up.
"""

from __future__ import annotations

from typing import Mapping, Sequence

from tests.gpusim import Call, Gpu

MIB = 1 << 20

# A growing allocator's first regions have at most this size. They hold the few small tensors of a script.
SMALL = 64 * MIB

# Sizes in words are rounded down to a multiple of this.
STEP = 16 * MIB

# An allocator without a limit leaves some memory of an idle GPU: at most this share of the free memory plus this size.
# The amount differs by TensorFlow version and by GPU.
LEFT_OF_WHOLE = 0.1, 600 * MIB


def granted(calls: Sequence[Call], gpus: Sequence[Gpu], context_bytes: int) -> dict[int, str]:
    """Return the allocators in words for each GPU with a context, in order and joined by ``" + "``, keyed by GPU.

    ``whole`` or ``1024 MiB``: all memory was taken at once. ``grows`` or ``grows to 3072 MiB``: the first region was
    small, and growth had no limit or ended at this limit. ``-``: there is a context, but no memory was allocated.
    """
    words = {}
    for gpu in sorted({call.gpu for call in calls if call.call == "context" and call.gpu is not None}):
        regions = _regions([call for call in calls if call.gpu == gpu])
        free = gpus[gpu].memory_bytes - _used_by_others(gpus[gpu]) - context_bytes
        words[gpu] = " + ".join(_in_words(arena, free) for arena in _arenas(regions)) or "-"
    return words


NO_GPU, CONTEXTS = "no GPU", "contexts on "


def in_one_line(grants: Mapping[int, str]) -> str:
    """Return the grants in one line, such as ``GPU 3 grows, contexts on 0, 1`` or ``no GPU``."""
    parts = [f"GPU {gpu} {words}" for gpu, words in sorted(grants.items()) if words != "-"]
    contexts = [str(gpu) for gpu, words in sorted(grants.items()) if words == "-"]
    return ", ".join(parts + ([CONTEXTS + ", ".join(contexts)] if contexts else [])) or NO_GPU


def _regions(calls: Sequence[Call]) -> list[int]:
    """Return the sizes of the regions in order; 0 for a small region that the allocator freed to get a larger one."""
    regions: list[int] = []
    freed: list[int] = []
    for call in calls:
        size = call.bytes or 0
        if call.call == "free" and size <= SMALL and size in regions:
            freed.append(size)
        elif call.call == "allocate":
            for given_back in freed:
                regions[regions.index(given_back)] = 0
            freed = []
            regions.append(size)
    return regions


def _arenas(regions: Sequence[int]) -> list[list[int]]:
    """Group the regions by allocator. A growing allocator has small and then large regions, any other one large region.

    Each logical GPU has its own allocator. Several growing allocators on one GPU may take their first regions before
    any of them takes its second.
    """
    arenas: list[list[int]] = []
    begun: list[int] = []
    for region in regions:
        if region <= SMALL:
            begun.append(region)
        elif begun:
            arenas.append([begun.pop(0), region])
        elif arenas and arenas[-1][0] <= SMALL:
            arenas[-1].append(region)
        else:
            arenas.append([region])
    if begun and arenas and regions[-1] > SMALL:
        # The last allocator that grew has more than one small region.
        arenas[-1][1:1] = begun
    elif begun:
        arenas.append(begun)
    return arenas


def _in_words(arena: Sequence[int], free: int) -> str:
    total, last = sum(arena), arena[-1]
    # Round down: the driver allocates multiples of 2 MiB, but older TensorFlow versions request odd sizes.
    in_mib = f"{total // STEP * STEP // MIB} MiB"
    share, size = LEFT_OF_WHOLE
    if arena[0] > SMALL:
        is_whole = total >= free * (1 - share) - size
        return "whole" if is_whole else in_mib
    # The last region is a power of two, unless a limit cut it off.
    return "grows" if last & (last - 1) == 0 else f"grows to {in_mib}"


def _used_by_others(gpu: Gpu) -> int:
    from tests.gpusim.fleet import size_bytes

    held = [*gpu.processes.values(), *gpu.graphics.values()]
    return gpu.used_bytes + sum(size_bytes(size) for size in held)
