"""A host prepared, checked and taken back: in an image below ``tmp_path``, and once on the real machine."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from autogpu import host_setup as hosts
from autogpu.errors import InstallError
from autogpu.host_setup import HostPaths, Step
from autogpu.lease import acquire_lease, find_folder
from tests.lease.conftest import ALICE, needs_root
from tests.support import host_image
from tests.support.environments import ROOT
from tests.support.host_image import lease_in, names, problems, tree

image, paths = host_image.image, host_image.paths


def test_plan_names_every_step_in_order_and_does_none(image: Path, paths: HostPaths) -> None:
    before = tree(image)
    assert hosts.plan_setup(hosts.observe(image)) == (
        Step("write", paths.tmpfiles, hosts.tmpfiles_text()),
        Step("make", paths.folder),
        Step("write", paths.policy, hosts.policy_text()),
    )
    assert tree(image) == before


def test_tmpfiles_lines_are_those_of_the_protocol(image: Path, paths: HostPaths) -> None:
    hosts.setup(image)
    lines = paths.tmpfiles.read_text(encoding="ascii").splitlines()
    assert lines[0].startswith("# autogpu host file")
    assert lines[1:] == ["d /run/autogpu 1777 root root -", "f /run/autogpu/mutex 0444 root root -"]


def test_all_users_can_use_it_whatever_the_umask(image: Path, paths: HostPaths) -> None:
    before = os.umask(0o077)
    try:
        hosts.setup(image)
    finally:
        os.umask(before)
    made = (paths.folder, paths.mutex, paths.tmpfiles, paths.policy.parent, paths.policy)
    # Of a file the sticky bit does not matter here: it keeps cleaners away, and tmpfiles.d takes it off.
    modes = [stat.S_IMODE(path.stat().st_mode) & (0o1777 if path.is_dir() else 0o777) for path in made]
    assert [oct(mode) for mode in modes] == ["0o1777", "0o444", "0o644", "0o755", "0o644"]
    assert find_folder({}, host=paths.folder).origin == "host"
    assert problems(image) == {}


def test_twice_changes_nothing(image: Path) -> None:
    assert hosts.setup(image).steps
    before = tree(image)
    assert hosts.setup(image).steps == ()
    assert tree(image) == before


def test_setup_does_not_disturb_a_job_that_holds_a_lease(image: Path, paths: HostPaths) -> None:
    hosts.setup(image)
    lease = lease_in(paths.folder)
    paths.mutex.chmod(0o600)
    assert hosts.setup(image).steps == (Step("repair", paths.mutex),)
    assert lease.is_alive
    lease.release()


def test_undo_leaves_the_image_as_it_was(image: Path) -> None:
    before = names(image)
    hosts.setup(image)
    done = hosts.undo(image)
    assert (len(done.removed), done.left, done.in_use) == (3, (), "")
    assert names(image) == before
    again = hosts.undo(image)
    assert (again.removed, again.left) == ((), ())


# Where systemd is missing, and where it complains


def test_without_tmpfiles_the_line_to_run_at_boot_does_the_same(image: Path, paths: HostPaths) -> None:
    shutil.rmtree(str(image / "usr"))
    paths.tmpfiles.parent.rmdir()
    done = hosts.setup(image)
    assert [step.path for step in done.steps] == [paths.folder, paths.policy]
    boot = hosts.parts(done.host)[0]
    assert (boot.name, boot.is_required) == ("boot", False)
    assert boot.problem == "does not exist: nothing on this system reads tmpfiles.d at boot"
    assert "/etc/rc.local" in boot.consequence
    assert hosts.BOOT_LINE in boot.consequence

    expected = paths.folder.stat().st_mode
    shutil.rmtree(str(paths.folder))
    line = hosts.BOOT_LINE.replace("/run/autogpu", str(paths.folder))
    subprocess.run(["sh", "-c", line], timeout=30, check=True)
    assert paths.folder.stat().st_mode == expected
    assert set(problems(image)) == {"boot"}


@pytest.mark.parametrize("init", [None, "run/systemd/system", "run/openrc"])
def test_on_a_host_only_a_running_init_makes_the_folder_at_boot(image: Path, monkeypatch, init) -> None:
    monkeypatch.setattr(HostPaths, "is_host", True)
    if init:
        (image / init).mkdir(parents=True)
    assert hosts.observe(image).is_read_at_boot is bool(init)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("echo Unknown command; echo Bad line >&2; exit 65", "(Bad line)"),
        ("exit 1", "(exit status 1)"),
        (None, "(Permission denied)"),
    ],
    ids=["complains", "silent", "does-not-start"],
)
def test_folder_is_made_although_the_program_fails(image: Path, paths: HostPaths, text, said: str) -> None:
    program = image / "usr/bin/systemd-tmpfiles"
    if text:
        program.write_text(f"#!/bin/sh\n{text}\n")
        program.chmod(0o755)
    host = replace(hosts.observe(image), program=program)
    (note,) = hosts.apply(hosts.plan_setup(host), host)
    assert note.startswith(f"`{program} --create {paths.tmpfiles}` did not work {said}")
    assert problems(image) == {}


def test_what_the_program_makes_is_completed(image: Path, paths: HostPaths) -> None:
    program = image / "usr/bin/systemd-tmpfiles"
    program.write_text(f'#!/bin/sh\ntest "$*" = "--create {paths.tmpfiles}" && mkdir -m 700 {paths.folder}\n')
    program.chmod(0o755)
    host = replace(hosts.observe(image), program=program)
    assert hosts.apply(hosts.plan_setup(host), host) == ()
    assert problems(image) == {}


# The fallback


def test_jobs_in_the_fallback_folder_are_seen(image: Path, paths: HostPaths) -> None:
    find_folder({}, host=paths.folder, fallback=paths.fallback)
    lease = lease_in(paths.fallback)
    done = hosts.setup(image)
    assert [holder.script for holder in done.host.stranded] == ["train.py"]
    lease.release()
    assert hosts.observe(image).stranded == ()


def test_looking_makes_no_fallback_folder(image: Path) -> None:
    before = tree(image)
    assert hosts.observe(image).stranded == ()
    assert tree(image) == before


def test_missing_folder_says_what_the_fallback_can_not_do(image: Path) -> None:
    folder = next(part for part in hosts.parts(hosts.observe(image)) if part.name == "folder")
    for limit in ("trusts its first user", "does not reach into containers", "does not survive a cleaner"):
        assert limit in folder.consequence


# The real machine


@pytest.fixture
def real_places():
    paths = HostPaths.below(Path("/"))
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


def test_a_real_host(real_places: HostPaths) -> None:
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
    mutex = real_places.mutex.stat()
    assert (mutex.st_uid, mutex.st_gid, mutex.st_mode & 0o777) == (0, 0, 0o444)

    # A job of an ordinary user, which finds the folder by itself.
    child = os.fork()
    if child == 0:
        try:
            os.setgid(ALICE)
            os.setuid(ALICE)
            folder = find_folder({})
            lease = acquire_lease(folder, lambda *_: {"GPU-0": 1}, script="train.py")
            os._exit(0 if (folder.origin, lease.is_alive) == ("host", True) else 2)
        finally:
            os._exit(3)
    assert os.waitpid(child, 0)[1] == 0

    undone = host_setup("--undo")
    assert (undone.returncode, undone.stderr) == (0, "")
    for path in (real_places.folder, real_places.tmpfiles, real_places.policy.parent):
        assert not os.path.lexists(str(path)), path


@needs_root
def test_an_ordinary_user_is_refused_on_the_real_host() -> None:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setuid(ALICE)
            hosts.setup()
        except InstallError as error:
            os.write(writer, error.remedy.encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as stream:
        assert stream.read() == f"sudo {sys.executable} -m autogpu host-setup"
    os.waitpid(child, 0)
