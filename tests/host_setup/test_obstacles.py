"""What stands in the way of setup: files of others, wrong modes."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

import pytest

from autogpu.cli import host_setup as hosts
from autogpu.errors import InstallError
from tests.lease.conftest import ALICE, needs_root
from tests.support import host_image
from tests.support.host_image import lease_in, problems, tree

image, paths = host_image.image, host_image.paths


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda path: path.symlink_to("../elsewhere"), "is lrwxrwxrwx of "),
        (lambda path: path.touch(mode=0o644), "is -rw-r--r-- of "),
        pytest.param(
            lambda path: (path.mkdir(), path.chmod(0o1777), os.chown(str(path), ALICE, ALICE)),
            f"is drwxrwxrwt of uid {ALICE}, not drwxrwxrwt of root",
            marks=needs_root,
        ),
    ],
    ids=["link", "file", "another-users"],
)
def test_folder_that_is_not_ours_is_named_and_nothing_is_changed(image: Path, paths, make, said: str) -> None:
    make(paths.folder)
    before = tree(image)
    with pytest.raises(InstallError) as refused:
        host_image.setup(image)
    assert str(refused.value).startswith(f"{paths.folder} {said}")
    assert refused.value.remedy
    assert problems(image)["folder"].startswith(said)
    assert tree(image) == before


@pytest.mark.parametrize(("mode", "said"), [(0o755, "drwxr-xr-x"), (0o777, "drwxrwxrwx")], ids=["closed", "not-sticky"])
def test_folder_with_a_wrong_mode_is_repaired_in_place(image: Path, paths, mode: int, said: str) -> None:
    host_image.setup(image)
    lease = lease_in(paths.folder)
    before = paths.folder.stat()
    paths.folder.chmod(mode)
    assert problems(image)["folder"].startswith(f"is {said} of ")
    assert host_image.setup(image) == [("repair", paths.folder)]
    after = paths.folder.stat()
    assert (after.st_ino, after.st_uid, after.st_mode) == (before.st_ino, os.geteuid(), before.st_mode)
    assert (paths.folder / lease.name).exists(), "no job is disturbed"
    lease.release()


def test_administrators_own_tmpfiles_file_rules(image: Path, paths) -> None:
    paths.tmpfiles.write_text("# for the group of the lab\nd /run/autogpu 3770 root gpu -\n")
    paths.folder.mkdir()
    paths.folder.chmod(0o2770)
    host_image.setup(image)
    assert problems(image) == {}
    assert stat.S_IMODE(paths.folder.stat().st_mode) == 0o3770


@pytest.mark.timeout(20)
def test_nothing_waits_for_a_pipe_in_the_place_of_a_file(image: Path, paths) -> None:
    paths.policy.parent.mkdir()
    os.mkfifo(str(paths.policy))
    host_image.setup(image)
    assert paths.policy.is_fifo()


@pytest.mark.parametrize("name", ["etc/autogpu", "run"])
def test_link_that_leads_out_of_the_image_is_not_followed(image: Path, tmp_path: Path, name: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    if (image / name).exists():
        (image / name).rmdir()
    (image / name).symlink_to(outside)
    with pytest.raises(InstallError, match="leads out of"):
        host_image.setup(image)
    assert list(outside.iterdir()) == []


def test_folder_that_is_no_system_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InstallError, match="is not the root of a Linux system: it has no run folder"):
        hosts.Host(tmp_path)


def test_what_can_not_be_written_is_named(image: Path, paths) -> None:
    paths.policy.parent.touch()
    with pytest.raises(FileExistsError) as refused:
        host_image.setup(image)
    assert refused.value.filename == str(paths.policy.parent)


def test_only_root_may_change_the_host_and_is_told_the_full_command(monkeypatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(InstallError, match="only root may") as refused:
        hosts.setup(hosts.Host())
    assert refused.value.remedy == f"sudo {sys.executable} -m autogpu host-setup"


@pytest.mark.parametrize(("by_sudo", "begin"), [(True, f"sudo {sys.executable} "), (False, f"{sys.executable} ")])
def test_root_is_told_no_sudo_unless_that_is_how_one_is_root(monkeypatch, by_sudo: bool, begin: str) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.delenv("SUDO_USER", raising=False)
    if by_sudo:
        monkeypatch.setenv("SUDO_USER", "ann")
    assert hosts.Host().command() == f"{begin}-m autogpu host-setup"
