"""The host's leases: how the processes of one machine claim GPUs, see each other's claims and wait in a queue.

A claim is a locked file in the host's lease folder. The kernel drops the lock if the process crashes or gets SIGKILL,
so the GPU is given back without a cleanup. Leases bind only processes that use autogpu, not other tools.
"""

from autogpu.lease.folder import Folder, find_folder
from autogpu.lease.leases import Lease, acquire_lease, choose_and_lease
from autogpu.lease.marker import ancestor_lease, has_parents_list, is_marked
from autogpu.lease.model import (
    Demand,
    Fault,
    GaveUp,
    Holder,
    LeaseProblem,
    LeaseUnavailable,
    NoFolderYet,
    QueueState,
    Terms,
    Waiter,
)
from autogpu.lease.processes import Processes, ProcessTable, processes_of
from autogpu.lease.snapshot import LeaseSnapshot, UnreadableFile, snapshot

__all__ = [
    "Demand",
    "Fault",
    "Folder",
    "GaveUp",
    "Holder",
    "Lease",
    "LeaseProblem",
    "LeaseSnapshot",
    "LeaseUnavailable",
]
__all__ += ["NoFolderYet", "ProcessTable", "Processes", "QueueState", "Terms", "UnreadableFile", "Waiter"]
__all__ += ["acquire_lease", "ancestor_lease", "choose_and_lease", "find_folder", "has_parents_list", "is_marked"]
__all__ += ["processes_of", "snapshot"]
