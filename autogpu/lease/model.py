"""Who holds what and who waits for what, as plain values; and what can go wrong in finding out."""

from __future__ import annotations

from types import MappingProxyType
from typing import Mapping

from autogpu import process
from autogpu.errors import AutoGpuError
from autogpu.frozen import frozen
from autogpu.selection.model import Cap

# A waiter shows every two seconds that it is running; one that has not for this long is stopped or swapped out.
SILENCE_S = 5.0


class LeaseUnavailable(AutoGpuError):
    """Fix the host's lease folder: there is none that can be trusted."""


class NoFolderYet(LeaseUnavailable):
    """There is none on this host: the first claim makes it."""


class Uncoordinated(LeaseUnavailable):
    """Go on uncoordinated: the folder is there, but this claim could not be made in it in time."""


@frozen
class Holder:
    """A process that holds a lease: what its file says, as far as it can be believed.

    Only ``uid`` and its being alive come from the kernel. The rest was written by the holder, and may be made up: good
    enough to show and to share by.

    Attributes:
        name: The file's name in the folder, unique for the life of the lease.
        uid: The file's owner.
        is_mine: This very process holds it; a fork's child answers ``False`` for its parent's lease.
        is_readable: ``False`` if the text can't be understood, and claims nothing that we can read.
        pid: As the holder's own pid namespace counts it; use :attr:`pid_here` to look the process up.
        pid_namespace: ``pid:[4026531836]``; ``None`` where the system has none. Source: ``/proc/self/ns/pid``.
        start_time: The holder's start in clock ticks since boot. Source: ``/proc/self/stat``, field 22.
        since_s: When the file was written, by the kernel; in Unix time, as this process's clock shows it.
        script: The script's name without folder and arguments, safe to print.
        group: Members of one job share it and what they claim; with ``uid`` alone, as any user can write any group.
        claims: Bytes promised to the holder by GPU UUID, never negative, but perhaps more than a GPU has.
        caps: By GPU UUID, what each member of the job may allocate there; no entry where nothing caps them.
        run: By which its user finds what the last runs of the script took; else empty.
    """

    name: str
    uid: int
    is_mine: bool
    is_readable: bool
    pid: int | None = None
    pid_namespace: str | None = None
    start_time: int | None = None
    since_s: float = 0.0
    script: str = ""
    group: str = ""
    claims: Mapping[str, int] = MappingProxyType({})
    caps: Mapping[str, Cap] = MappingProxyType({})
    run: str = ""

    @property
    def pid_here(self) -> int | None:
        """The pid if it means the holder in this process's pid namespace at this moment, else ``None``.

        Such as another container's, one that ended (a fork's child may keep its lease), and one that ``/proc`` hides.
        """
        return process.pid_here(self.pid, self.pid_namespace, self.start_time, self.uid)


@frozen
class Demand:
    """The GPUs that a process waits for.

    Attributes:
        count: GPUs at the same time.
        bytes_per_gpu: Memory needed on each; ``None`` means whole GPUs.
        uuids: The GPUs it may use; empty means any.
        joins: A GPU that others have will do as well, if a job that tells no size may join there.
        per_user: How many GPUs its user may hold; 0 for any number.
    """

    count: int = 1
    bytes_per_gpu: int | None = None
    uuids: tuple[str, ...] = ()
    joins: bool = False
    per_user: int = 0

    def could_use(self, uuid: str, free_bytes: int | None = None) -> bool:
        """This GPU would serve; ``free_bytes`` is what it may have there, ``None`` if that is unknown."""
        if self.uuids and uuid not in self.uuids:
            return False
        return free_bytes is None or self.bytes_per_gpu is None or free_bytes >= self.bytes_per_gpu


@frozen
class Waiter(Holder):
    """A process in the queue, which holds nothing yet; ``name`` is its ticket's, ``since_s`` tells when it came.

    Attributes:
        silent_s: How long ago it last showed that it is running.
    """

    silent_s: float = 0.0
    demand: Demand = Demand()

    @property
    def is_unresponsive(self) -> bool:
        """It is stopped or swapped out: others pass it over, and it keeps its place for its return."""
        # A time in the future would let a ticket block the queue for ever, and so would a demand that can't be read.
        return not self.is_readable or abs(self.silent_s) >= SILENCE_S


@frozen
class QueueState:
    """The queue as a waiting process sees it.

    Attributes:
        ahead: Those in front that are not passed over, nor of the same job.
        count: GPUs that are waited for.
        timeout_s: How long this process will wait in all.
    """

    ahead: tuple[Waiter, ...]
    holders: tuple[Holder, ...]
    count: int = 1
    waited_s: float = 0.0
    timeout_s: float = 0.0

    @property
    def position(self) -> int:
        """1 for the head."""
        return len(self.ahead) + 1
