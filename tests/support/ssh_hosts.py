"""Hosts that are reached over ssh: each a real ``sshd`` of this machine on a port of its own, for this user alone."""

from __future__ import annotations

import os
import pwd
import shlex
import shutil
import socket
import subprocess
from pathlib import Path

# Debian's is in no ordinary user's PATH.
SSHD = shutil.which("sshd", path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"]))
TIMEOUT_S = 60


def why_not():
    """What this machine lacks for it, or ``""``."""
    missing = [] if SSHD else ["sshd"]
    missing += [name for name in ("ssh", "ssh-keygen") if shutil.which(name) is None]
    return f"no {missing[0]} on this machine" if missing else ""


class SshHosts:
    """Hosts by name, and an ``ssh`` that knows them alone, for as long as the ``with`` lasts.

    Attributes:
        bin: A folder for PATH, with that ``ssh``.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._config = folder / "ssh_config"
        self._pids = folder / "pids"
        self._servers: list[subprocess.Popen] = []
        self.bin = folder / "bin"

    def __enter__(self) -> SshHosts:
        self._config.touch()
        self._pids.touch()
        self._make_key("client")
        self.bin.mkdir()
        ssh = shlex.quote(shutil.which("ssh"))
        program = f'#!/bin/sh\necho $$ >> {self._pids}\nexec {ssh} -F {self._config} "$@"\n'
        (self.bin / "ssh").write_text(program)
        (self.bin / "ssh").chmod(0o755)
        if os.geteuid() == 0:
            # Where a start script of the system would have made it.
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        return self

    def __exit__(self, *_: object) -> None:
        for server in self._servers:
            server.terminate()
            server.wait(TIMEOUT_S)
            server.stderr.close()

    def add(self, name, environ=(), forced="none", client=""):
        """Start a host.

        Args:
            environ: What every command there finds in its environment.
            forced: What runs there, whatever is asked for.
            client: More lines of the client's configuration.
        """
        self._make_key(name)
        variables = " ".join(f'"{key}={value}"' for key, value in dict(environ).items())
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            port = taken.getsockname()[1]
        config = self._folder / f"{name}.sshd_config"
        lines = [
            f"ListenAddress 127.0.0.1:{port}",
            f"HostKey {self._folder / name}",
            f"AuthorizedKeysFile {self._folder / 'client.pub'}",
            "StrictModes no",
            "UsePAM no",
            "PidFile none",
            "PasswordAuthentication no",
            "KbdInteractiveAuthentication no",
            "PermitRootLogin prohibit-password",
            f"ForceCommand {forced}",
            f"SetEnv {variables}" if variables else "",
        ]
        config.write_text("\n".join(lines) + "\n")
        server = subprocess.Popen([SSHD, "-D", "-e", "-f", str(config)], stderr=subprocess.PIPE, text=True)
        self._servers.append(server)
        said = [server.stderr.readline()]
        while "Server listening" not in said[-1]:
            assert said[-1], f"sshd has ended: {said}"
            said.append(server.stderr.readline())
        self.know(name, port, client)

    def know(self, name, port, client=""):
        """Let the client know a host of that name at a port of this machine, whatever is there."""
        known = self._folder / f"{name}.known"
        key = self._folder / f"{name}.pub"
        known.write_text(f"{name} {key.read_text()}" if key.exists() else "")
        lines = [
            f"Host {name}",
            # Of several values ssh takes the first.
            client,
            "HostName 127.0.0.1",
            f"Port {port}",
            f"User {pwd.getpwuid(os.getuid()).pw_name}",
            f"HostKeyAlias {name}",
            f"UserKnownHostsFile {known}",
            "StrictHostKeyChecking yes",
            *([] if "IdentityFile" in client else [f"IdentityFile {self._folder / 'client'}"]),
            "IdentitiesOnly yes",
            "IdentityAgent none",
        ]
        with self._config.open("a") as config:
            config.write("\n  ".join(lines) + "\n")

    def clients_left(self):
        """The pids of each ``ssh`` that has not ended."""
        return [int(pid) for pid in self._pids.read_text().split() if Path(f"/proc/{pid}").exists()]

    def _make_key(self, name):
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self._folder / name)]
        subprocess.run(command, stdin=subprocess.DEVNULL, timeout=TIMEOUT_S, check=True)
