"""What stands in the way of setup: files of others, wrong modes."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from autogpu.cli import host_setup as hosts
from autogpu.errors import InstallError
from autogpu.reporting.text import host_setup_command, sudo
from tests.lease.conftest import ALICE, needs_root
from tests.support import host_image
from tests.support.host_image import problems, tree

image, paths = host_image.image, host_image.paths


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda path: path.symlink_to("../elsewhere"), "is lrwxrwxrwx of "),
        (lambda path: path.touch(mode=0o644), "is -rw-r--r-- of "),
        (lambda path: path.mkdir(mode=0o755), "is drwxr-xr-x of "),
        (lambda path: (path.mkdir(), path.chmod(0o777)), "is drwxrwxrwx of "),
        pytest.param(
            lambda path: (path.mkdir(), path.chmod(0o1777), os.chown(str(path), ALICE, ALICE)),
            f"is drwxrwxrwt of uid {ALICE}, not a sticky folder of root",
            marks=needs_root,
        ),
    ],
    ids=["link", "file", "closed", "not-sticky", "another-users"],
)
def test_folder_that_is_not_ours_is_named_and_nothing_is_changed(image: Path, paths, make, said: str) -> None:
    make(paths.folder)
    before = tree(image)
    with pytest.raises(InstallError) as refused:
        host_image.setup(image)
    assert str(refused.value).startswith(f"{paths.folder} {said}")
    assert refused.value.remedy.startswith("correct that or move it away, and run ")
    assert problems(image)[paths.folder].startswith(said)
    assert tree(image) == before


def test_administrators_own_tmpfiles_file_and_mode_stay(image: Path, paths) -> None:
    paths.tmpfiles.write_text("# for the group of the lab\nd /run/autogpu 3770 root gpu -\n")
    paths.folder.mkdir()
    paths.folder.chmod(0o3770)
    host_image.setup(image)
    assert problems(image) == {}
    assert stat.S_IMODE(paths.folder.stat().st_mode) == 0o3770


@pytest.mark.timeout(20)
def test_nothing_waits_for_a_pipe_in_the_place_of_a_file(image: Path, paths) -> None:
    paths.policy.parent.mkdir()
    os.mkfifo(str(paths.policy))
    host_image.setup(image)
    assert paths.policy.is_fifo()


def test_a_system_without_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InstallError, match="this is no Linux system: it has no folder"):
        hosts.Host(tmp_path)


def test_what_can_not_be_written_is_named(image: Path, paths) -> None:
    paths.policy.parent.touch()
    with pytest.raises(FileExistsError) as refused:
        host_image.setup(image)
    assert refused.value.filename == str(paths.policy.parent)


def test_only_root_may_change_the_host(monkeypatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(InstallError, match="only root may") as refused:
        hosts.setup(hosts.Host())
    assert refused.value.remedy == "sudo $(command -v autogpu) host-setup"


@pytest.mark.parametrize(("by_sudo", "begin"), [(True, "sudo $(command -v autogpu) "), (False, "autogpu ")])
def test_root_is_told_no_sudo_unless_that_is_how_one_is_root(monkeypatch, by_sudo: bool, begin: str) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.delenv("SUDO_USER", raising=False)
    if by_sudo:
        monkeypatch.setenv("SUDO_USER", "ann")
    assert host_setup_command(sudo()) == f"{begin}host-setup"
