"""``autogpu host-setup``: what root does once per host, so that all its users coordinate.

One lease folder that root owns, made anew at every boot, and a system policy.
"""

from __future__ import annotations

import os
import shlex
import stat
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Sequence

import click

from autogpu.atomic_file import write_file
from autogpu.errors import InstallError
from autogpu.lease import find_folder
from autogpu.lease.folder import FALLBACK_FOLDER, HOST_FOLDER
from autogpu.policy import KEYS, SYSTEM_FILE, problems_of, templates
from autogpu.reporting.text import sudo, user_name
from autogpu.variables import LEASE_DIR

# Not by PATH: this runs as root, and there PATH may still be a user's.
_PROGRAMS = ("usr/bin/systemd-tmpfiles", "bin/systemd-tmpfiles")

# Show that an init is running which reads tmpfiles.d at boot. Source: sd_booted(3), and Gentoo's OpenRC.
_INITS = ("run/systemd/system", "run/openrc")

# For /etc/rc.local and its like, where nothing reads tmpfiles.d. The same result, except for what is there.
BOOT_LINE = f"install -d -m 1777 {HOST_FOLDER}"

TMPFILES = b"""\
# `autogpu host-setup` wrote it. Whatever else stands here is yours, and stays.
d %s 1777 root root -
""" % bytes(HOST_FOLDER)
_POLICY_HEAD = b"""\
# The policy of this host, below that of every user and project. To set a key, remove the # from its line and change
# the value. What an administrator mostly wants: limits.per_user, how many GPUs one user may lease at a time;
# select.exclude, GPUs that are never used, such as one that drives a display; locked, what no other layer may change:
# without it every value here is only a default. `autogpu config` shows the values in use and where they come from.
"""

_DONE = {"write": "wrote", "make": "made", "repair": "repaired"}

_AT_BOOT = f"{HOST_FOLDER.parent} is emptied at boot, and then jobs coordinate in {FALLBACK_FOLDER} again."
_WITHOUT_FOLDER = (
    f"Jobs coordinate in {FALLBACK_FOLDER}, which trusts its first user, who owns it and may remove the leases of "
    "others; does not reach into containers, nor into services with a private /tmp and /var/tmp; does not survive a "
    "cleaner of /var/tmp."
)


def policy_text() -> bytes:
    """The proposed system policy: every key with its default behind a ``#``, so that by itself it sets nothing."""
    return _POLICY_HEAD + "".join(templates.listing(KEYS, "#")).encode("ascii")


class Part(NamedTuple):
    """One of the things that host-setup cares for; ``action`` is "refuse" where the path is not ours to change."""

    path: Path
    problem: str = ""
    consequence: str = ""
    action: str = ""
    required: bool = True


class Host:
    """A Linux system below ``root``, which is ``/`` or the top of an image; raises InstallError if it is none."""

    def __init__(self, root: Path = Path("/")) -> None:
        self.root = root.resolve()
        self.is_running = self.root == Path(self.root.anchor)
        self.program = next((path for path in map(self.root.joinpath, _PROGRAMS) if path.is_file()), None)
        paths = (Path("/etc/tmpfiles.d/autogpu.conf"), HOST_FOLDER, SYSTEM_FILE)
        self.tmpfiles, self.folder, self.policy = (self.root / path.relative_to(path.anchor) for path in paths)
        for folder in (self.root / "run", self.root / "etc", self.tmpfiles.parent, self.policy.parent):
            # An absolute link in the tree of an image means the image's, and would lead to this machine's.
            if self.root not in (folder.resolve(), *folder.resolve().parents):
                what = f"{folder} leads out of {self.root}, to {folder.resolve()}"
                raise InstallError(what, remedy="make it a folder, not a link")
            if folder.parent == self.root and not folder.is_dir():
                what = f"{self.root} is not the root of a Linux system: it has no {folder.name} folder"
                raise InstallError(what, remedy=f"name an image by --root; here jobs coordinate in {FALLBACK_FOLDER}")

    def command(self) -> str:
        """The full command line for a shell: sudo knows neither this environment nor its PATH."""
        words = [sys.executable, "-m", "autogpu", "host-setup"]
        words += [] if self.is_running else ["--root", str(self.root)]
        return (sudo() if self.is_running or os.geteuid() == 0 else "") + " ".join(map(shlex.quote, words))

    @property
    def folder_mode(self) -> int:
        """For all users, but where the administrator wrote the tmpfiles.d file, who may want it for one group only."""
        # Not read where it is a pipe, or a link to /dev/null, which masks it.
        is_read = self.tmpfiles.is_file() and os.access(str(self.tmpfiles), os.R_OK)
        is_ours = is_read and self.tmpfiles.read_bytes() == TMPFILES
        return 0o041000 if os.path.lexists(str(self.tmpfiles)) and not is_ours else 0o041777

    def parts(self) -> tuple[Part, Part, Part]:
        """The file that makes the lease folder at boot, that folder, and the policy."""
        return (self._boot(), self._folder(), self._policy())

    def _boot(self) -> Part:
        is_missing = not os.path.lexists(str(self.tmpfiles))
        problem, action = "does not exist" if is_missing else "", "write" if is_missing and self.program else ""
        if self.program and (not self.is_running or any((self.root / init).is_dir() for init in _INITS)):
            return Part(self.tmpfiles, problem, problem and _AT_BOOT, action)
        problem = f"{problem or 'has no effect'}: nothing on this system reads tmpfiles.d at boot"
        consequence = f"{_AT_BOOT} Have this line run at boot, for example by /etc/rc.local:\n    {BOOT_LINE}"
        return Part(self.tmpfiles, problem, consequence, action, required=False)

    def _folder(self) -> Part:
        """It belongs to root, or in an image to its maker, and all users can use it."""
        path, mode = self.folder, self.folder_mode
        if not os.path.lexists(str(path)):
            return Part(path, "does not exist", _WITHOUT_FOLDER, "make")
        status = path.lstat()
        is_owned = status.st_uid == 0 or (not self.is_running and status.st_uid == os.geteuid())
        is_ours = is_owned and stat.S_IFMT(status.st_mode) == stat.S_IFMT(mode)
        if is_ours and status.st_mode & mode == mode:
            return Part(path)
        problem = f"is {stat.filemode(status.st_mode)} of {user_name(status.st_uid)}, not {stat.filemode(mode)} of root"
        unusable = "Jobs can't rely on it, and they use no other as long as it is there."
        return Part(path, problem, unusable, "repair" if is_ours else "refuse")

    def _policy(self) -> Part:
        if not os.path.lexists(str(self.policy)):  # which is a choice
            nothing = "The defaults are used, and there is no cap on the GPUs of one user."
            return Part(self.policy, "does not exist", nothing, "write", required=False)
        mistakes = "\n  ".join(str(problem) for problem in problems_of(self.policy, os.environ, is_system=True))
        return Part(self.policy, "is not in force as it is written" if mistakes else "", mistakes)


def setup(host: Host) -> list[Part]:
    """Write, make and repair what is not in place; returns that, with what is to be known of it as its consequence.

    An InstallError says that it may not, and has changed nothing.
    """
    if host.is_running and os.geteuid() != 0:
        raise InstallError("host-setup writes below /etc and /run, which only root may", remedy=host.command())
    boot, folder, policy = host.parts()
    if folder.action == "refuse":
        raise InstallError(f"{folder.path} {folder.problem}", remedy=f"move it away, and run {host.command()}")
    if boot.action:
        _write(boot.path, TMPFILES)
    why = _make_folder(host) if folder.action else ""
    if policy.action:
        _write(policy.path, policy_text())
    return [part._replace(consequence=why if part is folder else "") for part in (boot, folder, policy) if part.action]


def _write(path: Path, content: bytes) -> None:
    if not path.parent.is_dir():
        path.parent.mkdir()
        path.parent.chmod(0o755)  # under sudo the umask may be strict
    write_file(path, content, 0o644)


def _make_folder(host: Host) -> str:
    """Have systemd-tmpfiles make the folder, labelled for SELinux, and do by hand what it left."""
    why = ""
    if host.program and host.is_running:
        command = [str(host.program), "--create", str(host.tmpfiles)]
        why = f"would be missing after the next boot: `{' '.join(command)}` did not work"
        with suppress(OSError, subprocess.SubprocessError):
            subprocess.run(command, stdin=subprocess.DEVNULL, timeout=60, check=True)
            why = ""
    if not host.folder.exists():
        # The code that makes it for a user who names it makes it complete before it is seen.
        find_folder({LEASE_DIR: str(host.folder)})
    folder = host.parts()[1]
    if folder.action:
        folder.path.chmod(stat.S_IMODE(folder.path.stat().st_mode | host.folder_mode))
    return why


@click.command(
    "host-setup",
    epilog="""\b
Examples:
  sudo $(command -v autogpu) host-setup
  autogpu host-setup --check""",
)
@click.option(
    "--check",
    "is_check",
    is_flag=True,
    help="Change nothing, which needs no root; exit status 0 if all is in place, else 1.",
)
@click.option("--print", "is_print", is_flag=True, help="Change nothing; print what it would write and run.")
@click.option("--root", type=click.Path(path_type=Path), default="/", metavar="DIR", help="The top of an image.")
def host_setup(is_check: bool, is_print: bool, root: Path) -> int:
    """Give all users of this host one folder to coordinate in. For its administrator.

    Writes a file for tmpfiles.d, from which /run/autogpu is made at every boot, makes that folder now, and
    proposes a policy for the host in /etc/autogpu/autogpu.toml, in which nothing is set. Running it twice
    changes nothing. Jobs that are running are not disturbed.
    """
    if is_check and is_print:
        raise click.UsageError("--check and --print exclude each other")
    host = Host(root)
    if is_print:
        for path, content in ((host.tmpfiles, TMPFILES), (host.policy, policy_text())):
            click.echo(f"# {path}\n{content.decode()}")
        click.echo(f"# then run: systemd-tmpfiles --create {host.tmpfiles}")
        return 0
    done = [] if is_check else setup(host)
    parts = host.parts()
    for part in done:
        click.echo(f"{_DONE[part.action]} {part.path}{part.consequence and f', which {part.consequence}'}")
    click.echo("\n".join(_state(host, parts, is_check)))
    return int(is_check and any(part.problem and part.required for part in parts))


def _state(host: Host, parts: Sequence[Part], is_check: bool) -> list[str]:
    lines = []
    for part in parts:
        lines += [f"{part.path} {part.problem or 'is in place'}."] if part.problem or is_check else []
        lines += [f"  {part.consequence}"] if part.consequence else []
    if any(part.action and part.required for part in parts):
        return [*lines, f"To set it up: {host.command()}"]
    required = [part.required for part in parts if part.problem]
    if not any(required):
        lines.append("All that is required is in place." if required else "All is in place.")
    return [*lines, f"Containers take part with -v {HOST_FOLDER}:{HOST_FOLDER}"]
