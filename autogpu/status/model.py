"""Status of a host at one moment, as ``autogpu status`` shows it and ``status --json`` prints it.

Uids are resolved to user names, and unmanaged processes to their programs. Sizes are in bytes and spans in seconds. An
unknown value is ``None``. ``docs/status.schema.json`` describes each field.
"""

from __future__ import annotations

import enum

from autogpu.frozen import Value, replace

# Version of the JSON. It grows when a field is removed or changes its meaning, not when a field is added.
VERSION = 1

# The states of a GPU that a job can get. A job can't get a GPU that is "split" (into MIG instances), "no_instance" (in
# MIG mode without an instance), "prohibited" (by its compute mode), "excluded" (by the policy for scripts started here)
# or "too_small" (beside larger GPUs).
TAKEABLE = ("free", "awaited", "idle_lease", "busy")


class JobStatus(Value):
    """A job that holds a GPU by a lease. It has one or more processes."""

    user: str
    uid: int
    pid: int | None
    script: str
    age_s: float | None
    processes: int
    claim_bytes: int
    used_bytes: int | None
    is_idle: bool
    is_active: bool | None = None
    printed: tuple[str, ...] = ()


class UnmanagedProcess(Value):
    """A process on a GPU that belongs to no job."""

    pid: int
    user: str | None
    program: str | None
    used_bytes: int | None
    is_graphics: bool


class GpuStatus(Value):
    """One GPU or MIG instance, with its jobs and unmanaged processes."""

    uuid: str
    index: int
    name: str
    pci_bus_id: str | None
    memory_total_bytes: int | None
    memory_used_bytes: int | None
    utilization_percent: int | None
    compute_mode: str | None
    mig_enabled: bool
    state: str
    jobs: tuple[JobStatus, ...]
    unmanaged_processes: tuple[UnmanagedProcess, ...]
    unlisted_bytes: int
    health_problems: tuple[str, ...] = ()
    parent: str | None = None
    instance: int | None = None
    temperature_celsius: int | None = None
    power_watts: int | None = None

    @property
    def label(self) -> str:
        """The number of the GPU for people: ``0``, or ``0:1`` for instance 1 of GPU 0."""
        return str(self.index) if self.instance is None else f"{self.index}:{self.instance}"

    @property
    def claimed_bytes(self) -> int:
        """Bytes that the jobs claim, at most the memory of the GPU."""
        return min(sum(job.claim_bytes for job in self.jobs), self.memory_total_bytes or 0)

    def of_user(self, user: str) -> GpuStatus:
        jobs = tuple(job for job in self.jobs if job.user == user)
        processes = tuple(process for process in self.unmanaged_processes if process.user == user)
        return replace(self, jobs=jobs, unmanaged_processes=processes, unlisted_bytes=0)


class UnreadableGpu(Value):
    """A GPU that the driver counts but can't describe."""

    index: int
    reason: str


class WaiterStatus(Value):
    """A process in the queue."""

    user: str
    uid: int
    pid: int | None
    script: str
    waited_s: float | None
    count: int
    bytes_per_gpu: int | None
    is_unresponsive: bool
    uuids: tuple[str, ...] = ()
    joins: bool = False


class Preview(Value):
    """The decision for a job that would be started here now."""

    verdict: str
    why: str
    uuids: tuple[str, ...]
    policy: str
    reasons: tuple[str, ...]


class LeaseFolder(Value):
    """The folder in which this user's jobs coordinate."""

    path: str
    origin: str
    owner: str
    owner_uid: int


class UnreadableLease(Value):
    """A file in the lease folder that can't be read. The claim in it does not count.

    Attributes:
        user: Owner of the file; ``""`` if unknown.
    """

    name: str
    user: str
    reason: str


class HostStatus(Value):
    """The status of one host."""

    driver_version: str | None
    has_driver: bool
    failure: str | None
    gpus: tuple[GpuStatus, ...]
    unreadable: tuple[UnreadableGpu, ...]
    queue: tuple[WaiterStatus, ...]
    preview: Preview
    policy_problems: tuple[str, ...]
    lease_folder: LeaseFolder | None
    lease_folder_problem: str | None
    has_hook: bool = True
    has_hosts_hook: bool = False
    is_enabled: bool = True
    host: str = ""
    time_s: float | None = None
    engine: str = ""
    granted: tuple[str, ...] = ()
    unreadable_leases: tuple[UnreadableLease, ...] = ()

    def of_user(self, user: str | None) -> HostStatus:
        """Return the status with only the named user's GPUs, jobs, processes and places in the queue.

        ``None`` stands for all users. For one user, unreadable GPUs are left out, because their users are unknown. The
        reasons of the preview are left out, because they describe the other users.
        """
        if user is None:
            return self
        theirs = [gpu.of_user(user) for gpu in self.gpus]
        return replace(
            self,
            gpus=tuple(gpu for gpu in theirs if gpu.jobs or gpu.unmanaged_processes),
            unreadable=(),
            queue=tuple(waiter for waiter in self.queue if waiter.user == user),
            preview=replace(self.preview, why="", reasons=()),
        )

    def to_json(self) -> dict[str, object]:
        return {"version": VERSION, **_plain_fields(self)}


def _plain_fields(value: Value) -> dict[str, object]:
    return {name: _plain(getattr(value, name)) for name in value._fields}


def _plain(value: object) -> object:
    if isinstance(value, Value):
        return _plain_fields(value)
    if isinstance(value, tuple):
        return tuple(map(_plain, value))
    return value


class RemoteFault(enum.Enum):
    """The reason why another host sent no status. The comments state what the fields of a problem hold."""

    NO_ANSWER = enum.auto()  # number: seconds that the host had
    TOO_LARGE = enum.auto()  # the output; number: MiB that are allowed
    SSH_FAILED = enum.auto()  # detail: the last line on stderr; "" if there is none
    NOTHING_PRINTED = enum.auto()  # number: exit status of the remote command; detail: the last line on stderr, or ""
    NOT_JSON = enum.auto()  # detail: the parser's reason
    OTHER_VERSION = enum.auto()  # of the JSON
    FIELD_MISSING = enum.auto()  # detail: the field
    NOT_A_LIST = enum.auto()  # detail: the field
    INVALID_FIELD = enum.auto()  # detail: the field; kind: the type that it must have


class RemoteProblem(Value):
    """The fault because of which another host sent no status. Its texts come from that host, which may be hostile."""

    fault: RemoteFault
    detail: str = ""
    number: float = 0
    kind: str = ""


class Answer(Value):
    """The answer of one host.

    Attributes:
        host: Name by which the host was asked; ``""`` for this host.
        status: ``None`` if the host sent none.
        problem: Why there is no status; ``None`` if there is one.
    """

    host: str
    status: HostStatus | None
    problem: RemoteProblem | None = None
