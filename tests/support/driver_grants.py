"""What the driver granted to a process, in a few words for each GPU: what expectations are written in.

TensorFlow takes memory from the driver by the region. Without growth an allocator's first region is all it may ever
have. With growth the first is small, each next one twice the one before, and the last one is cut off at the limit: so
one tensor larger than half the limit shows it, and nothing has to be refused, for which TensorFlow waits ten seconds.
"""

from __future__ import annotations

from typing import Mapping, Sequence

from tests.gpusim import Call, Gpu

MIB = 1 << 20

# A growing allocator's first regions, for the few small tensors of a script.
SMALL = 64 * MIB

# Of the sizes in words.
STEP = 16 * MIB

# What TensorFlow leaves of an idle GPU when it takes it whole differs by version and by GPU: up to this share and size.
LEFT_OF_WHOLE = 0.1, 600 * MIB


def granted(calls: Sequence[Call], gpus: Sequence[Gpu], context_bytes: int) -> dict[int, str]:
    """By GPU with a context, what was allocated there: the allocators in order, joined by ``" + "``.

    ``whole``, ``1024 MiB``: at once. ``grows``, ``grows to 3072 MiB``: small at first, and as far as it went without
    end, or to an end. ``-``: a context and no memory.
    """
    words = {}
    for gpu in sorted({call.gpu for call in calls if call.call == "context" and call.gpu is not None}):
        regions = _regions([call for call in calls if call.gpu == gpu])
        free = gpus[gpu].memory_bytes - _used_by_others(gpus[gpu]) - context_bytes
        words[gpu] = " + ".join(_in_words(arena, free) for arena in _arenas(regions)) or "-"
    return words


NO_GPU, CONTEXTS = "no GPU", "contexts on "


def in_one_line(grants: Mapping[int, str]) -> str:
    """``GPU 3 grows, contexts on 0, 1``; ``no GPU``."""
    parts = [f"GPU {gpu} {words}" for gpu, words in sorted(grants.items()) if words != "-"]
    contexts = [str(gpu) for gpu, words in sorted(grants.items()) if words == "-"]
    return ", ".join(parts + ([CONTEXTS + ", ".join(contexts)] if contexts else [])) or NO_GPU


def _regions(calls: Sequence[Call]) -> list[int]:
    """Sizes in order; 0 for a small one that TensorFlow gave back to have a larger one under the same limit."""
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
    """Regions by allocator: small ones and then large ones of one that grows; a large one alone.

    Several allocators that grow on one GPU, as each logical GPU has its own, may begin before the first one goes on.
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
        # More than one small region of the last that went on.
        arenas[-1][1:1] = begun
    elif begun:
        arenas.append(begun)
    return arenas


def _in_words(arena: Sequence[int], free: int) -> str:
    total, last = sum(arena), arena[-1]
    # In steps: the driver gives whole 2 MiB, of which older versions ask for odd parts.
    in_mib = f"{total // STEP * STEP // MIB} MiB"
    share, size = LEFT_OF_WHOLE
    if arena[0] > SMALL:
        is_whole = total >= free * (1 - share) - size
        return "whole" if is_whole else in_mib
    # A region that was not cut off is a power of two.
    return "grows" if last & (last - 1) == 0 else f"grows to {in_mib}"


def _used_by_others(gpu: Gpu) -> int:
    from tests.gpusim.fleet import size_bytes

    held = [*gpu.processes.values(), *gpu.graphics.values()]
    return gpu.used_bytes + sum(size_bytes(size) for size in held)
