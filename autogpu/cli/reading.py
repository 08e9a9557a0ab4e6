"""What the verbs read of the machine: the driver, the lease folder, the policy that holds here."""

from __future__ import annotations

import os
import pwd
import time
from pathlib import Path

from autogpu import lease, overview, policy, ranks
from autogpu.devices import probe
from autogpu.frozen import frozen
from autogpu.stderr import shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Mapping

    from autogpu.lease import Folder, Holder, Waiter
    from autogpu.overview import Overview
    from autogpu.policy import Resolved


@frozen
class Seen:
    """One look at the machine.

    Attributes:
        folder: Where this user's jobs coordinate; ``None`` if they can't.
        folder_problem: Why not, and what to do about it.
    """

    overview: Overview
    resolved: Resolved
    folder: Folder | None
    folder_problem: str


@frozen
class Host:
    """Who holds and who waits, by the lease folder.

    Attributes:
        folder: Where this user's jobs coordinate; ``None`` if they can't.
        problem: Why not, and what to do about it; empty if they can.
    """

    folder: Folder | None
    holders: tuple[Holder, ...]
    waiters: tuple[Waiter, ...]
    problem: str

    @property
    def pids_here(self) -> Mapping[str, int | None]:
        """By the name of a lease, its holder's pid where that means something here."""
        return {holder.name: holder.pid_here for holder in self.holders}


def host(environ: Mapping[str, str]) -> Host:
    """The lease folder as it is now."""
    try:
        folder = lease.find_folder(environ)
        return Host(folder, lease.holders(folder), lease.waiters(folder), "")
    except lease.LeaseUnavailable as error:
        return Host(None, (), (), f"{shown(error.what)}; {shown(error.remedy)}")


def look(environ: Mapping[str, str]) -> Seen:
    """Read all of it, once."""
    reading = probe.start(environ)
    resolved = resolve(environ)
    found = host(environ)
    seen = overview.overview(
        probe.finish(reading),
        found.holders,
        found.pids_here,
        found.waiters,
        resolved.policy,
        environ,
        own_uid=os.getuid(),
        now_s=time.time(),
        rank=ranks.local_rank(environ),
    )
    return Seen(seen, resolved, found.folder, found.problem)


def resolve(environ: Mapping[str, str], flags: Mapping[str, str] | None = None) -> Resolved:
    """The policy for a script in the working directory."""
    return policy.resolve(environ, script=None, working_directory=Path.cwd(), flags=flags or {})


def user_name(uid: int) -> str:
    """The name, or the number of one that is not known here."""
    try:
        return shown(pwd.getpwuid(uid).pw_name, 32)
    except KeyError:
        return f"uid {uid}"


def process_name(pid: int) -> tuple[str, str]:
    """Whose process that is and what it is called, both empty where ``/proc`` does not show it."""
    try:
        path = Path(f"/proc/{pid}")
        return user_name(path.stat().st_uid), shown((path / "comm").read_text().strip(), 32)
    except (OSError, UnicodeDecodeError):
        return "", ""
