"""Set a host up, and undo that: what is to be done follows from what was seen, and is judged anew where it is done."""

from __future__ import annotations

import os
import stat
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path

from autogpu.atomic_file import write_file
from autogpu.errors import InstallError
from autogpu.host_setup.host import Host, observe
from autogpu.host_setup.parts import boot_part, folder_part, mutex_part, parts
from autogpu.host_setup.texts import (
    FOLDER_MODE,
    MAKES_FOLDER,
    MARKER,
    MUTEX_MODE,
    is_as_written,
    policy_text,
    tmpfiles_text,
)
from autogpu.lease import Folder, LeaseUnavailable, find_folder, locks
from autogpu.lease.folder import MUTEX, make_mutex
from autogpu.lease.mutex import held
from autogpu.lease.snapshot import FolderReader
from autogpu.reporting.text import printable, user_name
from autogpu.variables import LEASE_DIR

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Iterable, Literal

    from autogpu.lease import Holder, Waiter

_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class Step:
    """One thing to do, or, in an undo, one not to do and why.

    Attributes:
        content: Of a file to write.
        why: To follow the path in a sentence, for what is left.
    """

    action: Literal["write", "make", "repair", "remove", "leave"]
    path: Path
    content: bytes = b""
    why: str = ""


@dataclass(frozen=True)
class Setup:
    """What a setup did, and how the host is now.

    Attributes:
        steps: Empty if everything was in place.
        notes: What went another way than planned, as sentences.
    """

    host: Host
    steps: tuple[Step, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Undone:
    """What an undo removed and what it left.

    Attributes:
        in_use: Why the lease folder is still there, of those in ``left``; ``""`` if it is gone or not ours.
    """

    host: Host
    removed: tuple[Path, ...]
    left: tuple[Step, ...]
    in_use: str


def setup(root: Path = Path("/")) -> Setup:
    """Make what is missing and repair what is ours. Twice is the same as once.

    Raises:
        InstallError: Not root, something foreign is in the way (nothing has been changed), or the system refused.
    """
    host = observe(root)
    steps = plan_setup(host)
    notes = apply(steps, host)
    host = observe(root)
    for part in parts(host):
        if part.is_required and part.problem:
            raise InstallError(f"{part.path} still {part.problem}", remedy=f"see {host.command('--check')}")
    return Setup(host, steps, notes)


def plan_setup(host: Host) -> tuple[Step, ...]:
    """What is to be done, in order; nothing where all is in place.

    Raises:
        InstallError: Only root may, or what lies there is not to be trusted or not ours.
    """
    _require_root(host)
    for part in (boot_part(host), folder_part(host), mutex_part(host)):
        if part.is_foreign:
            remedy = f"see whose it is, move it away, and run {host.command()}"
            raise InstallError(f"{part.path} {part.problem}", remedy=remedy)
    paths, steps = host.paths, []
    if host.has_tmpfiles and not host.has_own_tmpfiles and host.tmpfiles != tmpfiles_text():
        steps.append(Step("write", paths.tmpfiles, tmpfiles_text()))
    if folder_part(host).problem:
        steps.append(Step("repair" if host.folder else "make", paths.folder))
    if mutex_part(host).problem and host.folder:  # else it comes with the folder
        steps.append(Step("repair" if host.mutex else "make", paths.mutex))
    if host.policy is None or (is_as_written(host.policy) and host.policy != policy_text()):
        steps.append(Step("write", paths.policy, policy_text()))
    return tuple(steps)


def apply(steps: Iterable[Step], host: Host) -> tuple[str, ...]:
    """Do what :func:`plan_setup` lists; returns what went another way, as sentences.

    Raises:
        InstallError: The system refused; what was done before stands.
    """
    notes: list[str] = []
    has_run = False
    for step in steps:
        try:
            if step.action == "write":
                _put_in_place(step)
            # Also where the folder is right already: it shows that the file is understood.
            if step.path != host.paths.policy and not has_run:
                has_run = True
                notes += _create_by_program(host)
            if step.action != "write":
                _make_or_repair_folder(host)
        except (OSError, LeaseUnavailable) as error:
            what = error.strerror if isinstance(error, OSError) else str(error)
            raise InstallError(
                f"can't {step.action} {step.path}: {what}",
                remedy=f"fix that and run it again; {host.command('--undo')} takes back what was done",
            ) from error
    return tuple(notes)


def _put_in_place(step: Step) -> None:
    """Write a file that all can read: under sudo the umask may be strict."""
    folder = step.path.parent
    if not folder.is_dir():
        folder.mkdir()
        folder.chmod(0o755)
    write_file(step.path, step.content, 0o644)


def _create_by_program(host: Host) -> list[str]:
    """Have systemd-tmpfiles make the folder, with the labels of SELinux; returns what it complained of."""
    if host.program is None:
        return []
    command = [str(host.program), "--create", str(host.paths.tmpfiles)]
    pipe, both = subprocess.PIPE, subprocess.STDOUT
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=both, timeout=_TIMEOUT_S, check=False
        )
        if done.returncode == 0:
            return []
        lines = done.stdout.decode(errors="replace").strip().splitlines()
        complaint = lines[-1] if lines else f"exit status {done.returncode}"
    except subprocess.TimeoutExpired:
        complaint = f"no end after {_TIMEOUT_S:g} s"
    except OSError as error:
        complaint = error.strerror or str(error)
    what = f"`{' '.join(command)}` did not work ({printable(complaint)})"
    return [f"{what}; the folder was made without it, and at the next boot it would be missing."]


def _make_or_repair_folder(host: Host) -> None:
    """The folder and its mutex; no difference where they are right."""
    path = host.paths.folder
    if not os.path.lexists(str(path)):
        # The code that makes it for a user who names it makes it complete before it is seen.
        find_folder({LEASE_DIR: str(path)})
    descriptor = os.open(str(path), os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        if folder_part(replace(host, folder=status)).problem:
            mode = stat.S_IMODE(status.st_mode) | stat.S_ISVTX if host.has_own_tmpfiles else FOLDER_MODE
            os.fchmod(descriptor, mode)
        make_mutex(descriptor)
        mutex = os.open(MUTEX, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=descriptor)
    finally:
        os.close(descriptor)
    try:
        # Judged anew by what was opened: in an open folder a user can have put another there meanwhile.
        found = mutex_part(replace(host, folder=status, mutex=os.fstat(mutex)))
        if found.is_foreign:
            raise InstallError(f"{found.path} {found.problem}", remedy="remove it and run this again")
        # In place, not by a new one: jobs may be holding it or waiting for it.
        if found.problem:
            os.fchown(mutex, host.euid, -1)
            locks.show_to_all(mutex, MUTEX_MODE)
    finally:
        os.close(mutex)


def undo(root: Path = Path("/")) -> Undone:
    """Remove what setup wrote and is unchanged, and the folder if it is not in use.

    Raises:
        InstallError: Not root, or the system refused.
    """
    host = observe(root)
    steps, in_use = list(plan_undo(host)), ""
    for position, step in enumerate(steps):
        if step.action == "leave":
            continue
        if step.path != host.paths.folder:
            _remove_file(step.path, host)
            continue
        in_use = _remove_folder(step.path, host)
        if in_use:
            steps[position] = Step("leave", step.path, why=in_use)
    left = tuple(step for step in steps if step.action == "leave")
    return Undone(observe(root), tuple(step.path for step in steps if step not in left), left, in_use)


def plan_undo(host: Host) -> tuple[Step, ...]:
    """What is to be removed, in order, and what is left. Whether the folder is in use is seen when it is tried.

    Raises:
        InstallError: Only root may.
    """
    _require_root(host, "--undo")
    paths, foreign = host.paths, "was not written by autogpu"
    steps = [Step("remove", path) for path in host.leftovers]
    if host.has_own_tmpfiles:
        steps.append(Step("leave", paths.tmpfiles, why=foreign))
    elif host.tmpfiles is not None:
        steps.append(Step("remove", paths.tmpfiles))
    if host.policy is not None and is_as_written(host.policy):
        steps.append(Step("remove", paths.policy))
    elif host.policy is not None:
        why = "has been changed since autogpu wrote it" if MARKER in host.policy else foreign
        steps.append(Step("leave", paths.policy, why=why))
    folder = folder_part(host)
    if folder.is_foreign:
        steps.append(Step("leave", paths.folder, why=folder.problem))
    elif host.folder and host.has_own_tmpfiles and MAKES_FOLDER.search(host.tmpfiles or b""):
        steps.append(Step("leave", paths.folder, why=f"is what {paths.tmpfiles} asks for"))
    elif host.folder:
        steps.append(Step("remove", paths.folder))
    return tuple(steps)


def _remove_file(path: Path, host: Host) -> None:
    try:
        path.unlink()
    except OSError as error:
        remedy = f"fix that and run {host.command('--undo')} again"
        raise InstallError(f"can't remove {path}: {error.strerror}", remedy=remedy) from error
    if path == host.paths.policy:
        try:
            path.parent.rmdir()
        except OSError:
            return  # there is more in it, and that is not ours


def _remove_folder(path: Path, host: Host) -> str:
    """Remove the lease folder with all stale files; returns why that was not possible."""
    folder = Folder(path, "host", host.folder.st_uid if host.folder else 0)
    try:
        # Under the mutex, so that no job claims between looking and removing; one that waits for it finds no folder.
        with held(folder) as descriptor:
            leases = FolderReader().read(descriptor, remove_stale=True)
            users = [f"{_who(holder)} holds a lease" for holder in leases.holders]
            users += [f"{_who(waiter)} waits in the queue" for waiter in leases.waiters]
            if users:
                return "is in use: " + ", ".join(users)
            foreign = sorted(set(os.listdir(descriptor)) - {MUTEX})  # noqa: PTH208  (of the descriptor)
            if foreign:
                return f"has files in it that are not autogpu's, such as {foreign[0]!a}"
            os.unlink(MUTEX, dir_fd=descriptor)
            try:
                path.rmdir()
            except OSError as error:
                # Mounted from another place, or a job was faster; with a mutex that stays root's either way.
                make_mutex(descriptor)
                return f"can't be removed: {error.strerror}"
    except LeaseUnavailable as error:
        return f"can't be removed: {error.what}"
    return ""


def _who(process: Holder | Waiter) -> str:
    name = f"pid {process.pid_here}" if process.pid_here else "a process"
    return f"{name} ({user_name(process.uid)}{f', {process.script}' if process.script else ''})"


def _require_root(host: Host, *options: str) -> None:
    if host.paths.is_host and host.euid != 0:
        raise InstallError("host-setup writes below /etc and /run, which only root may", remedy=host.command(*options))
