"""host-setup on a system below ``tmp_path``, with and without obstacles, and once on the real machine."""

import os
import shutil
import stat
import subprocess
import sys

import pytest

from autogpu.cli import host_setup as hosts
from autogpu.errors import InstallError
from autogpu.lease import Lease, acquire_lease, find_folder
from autogpu.lease.folder import FolderOrigin
from tests.lease.conftest import ALICE, needs_root
from tests.support.environments import ROOT


def test_prepared_host_serves_all_users_whatever_the_umask(image):
    before = os.umask(0o077)
    try:
        image.setup()
    finally:
        os.umask(before)
    made = (image.folder, image.tmpfiles, image.policy.parent, image.policy)
    modes = [stat.S_IMODE(path.stat().st_mode) for path in made]
    assert [oct(mode) for mode in modes] == ["0o1777", "0o644", "0o755", "0o644"]
    assert find_folder({}, host=image.folder).origin is FolderOrigin.HOST
    assert image.problems() == {}
    marker, *lines = image.tmpfiles.read_text(encoding="ascii").splitlines()
    assert marker.startswith("# `autogpu host-setup` wrote this file.")
    assert lines == ["d /run/autogpu 1777 root root -"]


@pytest.mark.parametrize("missing", ["usr/bin", "run/systemd"], ids=["systemd-not-installed", "systemd-not-running"])
def test_without_systemd_the_boot_command_makes_the_same_folder(image, missing):
    shutil.rmtree(image.root / missing)
    assert image.setup() == [f"made {image.folder}", f"wrote {image.policy}"]
    boot = image.host.parts()[0]
    assert not boot.is_required
    assert boot.problem == "has no effect: nothing on this system reads tmpfiles.d at boot"
    assert "/etc/rc.local" in boot.consequence
    assert boot.consequence.endswith(f"\n    {hosts.BOOT_LINE}"), "it stands alone, to be copied"

    expected = image.folder.stat().st_mode
    shutil.rmtree(image.folder)
    line = hosts.BOOT_LINE.replace("/run/autogpu", str(image.folder))
    subprocess.run(["sh", "-c", line], timeout=30, check=True)
    assert image.folder.stat().st_mode == expected
    assert set(image.problems()) == {image.tmpfiles}


@pytest.mark.parametrize(
    ("text", "is_said"),
    [
        ('test "$*" = "--create {0.tmpfiles}" && mkdir -m 700 {0.folder} && chmod 1777 {0.folder}', False),
        ("echo Bad line >&2; exit 65", True),
        ("#!/no/such/program", True),
    ],
    ids=["works", "complains", "can-not-be-run"],
)
def test_folder_is_complete_even_if_systemd_tmpfiles_fails(image, text, is_said):
    image.program.write_text(text if text.startswith("#!") else f"#!/bin/sh\n{text.format(image)}\n")
    create = f"{image.program} --create {image.tmpfiles}"
    said = f", but the next boot will remove it, because `{create}` failed; run that command to see why"
    assert f"made {image.folder}{said if is_said else ''}" in image.setup()
    assert image.problems() == {}


def _make(path, mode, uid=-1):
    path.mkdir()
    path.chmod(mode)
    os.chown(path, uid, uid)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        pytest.param(lambda path: path.symlink_to("../elsewhere"), "is lrwxrwxrwx and owned by ", id="symbolic-link"),
        pytest.param(lambda path: path.touch(mode=0o644), "is -rw-r--r-- and owned by ", id="plain-file"),
        pytest.param(lambda path: _make(path, 0o777), "is drwxrwxrwx and owned by ", id="not-sticky"),
        pytest.param(
            lambda path: _make(path, 0o1777, ALICE),
            f"is drwxrwxrwt and owned by uid {ALICE}; it must be a sticky folder owned by root",
            id="owned-by-another-user",
            marks=needs_root,
        ),
    ],
)
def test_folder_with_a_wrong_type_mode_or_owner_stops_the_setup(image, make, said):
    make(image.folder)
    before = image.tree()
    with pytest.raises(InstallError) as refused:
        image.setup()
    assert str(refused.value).startswith(f"{image.folder} {said}")
    assert refused.value.remedy.startswith("run chown root and chmod 1777 on it, or move it away; then run ")
    assert image.problems()[image.folder].startswith(said)
    assert image.tree() == before


def test_tmpfiles_file_and_folder_mode_of_the_administrator_stay(image):
    image.tmpfiles.write_text("# for the group of the lab\nd /run/autogpu 3770 root gpu -\n")
    _make(image.folder, 0o3770)
    image.setup()
    assert image.problems() == {}
    assert stat.S_IMODE(image.folder.stat().st_mode) == 0o3770
    assert "3770" in image.tmpfiles.read_text()


@pytest.mark.timeout(20)
def test_setup_does_not_hang_if_the_policy_file_is_a_pipe(image):
    image.policy.parent.mkdir()
    os.mkfifo(image.policy)
    image.setup()
    assert image.policy.is_fifo()


def test_error_names_the_path_that_can_not_be_written(image):
    image.policy.parent.touch()
    with pytest.raises(FileExistsError) as refused:
        image.setup()
    assert refused.value.filename == str(image.policy.parent)


@pytest.fixture
def real_host():
    host = hosts.Host()
    if os.geteuid() != 0:
        pytest.skip("only root can prepare the host")
    written = (host.folder, host.tmpfiles, host.policy.parent)
    taken = [str(path) for path in written if os.path.lexists(path)]
    if taken:
        pytest.skip(f"{taken[0]} exists")
    folder_was_there = host.tmpfiles.parent.exists()
    yield host
    for folder in (host.folder, host.policy.parent, *([] if folder_was_there else [host.tmpfiles.parent])):
        shutil.rmtree(folder, ignore_errors=True)
    host.tmpfiles.unlink(missing_ok=True)


@pytest.mark.slow
def test_ordinary_user_can_claim_in_the_folder_of_a_real_host(real_host):
    def host_setup(*options):
        # Unset AUTOGPU_LEASE_DIR, which tests set: jobs must find the host's folder by themselves.
        environ = {name: value for name, value in os.environ.items() if not name.startswith("AUTOGPU")}
        command = [sys.executable, "-m", "autogpu", "host-setup", *options]
        return subprocess.run(command, env=environ, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)

    assert host_setup("--check").returncode == 1
    made = host_setup()
    assert (made.returncode, made.stderr, "did not work" in made.stdout) == (0, "", False)
    assert host_setup("--check").returncode == 0
    status = real_host.folder.stat()
    assert (status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode)) == (0, 0, 0o1777)

    # A job of an ordinary user must find the folder by itself, and claim there.
    child = os.fork()
    if child == 0:
        try:
            os.setgid(ALICE)
            os.setuid(ALICE)
            folder = find_folder({})
            lease = acquire_lease(Lease(folder, "train.py"), lambda *_: {"GPU-0": 1})
            os._exit(0 if (folder.origin, (folder.path / lease.name).exists()) == (FolderOrigin.HOST, True) else 2)
        finally:
            os._exit(3)
    assert os.waitpid(child, 0)[1] == 0
