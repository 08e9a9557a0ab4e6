"""A system as an image holds it, below ``tmp_path``, for host-setup to work on."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from autogpu import host_setup as hosts
from autogpu.host_setup import HostPaths
from autogpu.lease import Folder, acquire_lease


def tree(folder: Path) -> dict:
    """Every name below ``folder`` with its mode, time, and bytes or target."""
    found = {}
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        content = os.readlink(str(path)) if path.is_symlink() else path.read_bytes() if path.is_file() else None
        found[str(path.relative_to(folder))] = (status.st_mode, status.st_uid, status.st_mtime_ns, content)
    return found


def names(folder: Path) -> dict:
    """The same without times, which a folder changes with what is put into it."""
    return {name: (mode, content) for name, (mode, _, _, content) in tree(folder).items()}


def lease_in(folder: Path, script: str = "train.py"):
    return acquire_lease(Folder(folder, "host", folder.stat().st_uid), lambda *_: {"GPU-0": 1}, script=script)


def problems(image: Path) -> dict:
    return {part.name: part.problem for part in hosts.parts(hosts.observe(image)) if part.problem}


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
def paths(image: Path) -> HostPaths:
    return HostPaths.below(image)
