"""What stands in the way of setup, and what of undo: files of others, wrong modes, folders in use."""

from __future__ import annotations

import fcntl
import os
import re
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from autogpu import host as hosts
from autogpu.errors import InstallError
from autogpu.host import Places, Step
from tests import host_image
from tests.host_image import lease_in, names, problems, tree
from tests.lease.conftest import ALICE, needs_root

image, places = host_image.image, host_image.places


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
    image: Path, places: Places, place: str, make, said: str
) -> None:
    (image / "secret").touch(mode=0o600)
    if place == "mutex":
        places.folder.mkdir()
        places.folder.chmod(0o1777)
    make(getattr(places, place))
    before = tree(image)
    with pytest.raises(InstallError) as refused:
        hosts.setup(image)
    assert str(refused.value).startswith(f"{getattr(places, place)} {said}")
    assert refused.value.remedy
    assert said in "".join(problems(image).values())
    assert tree(image) == before
    if place != "mutex":
        assert hosts.undo(image).removed == ()
        assert tree(image) == before


@pytest.mark.parametrize(
    ("mode", "said"),
    [(0o755, "is closed to some users"), (0o777, "is not sticky, so users could remove each other's leases")],
    ids=["closed", "not-sticky"],
)
def test_folder_with_a_wrong_mode_is_repaired(image: Path, places: Places, mode: int, said: str) -> None:
    hosts.setup(image)
    places.folder.chmod(mode)
    assert problems(image) == {"folder": said}
    assert hosts.setup(image).steps == (Step("repair", places.folder),)
    assert stat.S_IMODE(places.folder.stat().st_mode) == 0o1777


@pytest.mark.parametrize("owner", ["closed", pytest.param("alice", marks=needs_root)])
def test_mutex_is_repaired_in_place(image: Path, places: Places, owner: str) -> None:
    hosts.setup(image)
    if owner == "alice":
        os.chown(str(places.mutex), ALICE, ALICE)
    else:
        places.mutex.chmod(0o600)
    before = places.mutex.stat().st_ino
    assert set(problems(image)) == {"mutex"}
    assert hosts.setup(image).steps == (Step("repair", places.mutex),)
    after = places.mutex.stat()
    assert (after.st_ino, after.st_uid, after.st_mode & 0o777) == (before, os.geteuid(), 0o444)


def test_missing_mutex_is_made(image: Path, places: Places) -> None:
    hosts.setup(image)
    places.mutex.unlink()
    assert hosts.setup(image).steps == (Step("make", places.mutex),)
    assert problems(image) == {}


def test_outdated_tmpfiles_file_of_ours_is_written_anew(image: Path, places: Places) -> None:
    hosts.setup(image)
    places.tmpfiles.write_bytes(b"# autogpu host file, version 0\nd /run/autogpu 0700 root root 1d\n")
    assert hosts.setup(image).steps == (Step("write", places.tmpfiles, hosts.tmpfiles_text()),)


def test_administrators_own_tmpfiles_file_rules(image: Path, places: Places) -> None:
    places.tmpfiles.write_text("# for the group of the lab\nd /run/autogpu 3770 root gpu -\n")
    places.folder.mkdir()
    places.folder.chmod(0o2770)
    hosts.setup(image)
    assert problems(image) == {}
    assert stat.S_IMODE(places.folder.stat().st_mode) == 0o3770
    done = hosts.undo(image)
    assert {step.path for step in done.left} == {places.tmpfiles, places.folder}
    assert done.removed == (places.policy,)


def test_links_that_an_administrator_keeps_elsewhere_stay(image: Path, places: Places, tmp_path: Path) -> None:
    places.policy.parent.mkdir()
    for path, text in ((places.tmpfiles, hosts.tmpfiles_text()), (places.policy, hosts.policy_text())):
        (tmp_path / path.name).write_bytes(text)
        path.symlink_to(tmp_path / path.name)
    hosts.setup(image)
    assert problems(image) == {}
    hosts.undo(image)
    assert places.tmpfiles.is_symlink()
    assert places.policy.is_symlink()


@pytest.mark.timeout(20)
def test_nothing_waits_for_a_pipe_in_the_place_of_a_file(image: Path, places: Places) -> None:
    places.policy.parent.mkdir()
    os.mkfifo(str(places.policy))
    hosts.setup(image)
    assert places.policy.is_fifo()


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


def test_what_can_not_be_written_is_named(image: Path, places: Places) -> None:
    places.policy.parent.touch()
    with pytest.raises(InstallError) as refused:
        hosts.setup(image)
    assert str(refused.value) == f"can't write {places.policy}: File exists"
    assert "--undo" in refused.value.remedy


def test_only_root_may_change_the_host_and_is_told_the_full_command(image: Path) -> None:
    host = replace(hosts.observe(image), places=Places(Path("/")), euid=1000)
    full = f"sudo {sys.executable} -m autogpu host-setup"
    for plan, remedy in ((hosts.plan_setup, full), (hosts.plan_undo, f"{full} --undo")):
        with pytest.raises(InstallError, match="only root may") as refused:
            plan(host)
        assert refused.value.remedy == remedy


# Undo


def test_folder_in_use_stays_and_its_users_are_named(image: Path, places: Places) -> None:
    hosts.setup(image)
    lease = lease_in(places.folder)
    done = hosts.undo(image)
    said = rf"is in use: pid {os.getpid()} \((uid {os.geteuid()}|\S+), train\.py\) holds a lease"
    assert re.fullmatch(said, done.in_use)
    assert done.left == (Step("leave", places.folder, why=done.in_use),)
    assert done.removed == (places.tmpfiles, places.policy)
    assert lease.is_alive
    assert places.mutex.exists()
    lease.release()
    assert hosts.undo(image).removed == (places.folder,)


def test_folder_in_which_someone_waits_stays(image: Path, places: Places) -> None:
    hosts.setup(image)
    ticket = places.folder / f"wait.0000000001.{os.geteuid()}.{os.getpid()}"
    with ticket.open("wb") as stream:
        fcntl.flock(stream.fileno(), fcntl.LOCK_EX)
        assert "waits in line" in hosts.undo(image).in_use
        assert ticket.exists()
    assert hosts.undo(image).removed == (places.folder,)


def test_what_the_dead_left_goes_with_the_folder(image: Path, places: Places) -> None:
    hosts.setup(image)
    for name in ("job.12345.1.00000000", "wait.0000000001.12345.1", ".job.12345.1.00000000"):
        (places.folder / name).touch()
    assert places.folder in hosts.undo(image).removed


def test_folder_with_a_strangers_file_stays_as_it_is(image: Path, places: Places) -> None:
    hosts.setup(image)
    (places.folder / "thesis.tex").touch()
    done = hosts.undo(image)
    assert done.in_use == "has files in it that are not autogpu's, such as 'thesis.tex'"
    assert sorted(path.name for path in places.folder.iterdir()) == ["mutex", "thesis.tex"]


@needs_root
def test_folder_that_is_mounted_stays_with_its_mutex(image: Path, places: Places, tmp_path: Path) -> None:
    hosts.setup(image)
    elsewhere = tmp_path / "elsewhere"
    places.folder.rename(elsewhere)
    places.folder.mkdir()
    mount = ["mount", "--bind", str(elsewhere), str(places.folder)]
    if subprocess.run(mount, stderr=subprocess.DEVNULL, timeout=30, check=False).returncode:
        pytest.skip("nothing can be mounted here")
    try:
        assert hosts.undo(image).in_use == "can't be removed: Device or resource busy"
        assert [path.name for path in elsewhere.iterdir()] == ["mutex"]
    finally:
        subprocess.run(["umount", str(places.folder)], timeout=30, check=True)


def test_remains_of_a_killed_setup_are_removed(image: Path, places: Places) -> None:
    before = names(image)
    hosts.setup(image)
    for path in (places.tmpfiles, places.policy):
        path.with_name(f".{path.name}.12.tmp").touch()
    hosts.undo(image)
    assert names(image) == before
