"""The caps on a best-effort job, on a rank, and on a granted part of a GPU. Pure functions."""

from __future__ import annotations

from typing import Callable, Iterable, Mapping, Sequence, TypeVar

from autogpu.caps import Cap, CapCause, within_context
from autogpu.devices.model import Device
from autogpu.engines.model import Grant
from autogpu.selection.jobs import free_bytes, spare_bytes
from autogpu.selection.model import Claim, MemoryDemand
from autogpu.text import GIB

TYPE_CHECKING = False
if TYPE_CHECKING:
    Size = TypeVar("Size", int, Cap)


def granted_bytes(grant: Grant, devices: Sequence[Device | None]) -> Mapping[str, Cap]:
    """Return the cap of a granted fraction, keyed by GPU UUID; no entry for a GPU whose size is unknown."""
    caps = {}
    for device in devices:
        if grant.fraction is not None and device is not None and device.memory_total_bytes is not None:
            granted = int(device.memory_total_bytes * grant.fraction)
            caps[device.uuid] = Cap(within_context(granted), CapCause.GRANT, grant.engine)
    return caps


def merged(sizes: Iterable[Mapping[str, Size]], choose: Callable[[Size, Size], Size]) -> dict[str, Size]:
    """Return one size for each UUID; ``choose`` returns the size to keep of two."""
    found: dict[str, Size] = {}
    for each in sizes:
        found.update({uuid: choose(size, found.get(uuid, size)) for uuid, size in each.items()})
    return found


def caps_of_part(demand: MemoryDemand, devices: Iterable[Device]) -> dict[str, Cap]:
    """Return the caps that keep a rank's framework within the rank's claim, keyed by GPU UUID."""
    caps = {}
    for device in devices:
        claim_bytes = demand.on(device)
        claim_bytes = min(claim_bytes, device.memory_total_bytes or claim_bytes)
        caps[device.uuid] = Cap(within_context(claim_bytes), CapCause.RANKS)
    return caps


def best_effort_caps(
    beside: Iterable[tuple[Device, Sequence[Claim]]], own_pid: int | None = None, sharers: int = 1
) -> dict[str, Cap]:
    """Return the caps of a best-effort job beside these claims, keyed by GPU UUID.

    The job may allocate all free memory. If less than 1 GiB is free, the job still has to start. Then it may allocate
    the largest of these:

    - the free memory
    - an equal part of the memory that is neither used nor claimed by stated needs; the other parts are for jobs whose
      use the driver does not show yet
    - up to 1 GiB of unused memory, even if it is claimed
    """
    found = {}
    for device, claims in beside:
        free = free_bytes(device, own_pid, claims)
        if free is not None:
            unstated = spare_bytes(device, own_pid, [claim for claim in claims if claim.is_stated_of(device)])
            newcomers = sum(not claim.is_shown_on(device) for claim in claims)
            least = max((unstated or 0) // (newcomers + 1), min(device.memory_free_bytes or 0, GIB))
            available = free if free >= GIB else max(free, least)
            found[device.uuid] = Cap(within_context(available // sharers), CapCause.SHARED)
    return found
