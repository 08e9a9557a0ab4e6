"""A host at one moment, as ``autogpu status`` shows it and ``status --json`` prints it; no name is left to look up.

Sizes are bytes, spans are seconds, and what is not known is ``None``. ``docs/status.schema.json`` describes each field.
"""

from __future__ import annotations

from autogpu.frozen import Value, replace

# Of what is printed as JSON. Grows when a field changes its meaning or goes, not when one is added.
VERSION = 1

# The states of a GPU that a job can have. One that it can't is "split" into MIG instances, in MIG mode with
# "no_instance", "prohibited", "excluded" by the policy for scripts started here, or "too_small" beside larger ones.
TAKEABLE = ("free", "awaited", "idle_lease", "busy")


class JobStatus(Value):
    """A job that holds a GPU by a lease, of one process or several."""

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
    """A process on a GPU that is of no job."""

    pid: int
    user: str | None
    program: str | None
    used_bytes: int | None
    is_graphics: bool


class GpuStatus(Value):
    """One GPU or MIG instance with all that is on it."""

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
        """Its number for people: ``0``, and ``0:1`` for the instance 1 of that card."""
        return str(self.index) if self.instance is None else f"{self.index}:{self.instance}"

    @property
    def claimed_bytes(self) -> int:
        """Promised to jobs; of the memory that there is."""
        return min(sum(job.claim_bytes for job in self.jobs), self.memory_total_bytes or 0)

    def of_user(self, user: str) -> GpuStatus:
        jobs = tuple(job for job in self.jobs if job.user == user)
        processes = tuple(process for process in self.unmanaged_processes if process.user == user)
        return replace(self, jobs=jobs, unmanaged_processes=processes, unlisted_bytes=0)


class UnreadableGpu(Value):
    """A GPU that the driver counts and can't describe."""

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
    """The GPUs, or else, that a job started here and now would get."""

    verdict: str
    why: str
    uuids: tuple[str, ...]
    policy: str
    reasons: tuple[str, ...]


class LeaseFolder(Value):
    """Where this user's jobs coordinate."""

    path: str
    origin: str
    owner: str
    owner_uid: int


class UnreadableLease(Value):
    """A file in the lease folder that can't be read: what its owner claims with it does not count.

    Attributes:
        user: Its owner; ``""`` if unknown.
    """

    name: str
    user: str
    reason: str


class HostStatus(Value):
    """The host at one moment."""

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
        """The host with the GPUs that the user is on, by name, and the user's places in the queue; ``None``: all of it.

        A GPU that can't be read is left out: it is unknown whose it was. So is why a script would get which GPU, which
        tells of the others.
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


class Answer(Value):
    """The status of a host, called as it was asked for; or why there is none, in words that are safe for a terminal."""

    host: str
    status: HostStatus | None
    problem: str = ""
