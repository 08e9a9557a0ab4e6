"""A host prepared and checked: one below ``tmp_path``, and once the real machine."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from autogpu.cli import host_setup as hosts
from autogpu.lease import Lease, acquire_lease, find_folder
from tests.lease.conftest import ALICE
from tests.support import host_image
from tests.support.environments import ROOT
from tests.support.host_image import problems, tree

image, paths = host_image.image, host_image.paths


def test_all_users_can_use_it_whatever_the_umask(image: Path, paths) -> None:
    before = os.umask(0o077)
    try:
        host_image.setup(image)
    finally:
        os.umask(before)
    made = (paths.folder, paths.tmpfiles, paths.policy.parent, paths.policy)
    modes = [stat.S_IMODE(path.stat().st_mode) for path in made]
    assert [oct(mode) for mode in modes] == ["0o1777", "0o644", "0o755", "0o644"]
    assert find_folder({}, host=paths.folder).origin == "host"
    assert problems(image) == {}
    marker, *lines = paths.tmpfiles.read_text(encoding="ascii").splitlines()
    assert marker.startswith("# `autogpu host-setup` wrote it.")
    assert lines == ["d /run/autogpu 1777 root root -"]


def test_twice_changes_nothing(image: Path) -> None:
    assert host_image.setup(image)
    before = tree(image)
    assert host_image.setup(image) == []
    assert tree(image) == before


# Where systemd is missing, and where it complains


@pytest.mark.parametrize("missing", ["usr/bin", "run/systemd"], ids=["not-installed", "not-running"])
def test_without_systemd_the_line_to_run_at_boot_does_the_same(image: Path, paths, missing: str) -> None:
    shutil.rmtree(str(image / missing))
    assert host_image.setup(image) == [f"made {paths.folder}", f"wrote {paths.policy}"]
    boot = host_image.host(image).parts()[0]
    assert not boot.is_required
    assert boot.problem == "has no effect: nothing on this system reads tmpfiles.d at boot"
    assert "/etc/rc.local" in boot.consequence
    assert boot.consequence.endswith(f"\n    {hosts.BOOT_LINE}"), "it stands alone, to be copied"

    expected = paths.folder.stat().st_mode
    shutil.rmtree(str(paths.folder))
    line = hosts.BOOT_LINE.replace("/run/autogpu", str(paths.folder))
    subprocess.run(["sh", "-c", line], timeout=30, check=True)
    assert paths.folder.stat().st_mode == expected
    assert set(problems(image)) == {paths.tmpfiles}


@pytest.mark.parametrize(
    ("text", "is_said"),
    [
        ('test "$*" = "--create {0.tmpfiles}" && mkdir -m 700 {0.folder} && chmod 1777 {0.folder}', False),
        ("echo Bad line >&2; exit 65", True),
        ("exit 1", True),
        ("#!/no/such/program", True),
    ],
    ids=["works", "complains", "silent", "can-not-be-run"],
)
def test_the_folder_is_complete_whatever_the_program_does(image: Path, paths, text: str, is_said: bool) -> None:
    program = image / "usr/bin/systemd-tmpfiles"
    program.write_text(text if text.startswith("#!") else f"#!/bin/sh\n{text.format(paths)}\n")
    said = f", which would be missing after the next boot: `{program} --create {paths.tmpfiles}` did not work"
    assert f"made {paths.folder}{said if is_said else ''}" in host_image.setup(image)
    assert problems(image) == {}


# The real machine


@pytest.fixture
def real_places():
    paths = hosts.Host()
    if os.geteuid() != 0:
        pytest.skip("only root can prepare the host")
    written = (paths.folder, paths.tmpfiles, paths.policy.parent)
    taken = [str(path) for path in written if os.path.lexists(str(path))]
    if taken:
        pytest.skip(f"{taken[0]} exists")
    folder_was_there = paths.tmpfiles.parent.exists()
    yield paths
    for path in written:
        if path.is_dir():
            shutil.rmtree(str(path))
        elif os.path.lexists(str(path)):
            path.unlink()
    if not folder_was_there and paths.tmpfiles.parent.exists():
        paths.tmpfiles.parent.rmdir()


@pytest.mark.slow
def test_a_real_host(real_places: hosts.Host) -> None:
    def host_setup(*options: str):
        # Not a test's AUTOGPU_LEASE_DIR: jobs find the folder by themselves.
        environ = {name: value for name, value in os.environ.items() if not name.startswith("AUTOGPU")}
        command = [sys.executable, "-m", "autogpu", "host-setup", *options]
        return subprocess.run(
            command, env=environ, cwd=str(ROOT), capture_output=True, text=True, timeout=60, check=False
        )

    assert host_setup("--check").returncode == 1
    made = host_setup()
    assert (made.returncode, made.stderr) == (0, "")
    assert "did not work" not in made.stdout
    assert host_setup("--check").returncode == 0
    status = real_places.folder.stat()
    assert (status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode)) == (0, 0, 0o1777)

    # A job of an ordinary user, which finds the folder by itself.
    child = os.fork()
    if child == 0:
        try:
            os.setgid(ALICE)
            os.setuid(ALICE)
            folder = find_folder({})
            lease = acquire_lease(Lease(folder, "train.py"), lambda *_: {"GPU-0": 1})
            os._exit(0 if (folder.origin, (folder.path / lease.name).exists()) == ("host", True) else 2)
        finally:
            os._exit(3)
    assert os.waitpid(child, 0)[1] == 0
