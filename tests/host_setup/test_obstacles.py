"""What stands in the way of setup, and what of undo: files of others, wrong modes, folders in use."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from autogpu import host_setup as hosts
from autogpu.errors import InstallError
from autogpu.host_setup import HostPaths, Step
from autogpu.lease import locks
from tests.lease.conftest import ALICE, needs_root
from tests.support import host_image
from tests.support.host_image import lease_in, names, problems, tree

image, paths = host_image.image, host_image.paths


@pytest.mark.parametrize(
    ("place", "make", "said"),
    [
        pytest.param("folder", lambda path: path.symlink_to("../elsewhere"), "is a symbolic link", id="link"),
        pytest.param("folder", lambda path: path.touch(), "is not a folder", id="file"),
        pytest.param(
            "folder",
            lambda path: (path.mkdir(), path.chmod(0o1777), os.chown(str(path), ALICE, ALICE)),
            f"belongs to uid {ALICE}",
            id="another-users",
            marks=needs_root,
        ),
        pytest.param("mutex", lambda path: path.symlink_to("x"), "is not a plain file", id="mutex-link"),
        pytest.param("mutex", lambda path: os.mkfifo(str(path)), "is not a plain file", id="mutex-fifo"),
        pytest.param("mutex", lambda path: path.mkdir(), "is not a plain file", id="mutex-folder"),
        pytest.param(
            "mutex",
            lambda path: os.link(str(path.parents[2] / "secret"), str(path)),
            "is not a plain file",
            id="mutex-hard-link",
        ),
        pytest.param("tmpfiles", lambda path: path.write_text("# mine\n"), "is not autogpu's", id="tmpfiles"),
        pytest.param("tmpfiles", lambda path: path.symlink_to("/dev/null"), "is not autogpu's", id="tmpfiles-masked"),
    ],
)
def test_what_is_not_ours_is_named_and_nothing_is_changed(
    image: Path, paths: HostPaths, place: str, make, said: str
) -> None:
    (image / "secret").touch(mode=0o600)
    if place == "mutex":
        paths.folder.mkdir()
        paths.folder.chmod(0o1777)
    make(getattr(paths, place))
    before = tree(image)
    with pytest.raises(InstallError) as refused:
        hosts.setup(image)
    assert str(refused.value).startswith(f"{getattr(paths, place)} {said}")
    assert refused.value.remedy
    assert said in "".join(problems(image).values())
    assert tree(image) == before
    if place != "mutex":
        assert hosts.undo(image).removed == ()
        assert tree(image) == before


@pytest.mark.parametrize(
    ("place", "damage", "said"),
    [
        ("folder", lambda path: path.chmod(0o755), "is closed to some users"),
        ("folder", lambda path: path.chmod(0o777), "is not sticky, so users could remove each other's leases"),
        ("mutex", lambda path: path.chmod(0o600), ""),
        pytest.param("mutex", lambda path: os.chown(str(path), ALICE, ALICE), "", marks=needs_root),
    ],
    ids=["folder-closed", "folder-not-sticky", "mutex-closed", "mutex-of-another"],
)
def test_what_has_a_wrong_owner_or_mode_is_repaired_in_place(
    image: Path, paths: HostPaths, place: str, damage, said: str
) -> None:
    hosts.setup(image)
    lease = lease_in(paths.folder)
    path = getattr(paths, place)
    before = path.stat()
    damage(path)
    assert list(problems(image)) == [place]
    assert said in ("", problems(image)[place])
    assert hosts.setup(image).steps == (Step("repair", path),)
    after = path.stat()
    # Of a file the sticky bit does not matter here.
    assert (after.st_ino, after.st_uid, after.st_mode & 0o777) == (before.st_ino, os.geteuid(), before.st_mode & 0o777)
    assert place == "mutex" or after.st_mode & stat.S_ISVTX
    assert lease.is_alive, "no job is disturbed"
    lease.release()


def test_what_is_missing_or_outdated_is_made_anew(image: Path, paths: HostPaths) -> None:
    hosts.setup(image)
    paths.mutex.unlink()
    assert hosts.setup(image).steps == (Step("make", paths.mutex),)
    paths.tmpfiles.write_bytes(b"# autogpu host file, version 0\nd /run/autogpu 0700 root root 1d\n")
    assert hosts.setup(image).steps == (Step("write", paths.tmpfiles, hosts.tmpfiles_text()),)
    assert problems(image) == {}


def test_administrators_own_tmpfiles_file_rules(image: Path, paths: HostPaths) -> None:
    paths.tmpfiles.write_text("# for the group of the lab\nd /run/autogpu 3770 root gpu -\n")
    paths.folder.mkdir()
    paths.folder.chmod(0o2770)
    hosts.setup(image)
    assert problems(image) == {}
    assert stat.S_IMODE(paths.folder.stat().st_mode) == 0o3770
    done = hosts.undo(image)
    assert {step.path for step in done.left} == {paths.tmpfiles, paths.folder}
    assert done.removed == (paths.policy,)


def test_links_that_an_administrator_keeps_elsewhere_stay(image: Path, paths: HostPaths, tmp_path: Path) -> None:
    paths.policy.parent.mkdir()
    for path, text in ((paths.tmpfiles, hosts.tmpfiles_text()), (paths.policy, hosts.policy_text())):
        (tmp_path / path.name).write_bytes(text)
        path.symlink_to(tmp_path / path.name)
    hosts.setup(image)
    assert problems(image) == {}
    hosts.undo(image)
    assert paths.tmpfiles.is_symlink()
    assert paths.policy.is_symlink()


@pytest.mark.timeout(20)
def test_nothing_waits_for_a_pipe_in_the_place_of_a_file(image: Path, paths: HostPaths) -> None:
    paths.policy.parent.mkdir()
    os.mkfifo(str(paths.policy))
    hosts.setup(image)
    assert paths.policy.is_fifo()


@pytest.mark.parametrize("name", ["etc/autogpu", "run"])
def test_link_that_leads_out_of_the_image_is_not_followed(image: Path, tmp_path: Path, name: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    if (image / name).exists():
        (image / name).rmdir()
    (image / name).symlink_to(outside)
    with pytest.raises(InstallError, match="leads out of"):
        hosts.setup(image)
    assert list(outside.iterdir()) == []


def test_folder_that_is_no_system_is_refused(tmp_path: Path) -> None:
    for action in (hosts.setup, hosts.undo, hosts.observe):
        with pytest.raises(InstallError, match="is not the root of a Linux system: it has no run folder"):
            action(tmp_path)


def test_what_can_not_be_written_is_named(image: Path, paths: HostPaths) -> None:
    paths.policy.parent.touch()
    with pytest.raises(InstallError) as refused:
        hosts.setup(image)
    assert str(refused.value) == f"can't write {paths.policy}: File exists"
    assert "--undo" in refused.value.remedy


def test_only_root_may_change_the_host_and_is_told_the_full_command(image: Path, monkeypatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    host = replace(hosts.observe(image), paths=HostPaths.below(Path("/")))
    full = f"sudo {sys.executable} -m autogpu host-setup"
    for plan, remedy in ((hosts.plan_setup, full), (hosts.plan_undo, f"{full} --undo")):
        with pytest.raises(InstallError, match="only root may") as refused:
            plan(host)
        assert refused.value.remedy == remedy


# Undo


def test_folder_in_use_stays_and_its_users_are_named(image: Path, paths: HostPaths) -> None:
    hosts.setup(image)
    lease = lease_in(paths.folder)
    done = hosts.undo(image)
    said = rf"is in use: pid {os.getpid()} \((uid {os.geteuid()}|\S+), train\.py\) holds a lease"
    assert re.fullmatch(said, done.in_use)
    assert done.left == (Step("leave", paths.folder, why=done.in_use),)
    assert done.removed == (paths.tmpfiles, paths.policy)
    assert lease.is_alive
    assert paths.mutex.exists()
    lease.release()
    assert hosts.undo(image).removed == (paths.folder,)


def test_folder_in_which_a_job_waits_stays(image: Path, paths: HostPaths) -> None:
    hosts.setup(image)
    ticket = paths.folder / f"wait.0000000001.{os.geteuid()}.{os.getpid()}"
    with ticket.open("wb") as stream:
        locks.own(stream.fileno())
        assert "waits in the queue" in hosts.undo(image).in_use
        assert ticket.exists()
    assert hosts.undo(image).removed == (paths.folder,)


def test_stale_files_and_leftovers_of_a_killed_setup_go_with_the_folder(image: Path, paths: HostPaths) -> None:
    before = names(image)
    hosts.setup(image)
    for name in ("job.12345.1.00000000", "wait.0000000001.12345.1", ".job.12345.1.00000000"):
        (paths.folder / name).touch()
    for path in (paths.tmpfiles, paths.policy):
        path.with_name(f".{path.name}.12.tmp").touch()
    assert paths.folder in hosts.undo(image).removed
    assert names(image) == before


def test_folder_with_a_foreign_file_stays_as_it_is(image: Path, paths: HostPaths) -> None:
    hosts.setup(image)
    (paths.folder / "thesis.tex").touch()
    done = hosts.undo(image)
    assert done.in_use == "has files in it that are not autogpu's, such as 'thesis.tex'"
    assert sorted(path.name for path in paths.folder.iterdir()) == ["mutex", "thesis.tex"]


@needs_root
def test_folder_that_is_mounted_stays_with_its_mutex(image: Path, paths: HostPaths, tmp_path: Path) -> None:
    hosts.setup(image)
    elsewhere = tmp_path / "elsewhere"
    paths.folder.rename(elsewhere)
    paths.folder.mkdir()
    mount = ["mount", "--bind", str(elsewhere), str(paths.folder)]
    if subprocess.run(mount, stderr=subprocess.DEVNULL, timeout=30, check=False).returncode:
        pytest.skip("nothing can be mounted here")
    try:
        assert hosts.undo(image).in_use == "can't be removed: Device or resource busy"
        assert [path.name for path in elsewhere.iterdir()] == ["mutex"]
    finally:
        subprocess.run(["umount", str(paths.folder)], timeout=30, check=True)
