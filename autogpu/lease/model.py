"""Who holds what and who waits for what: values, and the text of a lease and of a ticket, read as untrusted data."""

from __future__ import annotations

import enum
import json
import os
import re
from types import MappingProxyType
from typing import Any, Callable, Mapping

from autogpu import process, users
from autogpu.caps import Cap, CapCause
from autogpu.errors import raise_if_from_script
from autogpu.frozen import Value, replace
from autogpu.text import printable

# A waiter shows every second that it is running; one that has not for this long is stopped or swapped out.
SILENCE_S = 5.0

# Of docs/lease-protocol.md. A later version only adds fields, which readers skip: old and new ones share a folder.
VERSION = 1

MAX_SCRIPT = 80
_MAX_NAME = 128  # of a UUID (`MIG-GPU-<36 characters>/7/0` is the longest known), a group or a namespace
_MAX_GPUS = 1024
_MOST_BRACKETS = 220  # no record of ours has as many, whatever its script and its group are called
_MAX_NUMBER = 2**63 - 1  # more than any GPU has, and what every reader of JSON and every C type can hold

_UUID = re.compile(r"[A-Za-z0-9_./:-]{1,128}")


class Fault(enum.Enum):
    """What keeps a process from a lease, or from the mutex under which it should claim."""

    NO_FLOCK = enum.auto()  # this system has no such locks
    RELATIVE_PATH = enum.auto()
    NO_FOLDER_YET = enum.auto()  # the first claim makes it
    NO_PARENT = enum.auto()  # it can't be made
    NOT_REACHED = enum.auto()  # the system refuses to look at it or to make it
    UNUSABLE = enum.auto()  # the system refuses what has to be done in it
    SYMLINK = enum.auto()
    NO_DIRECTORY = enum.auto()
    NOT_STICKY = enum.auto()  # users could remove each other's leases
    OTHERS = enum.auto()  # another user's alone
    MUTEX_HELD = enum.auto()
    COLLISIONS = enum.auto()  # others keep claiming the same GPUs
    INTERNAL = enum.auto()  # a bug


class LeaseProblem(Value):
    """What stands in the way of a lease.

    Attributes:
        path: The folder's.
        error: The text of the system's error, or of the bug.
        number: The system's ``errno``.
        uid: Who owns the folder.
        holder: Who holds the mutex: a pid, and the uid of that process if it is running. ``None`` if it can't be seen.
        stuck_s: How long the mutex could not be had.
    """

    fault: Fault
    path: str = ""
    error: str = ""
    number: int | None = None
    uid: int | None = None
    holder: tuple[int, int | None] | None = None
    stuck_s: float = 0.0


class LeaseUnavailable(Exception):
    """The host has no folder of leases that can be trusted, or this claim could not be made in it in time."""

    def __init__(self, problem: LeaseProblem) -> None:
        super().__init__(problem)
        self.problem = problem


class GaveUp(Exception):
    """A process has waited in the queue as long as it should.

    Attributes:
        timeout_s: How long that was.
        position: Its place in the queue at the end; 1 for the head.
    """

    def __init__(self, timeout_s: float, position: int) -> None:
        super().__init__(timeout_s, position)
        self.timeout_s = timeout_s
        self.position = position


class NoFolderYet(LeaseUnavailable):
    """There is none on this host: the first claim makes it."""


class Terms(Value):
    """What a lease holds.

    Attributes:
        claims: Bytes that others leave to the process, keyed by GPU UUID.
        caps: The most that each member of the job may allocate, keyed by GPU UUID.
    """

    claims: Mapping[str, int]
    caps: Mapping[str, Cap] = MappingProxyType({})


class Holder(Value):
    """A process that holds a lease: what its file says.

    Only ``uid`` and its being alive come from the kernel. The rest was written by the holder, and may be made up: good
    enough to show and to share by.

    Attributes:
        name: The file's name in the folder, unique for the life of the lease.
        uid: The file's owner.
        is_mine: This very process holds it; a fork's child answers ``False`` for its parent's lease.
        pid: As the holder's own pid namespace counts it; use :attr:`pid_here` to look the process up. ``None`` if the
            text can't be understood, and claims nothing that we can read.
        pid_namespace: ``pid:[4026531836]``; ``None`` where the system has none. Source: ``/proc/self/ns/pid``.
        start_time: The holder's start in clock ticks since boot. Source: ``/proc/self/stat``, field 22.
        since_s: When the file was written, by the kernel; in Unix time.
        script: The script's name without folder and arguments, safe to print.
        group: Members of one job share it and what they claim; with ``uid`` alone, as any user can write any group.
        claims: Bytes promised to the holder by GPU UUID, never negative, but perhaps more than a GPU has.
        caps: By GPU UUID, what each member of the job may allocate there; no entry where nothing caps them.
        engine_job: The engine's job to which its GPUs were granted, as ``Slurm.7.0``; ``""`` if there is none.
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
        """The pid if it means the holder in this process's pid namespace at this moment, else ``None``.

        It does not in another container, after the holder's end (a fork's child may keep its lease), and where
        ``/proc`` hides it.
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
        joins: It also takes a GPU in use, once jobs without a stated size may join there.
        per_user: How many GPUs its user may hold; 0 for any number.
        last_runs: Bytes that its script's last runs took: it joins other jobs only if so much is free. Keyed by UUID.
        wait_s: After this time ``last_runs`` no longer counts.
    """

    count: int = 1
    bytes_per_gpu: int | None = None
    uuids: tuple[str, ...] = ()
    joins: bool = False
    per_user: int = 0
    last_runs: Mapping[str, int] = MappingProxyType({})
    wait_s: int = 0

    def could_use(self, uuid: str, free_bytes: int | None = None) -> bool:
        """This GPU would serve; ``free_bytes`` is what it may have there, ``None`` if that is unknown."""
        if self.uuids and uuid not in self.uuids:
            return False
        return free_bytes is None or self.bytes_per_gpu is None or free_bytes >= self.bytes_per_gpu


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
        return self.pid is None or abs(self.silent_s) >= SILENCE_S

    def at(self, now_s: float) -> Waiter:
        """Return the waiter without ``last_runs`` if these no longer count at ``now_s``, in Unix time."""
        demand = self.demand
        # Most waiters have none, and others wait for the mutex meanwhile.
        if not demand.last_runs or now_s - self.since_s < demand.wait_s:
            return self
        return replace(self, demand=replace(demand, last_runs={}))


class QueueState(Value):
    """The queue as a waiting process sees it.

    Attributes:
        ahead: The waiters of other jobs in front of it, without those that it may pass.
        count: GPUs that are waited for.
        timeout_s: How long this process will wait in all.
    """

    ahead: tuple[Waiter, ...]
    count: int = 1
    waited_s: float = 0.0
    timeout_s: float = 0.0

    @property
    def position(self) -> int:
        """1 for the head."""
        return len(self.ahead) + 1


class MalformedRecord(ValueError):
    """No version of ours writes that. All that is raised here, whatever is read."""


def new_name(kind: str) -> str:
    """A name in the folder for a file of this process: a ``job``, or one that has to ``wait``."""
    return f"{kind}.{os.geteuid()}.{os.getpid()}.{os.urandom(4).hex()}"


def identity(script: str) -> dict[str, Any]:
    """The fields of its process that every record has; never the script's arguments, which may hold secrets."""
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
    read(text)  # what the others refuse counts for nothing, and such a ticket would be passed over for ever
    return text


def lease_fields(raw: bytes) -> dict[str, Any]:
    """Check and return the fields of a :class:`Holder` that a lease has; later versions may have more."""
    fields, of_process = _decoded(raw)
    return {
        **of_process,
        "group": _name(fields.get("group")),
        "engine_job": _name(fields.get("engine_job", "")),
        "claims": _claims(fields.get("gpus")),
        "caps": _caps(fields),
    }


def _caps(fields: Mapping[str, Any]) -> dict[str, Cap]:
    """Read the caps of a lease; a cause that this version does not know counts as sharing."""
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
    """Likewise the fields of a :class:`Waiter` that a ticket has."""
    fields, of_process = _decoded(raw)
    count = whole(fields.get("count"))
    uuids = fields.get("uuids")
    if not isinstance(uuids, list) or len(uuids) > _MAX_GPUS or not 1 <= count <= _MAX_GPUS:
        raise MalformedRecord("no demand")
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
    """All that a record says, and what it says of its process, which alone is checked."""
    try:
        decoded = raw.decode("utf-8")
        # Before the parser sees it: it recurses in C, and where a program has raised Python's recursion limit
        # it would take the whole process down.
        if decoded.count("{") + decoded.count("[") > _MOST_BRACKETS:
            raise MalformedRecord("may be nested too deeply")
        fields = json.loads(decoded)
    except (ValueError, RecursionError) as error:
        raise_if_from_script(error)
        raise MalformedRecord(str(error)) from None
    if not isinstance(fields, dict) or whole(fields.get("v")) < 1:
        raise MalformedRecord("no record of any version")
    return fields, {
        "pid": whole(fields.get("pid")),
        "pid_namespace": _optional(_name, fields.get("pidns")),
        "start_time": _optional(whole, fields.get("start")),
        "script": _name(fields.get("script", ""), MAX_SCRIPT),
    }


def _optional(checked: Callable[[object], Any], value: object) -> Any:
    return None if value is None else checked(value)


def whole(value: object) -> int:
    """``value`` if it is an integer of at least 0 and not absurd; bools, for Python integers, are refused."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MAX_NUMBER:
        raise MalformedRecord("not a whole number")
    return value


def _claims(gpus: object) -> dict[str, int]:
    if not isinstance(gpus, dict) or len(gpus) > _MAX_GPUS:
        raise MalformedRecord("no GPUs")
    return {_uuid(uuid): whole(size) for uuid, size in gpus.items()}


def _uuid(value: object) -> str:
    if not isinstance(value, str) or not _UUID.fullmatch(value):
        raise MalformedRecord("not a UUID")
    return value


def _name(value: object, most: int = _MAX_NAME) -> str:
    if not isinstance(value, str):
        raise MalformedRecord("not a name")
    return printable(value, most)
