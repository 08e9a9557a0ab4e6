"""A Linux system below ``tmp_path``, for host-setup to work on."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from autogpu.cli import host_setup as hosts


def tree(folder: Path) -> dict:
    """Every name below ``folder`` with its mode, time, and bytes or target."""
    found = {}
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        content = os.readlink(str(path)) if path.is_symlink() else path.read_bytes() if path.is_file() else None
        found[str(path.relative_to(folder))] = (status.st_mode, status.st_uid, status.st_mtime_ns, content)
    return found


def host(image: Path) -> hosts.Host:
    """The image as if it were the running system, and this user its root."""
    return hosts.Host(image, os.geteuid())


def problems(image: Path) -> dict:
    return {part.path: part.problem for part in host(image).parts() if part.problem}


def setup(image: Path) -> list:
    return hosts.setup(host(image))


# Fixtures. A file of tests takes those it needs by assignment: `image = host_image.image`.


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """A system on which systemd runs, and makes no folder."""
    made = tmp_path / "image"
    for name in ("run/systemd/system", "etc/tmpfiles.d", "usr/bin", "var/tmp"):
        (made / name).mkdir(parents=True)
    program = made / "usr/bin/systemd-tmpfiles"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    return made


@pytest.fixture
def paths(image: Path) -> SimpleNamespace:
    of = host(image)
    return SimpleNamespace(tmpfiles=of.tmpfiles, folder=of.folder, policy=of.policy)
