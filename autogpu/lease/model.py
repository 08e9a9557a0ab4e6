"""Holders, waiters and their demands, and the text of leases and tickets, which is read as untrusted data."""

from __future__ import annotations

import enum
import json
import os
import re
from types import MappingProxyType
from typing import Any, Callable, Mapping

from autogpu import process, users
from autogpu.caps import Cap, CapCause
from autogpu.errors import Stopped, raise_if_from_script
from autogpu.frozen import Value, replace
from autogpu.text import printable

# A waiter shows every second that it is running. If it has not for this long, it counts as stopped or swapped out.
SILENCE_S = 5.0

# The version of docs/lease-protocol.md. A later version only adds fields, which older readers skip, so that processes
# of both versions can share a folder.
VERSION = 1

MAX_SCRIPT = 80
_MAX_NAME = 128  # characters of a UUID (`MIG-GPU-<36 characters>/7/0` is the longest known), a group or a namespace
_MAX_GPUS = 1024
_MOST_BRACKETS = 220  # a record of autogpu has fewer, whatever the names of its script and group are
_MAX_NUMBER = 2**63 - 1  # more bytes than any GPU has, and the largest signed 64-bit integer of C

_UUID = re.compile(r"[A-Za-z0-9_./:-]{1,128}")


class Fault(enum.Enum):
    """The reason why a process can't get a lease, or can't get the mutex for its claim."""

    NO_FLOCK = enum.auto()
    RELATIVE_PATH = enum.auto()
    NO_FOLDER_YET = enum.auto()  # the first claim makes the folder
    NO_PARENT = enum.auto()  # the folder can't be made
    NOT_REACHED = enum.auto()  # the system refuses to read the folder's status or to make the folder
    UNUSABLE = enum.auto()  # a system call in the folder fails
    SYMLINK = enum.auto()
    NO_DIRECTORY = enum.auto()
    NOT_STICKY = enum.auto()  # users could remove each other's leases
    OTHERS = enum.auto()  # only another user can write in the folder
    MUTEX_HELD = enum.auto()
    COLLISIONS = enum.auto()  # others keep claiming the same GPUs
    INTERNAL = enum.auto()  # a bug


class LeaseProblem(Value):
    """A fault that prevents a lease or the use of the mutex, with its details.

    Attributes:
        path: Path of the lease folder.
        error: Text of the system's error, or of the exception that shows a bug.
        number: ``errno`` of the system's error.
        uid: Owner of the folder.
        holder: Pid and uid of the process that holds the mutex; ``None`` if it can't be seen. The uid is ``None`` if
            the process has ended.
        stuck_s: How long this process has been unable to take the mutex.
    """

    fault: Fault
    path: str = ""
    error: str = ""
    number: int | None = None
    uid: int | None = None
    holder: tuple[int, int | None] | None = None
    stuck_s: float = 0.0


class LeaseUnavailable(Stopped):
    """The host has no lease folder that can be used and trusted, or the claim could not be made in time."""

    problem: LeaseProblem


class GaveUp(Exception):
    """The time for which a process was to wait in the queue is over.

    Attributes:
        timeout_s: How long the process was to wait.
        position: Its place in the queue at the end; 1 for the head.
    """

    def __init__(self, timeout_s: float, position: int) -> None:
        super().__init__(timeout_s, position)
        self.timeout_s = timeout_s
        self.position = position


class NoFolderYet(LeaseUnavailable):
    """The lease folder does not exist yet: the first claim makes it."""


class Terms(Value):
    """The claims and caps of a lease.

    Attributes:
        claims: Bytes that others leave to the process, keyed by GPU UUID.
        caps: The most that each member of the job may allocate, keyed by GPU UUID.
    """

    claims: Mapping[str, int]
    caps: Mapping[str, Cap] = MappingProxyType({})


class Holder(Value):
    """A process that holds a lease, as described by the lease file.

    Only ``uid``, and the fact that the holder is alive, come from the kernel. The holder wrote the rest, which may be
    false. It is good enough to show, and to share GPUs by.

    Attributes:
        name: Name of the file in the folder, unique for the life of the lease.
        uid: The file's owner.
        is_mine: True if this very process holds the lease; False in a forked child for its parent's lease.
        pid: The pid in the holder's own pid namespace. Use :attr:`pid_here` to look the process up. ``None`` if the
            text can't be parsed; such a lease claims nothing.
        pid_namespace: Such as ``pid:[4026531836]``; ``None`` if the system has none. Source: ``/proc/self/ns/pid``.
        start_time: The holder's start in clock ticks since boot. Source: ``/proc/self/stat``, field 22.
        since_s: When the file was written, in Unix time.
        script: The script's name without folder and arguments, safe to print.
        group: The job's name. Leases with the same ``group`` and ``uid`` belong to one job and share their claims. The
            group alone is not enough, because any user can write any group.
        claims: Bytes promised to the holder, keyed by GPU UUID; never negative, but perhaps more than a GPU has.
        caps: The most that each member of the job may allocate, keyed by GPU UUID; no entry if there is no cap.
        engine_job: The engine's job to which the GPUs were granted, such as ``Slurm.7.0``; ``""`` if there is none.
    """

    name: str
    uid: int
    is_mine: bool
    pid: int | None = None
    pid_namespace: str | None = None
    start_time: int | None = None
    since_s: float = 0.0
    script: str = ""
    group: str = ""
    claims: Mapping[str, int] = MappingProxyType({})
    caps: Mapping[str, Cap] = MappingProxyType({})
    engine_job: str = ""

    @property
    def pid_here(self) -> int | None:
        """The holder's pid in the pid namespace of this process.

        ``None`` if the holder is in another container, if ``/proc`` hides it, or if it has ended. A forked child may
        keep the lease of a holder that has ended.
        """
        if self.pid is None or self.pid_namespace is None or self.pid_namespace != process.pid_namespace():
            return None
        is_it = self.start_time is not None and process.start_time(self.pid) == self.start_time
        return self.pid if is_it and users.owner(self.pid) == self.uid else None


class Demand(Value):
    """The GPUs that a process waits for.

    Attributes:
        count: GPUs at the same time.
        bytes_per_gpu: Memory needed on each; ``None`` means whole GPUs.
        uuids: The GPUs it may use; empty means any.
        joins: True if the process also takes a GPU in use, once jobs without a stated need may join there.
        per_user: The most GPUs that the user may hold; 0 for any number.
        last_runs: Bytes that the last runs of the script took, keyed by UUID. The process joins other jobs only if
            that much is free.
        wait_s: Seconds of waiting after which ``last_runs`` no longer counts.
    """

    count: int = 1
    bytes_per_gpu: int | None = None
    uuids: tuple[str, ...] = ()
    joins: bool = False
    per_user: int = 0
    last_runs: Mapping[str, int] = MappingProxyType({})
    wait_s: int = 0

    def could_use(self, uuid: str, free_bytes: int | None = None) -> bool:
        """True if this GPU would satisfy the demand. Unknown ``free_bytes`` (``None``) count as enough."""
        if self.uuids and uuid not in self.uuids:
            return False
        return free_bytes is None or self.bytes_per_gpu is None or free_bytes >= self.bytes_per_gpu


class Waiter(Holder):
    """A process in the queue, which holds nothing yet.

    Attributes:
        name: Name of the ticket.
        since_s: When the process took the ticket, in Unix time.
        silent_s: Seconds since the process last showed that it is running.
    """

    silent_s: float = 0.0
    demand: Demand = Demand()

    @property
    def is_unresponsive(self) -> bool:
        """True if the process seems to be stopped or swapped out. Others pass it over, and it keeps its place."""
        # A beat in the future and a demand that can't be read count as well: such a ticket would block the queue.
        return self.pid is None or abs(self.silent_s) >= SILENCE_S

    def at(self, now_s: float) -> Waiter:
        """Return the waiter without ``last_runs`` if these no longer count at ``now_s``, in Unix time."""
        demand = self.demand
        # Don't make a copy for the many waiters without last_runs: other processes wait for the mutex meanwhile.
        if not demand.last_runs or now_s - self.since_s < demand.wait_s:
            return self
        return replace(self, demand=replace(demand, last_runs={}))


class QueueState(Value):
    """The queue as a waiting process sees it.

    Attributes:
        ahead: Waiters of other jobs in front of this process, without those that it may pass.
        count: Number of GPUs that this process waits for.
        timeout_s: How long this process will wait in total.
    """

    ahead: tuple[Waiter, ...]
    count: int = 1
    waited_s: float = 0.0
    timeout_s: float = 0.0

    @property
    def position(self) -> int:
        """Place in the queue; 1 for the head."""
        return len(self.ahead) + 1


class MalformedRecord(ValueError):
    """A malformed lease or ticket. The parsers of this module raise no other exception."""


def new_name(kind: str) -> str:
    """Return a new name for a file of this process. The kind is ``job`` for a lease, ``wait`` for a ticket."""
    return f"{kind}.{os.geteuid()}.{os.getpid()}.{os.urandom(4).hex()}"


def identity(script: str) -> dict[str, Any]:
    """Return the fields of every record about this process, but no arguments of the script: they may hold secrets."""
    return {
        "v": VERSION,
        "pid": os.getpid(),
        "start": process.start_time(),
        "pidns": process.pid_namespace(),
        "script": printable(script.rpartition("/")[2], MAX_SCRIPT),
    }


def encode_lease(fields: Mapping[str, Any], terms: Terms) -> bytes:
    record = {**fields, "gpus": dict(terms.claims)}
    caps = terms.caps
    if caps:
        record["caps"] = {uuid: cap.bytes for uuid, cap in caps.items()}
        record["why"] = {uuid: cap.cause.value for uuid, cap in caps.items()}
        whose = {uuid: cap.whose for uuid, cap in caps.items() if cap.whose}
        if whose:
            record["whose"] = whose
    return _encoded(record, lease_fields)


def encode_ticket(fields: Mapping[str, Any], demand: Demand) -> bytes:
    wanted = {
        "count": demand.count,
        "bytes": demand.bytes_per_gpu,
        "uuids": list(demand.uuids),
        "joins": demand.joins,
        "per_user": demand.per_user,
        "last_runs": dict(demand.last_runs),
        "wait_s": demand.wait_s,
    }
    return _encoded({**fields, **wanted}, ticket_fields)


def _encoded(fields: Mapping[str, Any], read: Callable[[bytes], object]) -> bytes:
    text = json.dumps(fields, separators=(",", ":"), allow_nan=False).encode("ascii") + b"\n"
    read(text)  # raise here: readers ignore a malformed lease, and pass over a malformed ticket for ever
    return text


def lease_fields(raw: bytes) -> dict[str, Any]:
    """Parse a lease; return its fields of a :class:`Holder`. Fields of later versions are skipped."""
    fields, of_process = _decoded(raw)
    return {
        **of_process,
        "group": _name(fields.get("group")),
        "engine_job": _name(fields.get("engine_job", "")),
        "claims": _claims(fields.get("gpus")),
        "caps": _caps(fields),
    }


def _caps(fields: Mapping[str, Any]) -> dict[str, Cap]:
    """Return the caps of a lease. An unknown cause, from a later version, counts as sharing."""
    causes = {cause.value: cause for cause in CapCause}
    why = _texts(fields.get("why"))
    whose = _texts(fields.get("whose"))
    caps = {}
    for uuid, size in _claims(fields.get("caps", {})).items():
        cause = causes.get(why.get(uuid, ""), CapCause.SHARED)
        caps[uuid] = Cap(size, cause, whose.get(uuid, ""))
    return caps


def _texts(values: object) -> dict[str, str]:
    found = values if isinstance(values, dict) else {}
    return {uuid: printable(text, _MAX_NAME) for uuid, text in found.items() if isinstance(text, str)}


def ticket_fields(raw: bytes) -> dict[str, Any]:
    fields, of_process = _decoded(raw)
    count = whole(fields.get("count"))
    uuids = fields.get("uuids")
    if not isinstance(uuids, list) or len(uuids) > _MAX_GPUS or not 1 <= count <= _MAX_GPUS:
        raise MalformedRecord("the ticket has no valid demand")
    return {
        **of_process,
        "group": _name(fields.get("group", "")),
        "demand": Demand(
            count=count,
            bytes_per_gpu=_optional(whole, fields.get("bytes")),
            uuids=tuple(map(_uuid, uuids)),
            joins=fields.get("joins") is True,
            per_user=whole(fields.get("per_user", 0)),
            last_runs=_claims(fields.get("last_runs", {})),
            wait_s=whole(fields.get("wait_s", 0)),
        ),
    }


def _decoded(raw: bytes) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return all fields of a record, unchecked, and the fields about its process, which are checked."""
    try:
        decoded = raw.decode("utf-8")
        # Check this before parsing: the parser recurses in C, and would crash the process if a program has raised
        # Python's recursion limit.
        if decoded.count("{") + decoded.count("[") > _MOST_BRACKETS:
            raise MalformedRecord("too many brackets")
        fields = json.loads(decoded)
    except (ValueError, RecursionError) as error:
        raise_if_from_script(error)
        raise MalformedRecord(str(error)) from None
    if not isinstance(fields, dict) or whole(fields.get("v")) < 1:
        raise MalformedRecord("not a record of a known form")
    return fields, {
        "pid": whole(fields.get("pid")),
        "pid_namespace": _optional(_name, fields.get("pidns")),
        "start_time": _optional(whole, fields.get("start")),
        "script": _name(fields.get("script", ""), MAX_SCRIPT),
    }


def _optional(checked: Callable[[object], Any], value: object) -> Any:
    return None if value is None else checked(value)


def whole(value: object) -> int:
    """Return ``value`` if it is an integer from 0 to 2**63 - 1. Bools, which are integers in Python, are refused."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MAX_NUMBER:
        raise MalformedRecord("not a whole number")
    return value


def _claims(gpus: object) -> dict[str, int]:
    if not isinstance(gpus, dict) or len(gpus) > _MAX_GPUS:
        raise MalformedRecord("not a mapping from GPU UUIDs to bytes")
    return {_uuid(uuid): whole(size) for uuid, size in gpus.items()}


def _uuid(value: object) -> str:
    if not isinstance(value, str) or not _UUID.fullmatch(value):
        raise MalformedRecord("not a UUID")
    return value


def _name(value: object, most: int = _MAX_NAME) -> str:
    if not isinstance(value, str):
        raise MalformedRecord("not a name")
    return printable(value, most)
