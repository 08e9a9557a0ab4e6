"""``autogpu host-setup``: set up a host once, as root, so that the jobs of all its users coordinate.

It makes a lease folder that root owns, now and at every boot, and a file for the system policy.
"""

from __future__ import annotations

import os
import shlex
import stat
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Iterator, Sequence

import click
from rich.console import Console

from autogpu.atomic_file import remove_leftovers, write_file
from autogpu.cli.explained import explained
from autogpu.errors import InstallError
from autogpu.frozen import Value
from autogpu.host import hook_folder
from autogpu.host import setup as all_pythons
from autogpu.host.model import HostProblem, SetupStopped
from autogpu.lease import LeaseUnavailable, find_folder
from autogpu.lease.folder import FALLBACK_FOLDER, HOST_FOLDER
from autogpu.policy import KEYS, SYSTEM_FILE, problems_of, templates
from autogpu.reporting.host_setup import RECIPES, change_line, folder_problem, omission, preview, stop
from autogpu.reporting.leases import lease_problem
from autogpu.reporting.mistakes import policy_problem
from autogpu.stderr import say
from autogpu.users import host_setup_command, sudo, user_name
from autogpu.variables import LEASE_DIR

# Paths relative to Host.root. host-setup runs as root, but a user may have set its PATH, so nothing is looked up there.
_PROGRAMS = ("usr/bin/systemd-tmpfiles", "bin/systemd-tmpfiles")

# The command to run at boot, for example by /etc/rc.local, if nothing reads tmpfiles.d.
BOOT_LINE = f"install -d -m 1777 {HOST_FOLDER}"

TMPFILES = b"""\
# `autogpu host-setup` wrote this file. If you change it, host-setup keeps your version.
d %s 1777 root root -
""" % bytes(HOST_FOLDER)
_POLICY_HEAD = b"""\
# The policy of this host. To set a key, remove the # from its line and change the value. Most administrators set three
# keys. limits.per_user: the number of GPUs that one user may lease at a time. select.exclude: GPUs that are never used,
# such as one that drives a display. locked: the keys that users and projects can't change; without it they can change
# every value. `autogpu config` shows the values in use and where they come from.
"""

_CHANGED = "it differs from the file that host-setup writes"
_AT_BOOT = f"{HOST_FOLDER.parent} is emptied at boot, and then jobs coordinate in {FALLBACK_FOLDER} again."
_WITHOUT_FOLDER = (
    f"Jobs coordinate in {FALLBACK_FOLDER}. Its first user owns it, and can remove the leases of others. Containers, "
    "and services with a private /tmp and /var/tmp, can't see it. A cleaner of /var/tmp may remove it."
)


def policy_text() -> bytes:
    """Return the proposed system policy. Each key stands in a comment with its default, so the file sets nothing."""
    return _POLICY_HEAD + "".join(templates.listing(KEYS, "#")).encode("ascii")


class Part(Value):
    """A file or folder that host-setup makes, and its problem. ``will_be_made`` is true if the next run makes it."""

    path: Path
    problem: str = ""
    consequence: str = ""
    will_be_made: bool = False
    is_required: bool = True


class Host:
    """The host to set up. Tests pass a folder as ``root``, and their own uid.

    Raises:
        InstallError: This is not a Linux system.
    """

    def __init__(self, root: Path = Path("/"), owner_uid: int = 0) -> None:
        self.root = root
        self.owner_uid = owner_uid
        programs = [path for path in map(root.joinpath, _PROGRAMS) if path.is_file()]
        # None if systemd-tmpfiles is missing, or if this host was not booted with systemd. Source: sd_booted(3).
        self.program = programs[0] if programs and (root / "run/systemd/system").is_dir() else None
        paths = (Path("/etc/tmpfiles.d/autogpu.conf"), HOST_FOLDER, SYSTEM_FILE)
        self.tmpfiles, self.folder, self.policy = (root / path.relative_to(path.anchor) for path in paths)
        if not self.folder.parent.is_dir():
            what = f"this is not a Linux system: {self.folder.parent} does not exist"
            raise InstallError(what, remedy=f"no set-up is needed: on this system jobs coordinate in {FALLBACK_FOLDER}")

    @property
    def proposed(self) -> dict[Path, bytes]:
        """Contents of the files that each run writes if they do not exist, keyed by path."""
        return {self.tmpfiles: TMPFILES, self.policy: policy_text()}

    def parts(self) -> list[Part]:
        """Return the tmpfiles.d file, the lease folder, the policy, and the hook folder if there is one."""
        return [self._boot(), self._folder(), self._policy(), *self._hook()]

    def _boot(self) -> Part:
        if self.program is None:
            problem = "has no effect: nothing on this system reads tmpfiles.d at boot"
            consequence = f"{_AT_BOOT} Run this line at boot, for example from /etc/rc.local:\n    {BOOT_LINE}"
            return Part(self.tmpfiles, problem, consequence, is_required=False)
        if not os.path.lexists(str(self.tmpfiles)):
            return Part(self.tmpfiles, "does not exist", _AT_BOOT, will_be_made=True)
        return Part(self.tmpfiles)

    def _folder(self) -> Part:
        if not os.path.lexists(str(self.folder)):
            return Part(self.folder, "does not exist", _WITHOUT_FOLDER, will_be_made=True)
        status = self.folder.lstat()
        # Ignore the other mode bits: the administrator decides which users may enter the folder.
        if status.st_uid == self.owner_uid and stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX:
            return Part(self.folder)
        found = f"{stat.filemode(status.st_mode)} and owned by {user_name(status.st_uid)}"
        problem = f"is {found}; it must be a sticky folder owned by root"
        return Part(self.folder, problem, "Jobs can't use this folder. As long as it exists, they use no other folder.")

    def _hook(self) -> list[Part]:
        """Return one part for the hook folder, or no part if the administrator has never used --all-pythons."""
        link = self.root / hook_folder.LINK.relative_to("/")
        if not all_pythons.is_set_up(self.root):
            return []
        problem = all_pythons.problem(self.root, self.owner_uid)
        if problem is None:
            return [Part(link)]
        remedy = f"To rebuild it: {host_setup_command(sudo())} --all-pythons"
        return [Part(link, f"can't be used: {folder_problem(problem)}", remedy)]

    def _policy(self) -> Part:
        if not os.path.lexists(str(self.policy)):  # the administrator may want no policy
            nothing = "The defaults are used, and there is no cap on the GPUs of one user."
            return Part(self.policy, "does not exist", nothing, will_be_made=True, is_required=False)
        mistakes = [*map(policy_problem, problems_of(self.policy, os.environ, is_system=True))]
        for path, bit in ((self.policy.parent, stat.S_IXOTH), (self.policy, stat.S_IROTH)):
            with suppress(OSError):  # problems_of() has reported this error
                status = path.stat()
                # The administrator may let only one group read the file.
                is_closed = not status.st_mode & (bit | (bit << 3 if status.st_gid else 0))
                if is_closed or status.st_mode & stat.S_IWOTH:
                    wrong = "jobs of other users can't read it" if is_closed else "every user can change it"
                    mistakes.append(f"{path} is {stat.filemode(status.st_mode)}: {wrong}")
        return Part(self.policy, "does not take effect as written" if mistakes else "", "\n  ".join(mistakes))


def setup(host: Host) -> list[str]:
    """Make the missing files and the missing folder; return a line about each.

    Raises:
        InstallError: This process does not run as root, or the lease folder exists but has another owner or type, or
            is not sticky. Nothing was changed.
    """
    _need_root(host)
    folder = host.parts()[1]
    if folder.problem and not folder.will_be_made:
        remedy = f"run chown root and chmod 1777 on it, or move it away; then run {host_setup_command(sudo())}"
        raise InstallError(f"{folder.path} {folder.problem}", remedy=remedy)
    with hook_folder.changing(host.root):
        return _make_missing(host)


def _make_missing(host: Host) -> list[str]:
    boot, folder, policy, *_ = host.parts()
    done = []
    if boot.will_be_made:
        done.append(_write(boot.path, TMPFILES))
    if folder.will_be_made:
        done.append(f"made {folder.path}{_make_folder(host)}")
    if policy.will_be_made:
        done.append(_write(policy.path, policy_text()))
    return done


def _need_root(host: Host, options: Sequence[str] = (), named: Sequence[str] = ()) -> None:
    if os.geteuid() != host.owner_uid:
        what = "host-setup needs root, because it writes below /etc and /run"
        words = [*options, *(f"--python {shlex.quote(name)}" for name in named)]
        raise InstallError(what, remedy=" ".join([host_setup_command("sudo "), *words]))


def _write(path: Path, content: bytes) -> str:
    path.parent.mkdir(exist_ok=True)
    remove_leftovers(path)
    write_file(path, content, 0o644)
    return f"wrote {path}"


def _make_folder(host: Host) -> str:
    """Make the lease folder, by systemd-tmpfiles if possible, because that also sets the SELinux label.

    Return the end of a sentence: a warning if systemd-tmpfiles failed, else ``""``.
    """
    why = ""
    if host.program:
        create = [str(host.program), "--create", str(host.tmpfiles)]
        why = f", but the next boot will remove it, because `{' '.join(create)}` failed; run that command to see why"
        with suppress(OSError, subprocess.SubprocessError):
            subprocess.run(create, stdin=subprocess.DEVNULL, timeout=60, check=True)
            why = ""
    # find_folder() makes a missing AUTOGPU_LEASE_DIR. Other processes never see it half made.
    with explained(LeaseUnavailable, lease_problem):
        find_folder({LEASE_DIR: str(host.folder)})
    return why


@click.command(
    "host-setup",
    epilog="""\b
Examples:
  sudo $(command -v autogpu) host-setup
  sudo $(command -v autogpu) host-setup --all-pythons
  autogpu host-setup --all-pythons --print
  autogpu host-setup --check""",
)
@click.option(
    "--check",
    "is_check",
    is_flag=True,
    help="Report what is missing or wrong, and change nothing; works without root. The exit status is 0 if all "
    "required parts are in place, else 1.",
)
@click.option(
    "--print",
    "is_print",
    is_flag=True,
    help="Print the files that a run would write and the commands that it would run; change nothing.",
)
@click.option(
    "--all-pythons",
    "is_for_all",
    is_flag=True,
    help="Also make every Python of this host load autogpu; nothing is installed in its environments.",
)
@click.option(
    "--python",
    "named",
    multiple=True,
    metavar="PATH",
    help="With --all-pythons: also set up this base Python, which root runs once. The option can be repeated.",
)
@click.option(
    "--undo",
    "is_undo",
    is_flag=True,
    help="Remove the files that this command wrote. Files that you have changed are kept and listed.",
)
def host_setup(is_check: bool, is_print: bool, is_for_all: bool, named: tuple[str, ...], is_undo: bool) -> int:
    """Set up a folder in which the jobs of all users coordinate.

    Only the administrator of the host needs this command. It makes /run/autogpu, and writes a file for tmpfiles.d
    that makes it again at every boot. It also writes a policy file, /etc/autogpu/autogpu.toml, in which every key
    is a comment. A second run changes nothing. Running jobs are not disturbed.

    With --all-pythons it also builds /usr/local/lib/autogpu, puts that folder on the PYTHONPATH of all users, and
    adds a start-up file to the Pythons that it finds. Root and services of the system are left out. A user turns
    autogpu off by AUTOGPU=0, or by enabled = false in a policy file.
    """
    _refuse_together(is_check, is_print, is_undo, is_named=bool(named), is_for_all=is_for_all)
    with explained(SetupStopped, stop):
        host = Host()
        if is_print:
            lines = _preview_of_undo(host) if is_undo else _preview(host, named if is_for_all else None)
            click.echo("\n".join(lines))
            return 0
        if is_check:
            parts = host.parts()
            click.echo("\n".join(_state(parts, is_check=True)))
            return int(bool(_wanting(parts)))
        _need_root(host, [*(["--all-pythons"] if is_for_all else []), *(["--undo"] if is_undo else [])], named)
        done, failures = _undo(host) if is_undo else _set_up(host, named if is_for_all else None)
    click.echo("\n".join(done))
    for failure in failures:
        say(omission(failure))
    return int(bool(failures))


def _refuse_together(is_check: bool, is_print: bool, is_undo: bool, *, is_named: bool, is_for_all: bool) -> None:
    chosen = [name for name, is_on in (("--check", is_check), ("--print", is_print), ("--undo", is_undo)) if is_on]
    if len(chosen) > 1 and chosen != ["--print", "--undo"]:
        raise click.UsageError(f"{' and '.join(chosen)} can't be combined")
    if is_named and not is_for_all:
        raise click.UsageError("--python needs --all-pythons")


def _set_up(host: Host, named: tuple[str, ...] | None) -> tuple[list[str], Sequence[HostProblem]]:
    """Make the files and the folder of a host, and with ``--all-pythons`` let its Pythons load autogpu.

    Args:
        named: The Pythons that ``--python`` names; ``None`` without ``--all-pythons``.

    Returns:
        The lines to print, and a problem for each file that could not be changed.
    """
    lines = setup(host)
    if named is None:
        return [*lines, *_state(host.parts(), is_check=False)], ()
    with Console(stderr=True).status("looking for the Pythons of this host") as shown:
        done = all_pythons.set_up(host.root, named, host.owner_uid, lambda tag: shown.update(f"compiling for {tag}"))
    lines += [*map(change_line, done.changes), *map(omission, done.left_out)]
    return [*lines, *_state(host.parts(), is_check=False), *_recipes()], done.failures


def _preview(host: Host, named: tuple[str, ...] | None) -> Iterator[str]:
    """Yield the lines of ``--print``. For ``named`` see :func:`_set_up`."""
    missing = {part.path for part in host.parts() if part.will_be_made}
    for path, content in host.proposed.items():
        yield f"# {path}\n{content.decode()}" if path in missing else f"# {path} is not written"
    if missing - {host.policy}:
        yield f"# then run: systemd-tmpfiles --create {host.tmpfiles}"
    if named is not None:
        planned = all_pythons.plan(host.root, named, host.owner_uid)
        yield ""
        yield from preview(planned)
        yield from (f"# {omission(problem)}" for problem in planned.left_out)


def _preview_of_undo(host: Host) -> Iterator[str]:
    planned = all_pythons.plan_undo(host.root, host.owner_uid)
    lines = list(preview(planned))
    yield from lines or ["# autogpu has no lines in the files of this host"]
    yield from (f"# remove {path}" for path in hook_folder.all_of(planned.link))
    for path, content in host.proposed.items():
        if path.is_file():
            yield f"# remove {path}" if path.read_bytes() == content else f"# keep {path}: {_CHANGED}"


def _recipes() -> Iterator[str]:
    yield "The Pythons of all users load autogpu from their next login on. For these programs, set PYTHONPATH yourself:"
    for place, recipe in RECIPES.items():
        yield f"  {place:20}{recipe}"


def _undo(host: Host) -> tuple[list[str], Sequence[HostProblem]]:
    """Remove the files that host-setup wrote, but keep those that the administrator has changed.

    Returns a sentence about each change, and a problem for each file that could not be changed.
    """
    of_pythons = all_pythons.undo(host.root, host.owner_uid)
    done = [*map(change_line, of_pythons.changes)]
    for path, content in host.proposed.items():
        remove_leftovers(path)
        with suppress(FileNotFoundError):
            if path.read_bytes() != content:
                done.append(f"kept {path}: {_CHANGED}")
                continue
            path.unlink()
            done.append(f"removed {path}")
    with suppress(OSError):  # the folder does not exist or is not empty
        host.policy.parent.rmdir()
    if host.folder.exists():
        done.append(f"kept {host.folder} until the next boot: running jobs may use it")
    return done or ["There is nothing to undo."], of_pythons.failures


def _wanting(parts: Sequence[Part]) -> list[Part]:
    return [part for part in parts if part.problem and part.is_required]


def _state(parts: Sequence[Part], is_check: bool) -> Iterator[str]:
    for part in parts:
        if part.problem or is_check:
            yield f"{part.path} {part.problem or 'is in place'}."
        if part.consequence:
            yield f"  {part.consequence}"
    yield from _conclusion(parts)


def _conclusion(parts: Sequence[Part]) -> Iterator[str]:
    wanting = _wanting(parts)
    if any(part.will_be_made for part in wanting):
        yield f"To set it up: {host_setup_command(sudo())}"
        return
    boot, *_ = parts
    if not wanting and boot.problem:
        yield f"{HOST_FOLDER} exists until the next boot; nothing makes it again after that."
    elif not wanting:
        yield "All that is required is in place."
    yield f"To let a container take part, start it with -v {HOST_FOLDER}:{HOST_FOLDER}"
