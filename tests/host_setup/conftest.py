"""A Linux system below ``tmp_path`` that host-setup can change."""

import os

import pytest

from autogpu.cli import host_setup as hosts


class Image:
    """A system whose ``systemd-tmpfiles`` makes no folder. The user who runs the tests is its root."""

    def __init__(self, root):
        self.root = root
        for name in ("run/systemd/system", "etc/tmpfiles.d", "usr/bin", "var/tmp"):
            (root / name).mkdir(parents=True)
        self.program = root / "usr/bin/systemd-tmpfiles"
        self.program.write_text("#!/bin/sh\n")
        self.program.chmod(0o755)
        self.tmpfiles, self.folder, self.policy = self.host.tmpfiles, self.host.folder, self.host.policy

    @property
    def host(self):
        return hosts.Host(self.root, os.geteuid())

    def setup(self):
        return hosts.setup(self.host)

    def problems(self):
        return {part.path: part.problem for part in self.host.parts() if part.problem}

    def tree(self):
        """Return mode, owner, modification time and content (or link target) of each file, keyed by path."""
        found = {}
        for path in sorted(self.root.rglob("*")):
            status = path.lstat()
            content = os.readlink(str(path)) if path.is_symlink() else path.read_bytes() if path.is_file() else None
            found[path] = (status.st_mode, status.st_uid, status.st_mtime_ns, content)
        return found


@pytest.fixture
def image(tmp_path):
    return Image(tmp_path / "image")
