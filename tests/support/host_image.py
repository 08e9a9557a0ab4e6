"""A system as an image holds it, below ``tmp_path``, for host-setup to work on."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from autogpu.cli import host_setup as hosts
from autogpu.lease import Folder, Lease, acquire_lease


def tree(folder: Path) -> dict:
    """Every name below ``folder`` with its mode, time, and bytes or target."""
    found = {}
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        content = os.readlink(str(path)) if path.is_symlink() else path.read_bytes() if path.is_file() else None
        found[str(path.relative_to(folder))] = (status.st_mode, status.st_uid, status.st_mtime_ns, content)
    return found


def lease_in(folder: Path, script: str = "train.py"):
    return acquire_lease(Lease(Folder(folder, "host", folder.stat().st_uid), script), lambda *_: {"GPU-0": 1})


def problems(image: Path) -> dict:
    named = zip(("boot", "folder", "policy"), hosts.Host(image).parts())
    return {name: part.problem for name, part in named if part.problem}


def setup(image: Path) -> list:
    """What was done, as (action, path)."""
    return [(part.action, part.path) for part in hosts.setup(hosts.Host(image))]


# Fixtures. A file of tests takes those it needs by assignment: `image = host_image.image`.


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """A system with systemd, as an image holds it."""
    made = tmp_path / "image"
    for name in ("run", "etc/tmpfiles.d", "usr/bin", "var/tmp"):
        (made / name).mkdir(parents=True)
    (made / "usr/bin/systemd-tmpfiles").touch()
    return made


@pytest.fixture
def paths(image: Path) -> SimpleNamespace:
    host = hosts.Host(image)
    return SimpleNamespace(tmpfiles=host.tmpfiles, folder=host.folder, policy=host.policy)
