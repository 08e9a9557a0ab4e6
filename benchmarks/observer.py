"""Watches a simulated server and a lease folder from outside, with its own eyes: none of autogpu's code is used.

    python benchmarks/observer.py '{"log": ..., "leases": ..., "totals": {...}, "promise_bytes": ...}'

A process of its own. Looks about once a millisecond until its stdin ends, then prints what it saw as one JSON object.
Whatever it reports was true at one instant: a lease counts if it was locked both before and after all others were
looked at (a lease is locked once in its life), a process on a GPU if it still runs when the other's context is read.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import struct
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

PAUSE_S = 0.001

# A folder's time of change moves with the kernel's tick, so two changes can bear the same.
SAME_TICK_S = 0.05


@dataclass
class Lease:
    """One file of the lease folder, kept open."""

    descriptor: int
    inode: int
    job: str
    claims: dict[str, int]


@dataclass
class Seen:
    """What the observer has to say at the end.

    Attributes:
        over_bytes: By how much the live claims on a GPU exceeded it, at most, at any instant.
        over: What that instant looked like.
        most_promised_bytes: By GPU, the most that was promised at any instant.
        promise_over_bytes: The same for what jobs on a GPU count on, by the driver's log instead of leases.
        shared_pids: Jobs that were on a GPU together with another one.
        refused: Contexts and allocations that the driver did not grant.
        longest_gap_s: Between two looks.
        held_at_end: Names of files that are still locked: leases, places in the queue.
    """

    over_bytes: int = 0
    over: list[str] = field(default_factory=list)
    most_promised_bytes: dict[str, int] = field(default_factory=dict)
    promise_over_bytes: int = 0
    shared_pids: set[int] = field(default_factory=set)
    refused: int = 0
    longest_gap_s: float = 0.0
    held_at_end: list[str] = field(default_factory=list)


class LeaseFolder:
    """Reads who holds what; changes nothing. The shared lock that it tries is the one any reader tries."""

    def __init__(self, path: Path, totals: dict[str, int], seen: Seen) -> None:
        self._path = path
        self._totals = totals
        self._seen = seen
        self._leases: dict[str, Lease] = {}
        self._dead: set[str] = set()
        self._changed_s = -1.0

    def has_changed(self) -> bool:
        """Whether a lease can have come since the last call; one that only ended takes no promise beyond a GPU."""
        before_s, self._changed_s = self._changed_s, self._path.stat().st_mtime
        return self._changed_s != before_s or time.time() - self._changed_s < SAME_TICK_S

    def look(self) -> None:
        """Read all leases, and judge the instant between the first try of their locks and the second."""
        self._open_new_ones()
        held = {name: lease for name, lease in self._leases.items() if is_locked(lease.descriptor)}
        held = {name: lease for name, lease in held.items() if is_locked(lease.descriptor)}
        self._judge(held)
        for name in set(self._leases) - set(held):
            os.close(self._leases.pop(name).descriptor)
            self._dead.add(name)

    def close(self) -> None:
        """Look for the last time."""
        self.look()
        for path in sorted(self._path.iterdir()):
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            if is_locked(descriptor):
                self._seen.held_at_end.append(path.name)
            os.close(descriptor)

    def _open_new_ones(self) -> None:
        with os.scandir(self._path) as entries:
            found = [(entry.name, entry.inode()) for entry in entries if entry.name.startswith("job.")]
        for name, inode in found:
            known = self._leases.get(name)
            # A name is never used again, but by a holder that replaces its own live file.
            if name in self._dead or (known and known.inode == inode):
                continue
            try:
                descriptor = os.open(self._path / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            except FileNotFoundError:
                continue
            if known:
                os.close(known.descriptor)
            fields = json.loads(os.read(descriptor, 1 << 16))
            job = f"{os.fstat(descriptor).st_uid} {fields['group']}"
            self._leases[name] = Lease(descriptor, os.fstat(descriptor).st_ino, job, fields["gpus"])

    def _judge(self, held: dict[str, Lease]) -> None:
        # The processes of one job share one promise.
        by_job: dict[tuple[str, str], int] = {}
        for lease in held.values():
            for uuid, size in lease.claims.items():
                by_job[uuid, lease.job] = max(size, by_job.get((uuid, lease.job), 0))
        promised: dict[str, int] = {}
        for (uuid, _), size in by_job.items():
            promised[uuid] = promised.get(uuid, 0) + size
        for uuid, size in promised.items():
            self._seen.most_promised_bytes[uuid] = max(size, self._seen.most_promised_bytes.get(uuid, 0))
            over = size - self._totals.get(uuid, 0)
            if over > self._seen.over_bytes:
                on_it = {name: lease for name, lease in held.items() if uuid in lease.claims}
                # A holder that gives back removes the name first and lets the lock go an instant later.
                if all(self._is_named(name, lease) for name, lease in on_it.items()):
                    self._seen.over_bytes = over
                    self._seen.over = [f"{name} {lease.claims[uuid]}" for name, lease in sorted(on_it.items())]

    def _is_named(self, name: str, lease: Lease) -> bool:
        try:
            return (self._path / name).stat().st_ino == lease.inode
        except FileNotFoundError:
            return False


class DriverLog:
    """Reads the driver's log as it grows: who is on which GPU."""

    def __init__(self, path: Path, totals: list[int], promise_bytes: int, seen: Seen) -> None:
        self._file = path.open("rb")
        self._totals = totals
        self._promise_bytes = promise_bytes
        self._seen = seen
        self._rest = b""
        self._on: dict[int, dict[int, int]] = {}

    def look(self) -> None:
        """Read what was added."""
        self._rest += self._file.read()
        *lines, self._rest = self._rest.split(b"\n")
        for line in lines:
            call = json.loads(line)
            if call["call"] == "context":
                self._arrived(call["gpu"], call["pid"])
            elif call["call"] == "context_end":
                self._on.get(call["gpu"], {}).pop(call["pid"], None)
            elif call["call"] == "refused":
                self._seen.refused += 1

    def _arrived(self, gpu: int, pid: int) -> None:
        here = self._on.setdefault(gpu, {})
        for other in list(here):
            if start_time(other) != here[other]:
                del here[other]
        started = start_time(pid)
        if started is None:
            return
        here[pid] = started
        if len(here) > 1:
            self._seen.shared_pids |= set(here)
        over = len(here) * self._promise_bytes - self._totals[gpu]
        self._seen.promise_over_bytes = max(over, self._seen.promise_over_bytes)


def is_locked(descriptor: int) -> bool:
    # F_OFD_GETLK, a name that Python has since 3.9: what a read lock would have to wait for.
    answer = fcntl.fcntl(descriptor, 36, struct.pack("hhqqi4x", fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0))
    return struct.unpack_from("h", answer)[0] != fcntl.F_UNLCK


def start_time(pid: int) -> int | None:
    """Tells a live process from a later one with its pid; ``None`` for one that has ended, reaped or not."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


def main() -> None:
    order = json.loads(sys.argv[1])
    with contextlib.suppress(OSError):
        os.nice(-10)  # only root may; dozens of jobs that start at once would else keep it from looking
    seen = Seen()
    leases = LeaseFolder(Path(order["leases"]), order["totals"], seen)
    log = DriverLog(Path(order["log"]), list(order["totals"].values()), order["promise_bytes"], seen)
    print("ready", flush=True)
    last_s = time.monotonic()
    is_over = False
    while not is_over:
        is_over = bool(select.select([sys.stdin], [], [], PAUSE_S)[0])
        if leases.has_changed():
            leases.look()
        log.look()
        now_s = time.monotonic()
        seen.longest_gap_s = max(seen.longest_gap_s, now_s - last_s)
        last_s = now_s
    leases.close()
    print(json.dumps({**vars(seen), "shared_pids": sorted(seen.shared_pids)}), flush=True)


if __name__ == "__main__":
    main()
