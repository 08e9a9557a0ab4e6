"""The host's leases: how the processes of one machine claim GPUs, see each other's claims and wait in line.

The kernel keeps every claim by a ``flock`` on a file of the host's folder, so a crash or SIGKILL gives the
GPU back with nothing to clean up. Binds autogpu's users only, not other tools.
"""

from __future__ import annotations

from autogpu.lease.claims import MARKER, Lease, claim, parent_lease
from autogpu.lease.folder import Folder, find_folder
from autogpu.lease.listing import holders, waiters
from autogpu.lease.model import (
    Holder,
    LeaseUnavailable,
    QueueState,
    Uncoordinated,
    Waiter,
    WaitTimeout,
    Want,
)
from autogpu.lease.queue import wait_for

__all__ = [
    "MARKER",
    "Folder",
    "Holder",
    "Lease",
    "LeaseUnavailable",
    "QueueState",
    "Uncoordinated",
    "WaitTimeout",
    "Waiter",
    "Want",
    "claim",
    "find_folder",
    "holders",
    "parent_lease",
    "wait_for",
    "waiters",
]
