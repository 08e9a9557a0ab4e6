"""Do on a host what was planned, one step at a time; what may have changed since is judged anew."""

from __future__ import annotations

import os
import stat
import subprocess
from dataclasses import replace
from pathlib import Path

from autogpu.errors import InstallError
from autogpu.host.condition import folder_problem, mutex_distrust, mutex_problem, user_name
from autogpu.host.model import FOLDER_MODE, MUTEX_MODE, Host, Step
from autogpu.lease import Folder, LeaseUnavailable, find_folder, locks
from autogpu.lease.folder import MUTEX, VARIABLE, make_mutex
from autogpu.lease.listing import living
from autogpu.lease.mutex import held
from autogpu.stderr import shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Iterable

    from autogpu.lease import Holder, Waiter

_TIMEOUT_S = 30.0


def apply(steps: Iterable[Step], host: Host) -> tuple[str, ...]:
    """Do what :func:`plan_setup` says; returns what went another way, as sentences.

    Raises:
        InstallError: The system refused; what was done before stands.
    """
    notes: list[str] = []
    has_run = False
    for step in steps:
        try:
            if step.action == "write":
                _write(step)
            # Also where the folder is right already: it shows that the file is understood.
            if step.path != host.places.policy and not has_run:
                has_run = True
                notes += _create_by_program(host)
            if step.action != "write":
                _settle_folder(host)
        except (OSError, LeaseUnavailable) as error:
            what = error.strerror if isinstance(error, OSError) else str(error)
            raise InstallError(
                f"can't {step.action} {step.path}: {what}",
                remedy=f"mend that and run it again; {host.command('--undo')} takes back what was done",
            ) from error
    return tuple(notes)


def remove_file(path: Path, host: Host) -> None:
    """Remove a file, and with the policy also its folder.

    Raises:
        InstallError: The system refused.
    """
    try:
        path.unlink()
    except OSError as error:
        raise InstallError(
            f"can't remove {path}: {error.strerror}", remedy=f"mend that and run {host.command('--undo')} again"
        ) from error
    if path == host.places.policy:
        try:
            path.parent.rmdir()
        except OSError:
            return  # there is more in it, and that is not ours


def remove_folder(path: Path, host: Host) -> str:
    """Remove the lease folder with all that the dead left in it; returns why that was not possible."""
    if host.folder is None:
        return ""
    folder = Folder(path, "host", host.folder.st_uid)
    try:
        # Under the mutex, so that nobody claims between looking and removing; who waits for it finds no folder.
        with held(folder) as descriptor:
            found = living(folder, descriptor, tidy=True)
            if found.holders or found.waiters:
                return "is in use: " + ", ".join(
                    [f"{_who(holder)} holds a lease" for holder in found.holders]
                    + [f"{_who(waiter)} waits in line" for waiter in found.waiters]
                )
            strangers = sorted(set(os.listdir(descriptor)) - {MUTEX})  # noqa: PTH208  (of the descriptor)
            if strangers:
                return f"has files in it that are not autogpu's, such as {strangers[0]!a}"
            os.unlink(MUTEX, dir_fd=descriptor)
            try:
                path.rmdir()
            except OSError as error:
                # Mounted from another place, or somebody was faster; with a mutex that stays root's either way.
                make_mutex(descriptor)
                return f"can't be removed: {error.strerror}"
    except LeaseUnavailable as error:
        return f"can't be removed: {error.what}"
    except OSError as error:
        return f"can't be removed: {error.strerror}"
    return ""


def _create_by_program(host: Host) -> tuple[str, ...]:
    """Have systemd-tmpfiles make the folder, with the labels of SELinux; returns what it complained of."""
    if host.program is None:
        return ()
    command = [str(host.program), "--create", str(host.places.tmpfiles)]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        complaint = f"no end after {_TIMEOUT_S:g} s"
    except OSError as error:
        complaint = error.strerror or str(error)
    else:
        if done.returncode == 0:
            return ()
        lines = done.stdout.decode(errors="replace").strip().splitlines()
        complaint = lines[-1] if lines else f"exit status {done.returncode}"
    what = f"`{' '.join(command)}` did not work ({shown(complaint)})"
    return (f"{what}; the folder was made without it, and at the next boot it would be missing.",)


def _settle_folder(host: Host) -> None:
    """Make or repair the folder and its mutex; no difference where they are right."""
    path = host.places.folder
    if not os.path.lexists(str(path)):
        # The code that makes it for a user who names it makes it complete before it is seen.
        find_folder({VARIABLE: str(path)})
    descriptor = os.open(str(path), os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        if folder_problem(_with(host, folder=status)):
            mode = stat.S_IMODE(status.st_mode) | stat.S_ISVTX if host.has_own_tmpfiles else FOLDER_MODE
            os.fchmod(descriptor, mode)
        make_mutex(descriptor)
        _settle_mutex(descriptor, host)
    finally:
        os.close(descriptor)


def _settle_mutex(folder: int, host: Host) -> None:
    mutex = os.open(MUTEX, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    try:
        # Judged anew by what was opened: in an open folder a user can have put another there meanwhile.
        found = _with(host, mutex=os.fstat(mutex))
        if mutex_distrust(found):
            raise InstallError(f"{host.places.mutex} {mutex_distrust(found)}", remedy="remove it and run this again")
        # In place, not by a new one: jobs may be holding it or waiting for it.
        if mutex_problem(found):
            os.fchown(mutex, host.euid, -1)
            locks.show_to_all(mutex, MUTEX_MODE)
    finally:
        os.close(mutex)


def _write(step: Step) -> None:
    """Put a file in place in one step, readable for all: under sudo the umask may be strict."""
    folder = step.path.parent
    if not folder.is_dir():
        folder.mkdir()
        folder.chmod(0o755)
    temporary = step.path.with_name(f".{step.path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as stream:
            stream.write(step.content)
            stream.flush()
            os.fchmod(stream.fileno(), 0o644)
            os.fsync(stream.fileno())
        temporary.rename(step.path)
    except BaseException:
        if temporary.exists():
            temporary.unlink()
        raise


def _with(host: Host, **found: os.stat_result) -> Host:
    return replace(host, **found)  # type: ignore[arg-type]


def _who(process: Holder | Waiter) -> str:
    name = f"pid {process.pid_here}" if process.pid_here else "a process"
    script = f", {process.script}" if process.script else ""
    return f"{name} ({user_name(process.uid)}{script})"
