"""A host prepared, checked and taken back: in an image below ``tmp_path``, and once on the real machine."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from autogpu import host as hosts
from autogpu.errors import InstallError
from autogpu.host import Places, Step
from autogpu.host.proposal import seal
from autogpu.lease import Folder, claim, find_folder
from autogpu.policy import KEYS, Policy, reference, resolve
from tests.environments import ROOT
from tests.lease.conftest import ALICE, needs_root


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


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """A system with systemd, as an image holds it."""
    made = tmp_path / "image"
    for name in ("run", "etc/tmpfiles.d", "usr/bin", "var/tmp"):
        (made / name).mkdir(parents=True)
    (made / "usr/bin/systemd-tmpfiles").touch()
    return made


@pytest.fixture
def places(image: Path) -> Places:
    return Places(image)


def lease_in(folder: Path, script: str = "train.py"):
    return claim(Folder(folder, "host", folder.stat().st_uid), lambda *_: {"GPU-0": 1}, script=script)


def problems(image: Path) -> dict:
    return {part.name: part.problem for part in hosts.parts(hosts.observe(image)) if part.problem}


def test_plan_names_every_step_in_order_and_does_none(image: Path, places: Places) -> None:
    before = tree(image)
    assert hosts.plan_setup(hosts.observe(image)) == (
        Step("write", places.tmpfiles, hosts.tmpfiles_text()),
        Step("make", places.folder),
        Step("write", places.policy, hosts.policy_text()),
    )
    assert tree(image) == before


def test_tmpfiles_lines_are_those_of_the_protocol(image: Path, places: Places) -> None:
    hosts.setup(image)
    lines = places.tmpfiles.read_text(encoding="ascii").splitlines()
    assert lines[0].startswith("# autogpu host file")
    assert lines[1:] == ["d /run/autogpu 1777 root root -", "f /run/autogpu/mutex 0444 root root -"]


def test_all_users_can_use_it_whatever_the_umask(image: Path, places: Places) -> None:
    before = os.umask(0o077)
    try:
        hosts.setup(image)
    finally:
        os.umask(before)
    paths = (places.folder, places.mutex, places.tmpfiles, places.policy.parent, places.policy)
    # Of a file the sticky bit does not matter here: it keeps cleaners away, and tmpfiles.d takes it off.
    modes = [stat.S_IMODE(path.stat().st_mode) & (0o1777 if path.is_dir() else 0o777) for path in paths]
    assert [oct(mode) for mode in modes] == ["0o1777", "0o444", "0o644", "0o755", "0o644"]
    assert find_folder({}, host=places.folder).origin == "host"
    assert problems(image) == {}


def test_twice_changes_nothing(image: Path) -> None:
    assert hosts.setup(image).steps
    before = tree(image)
    assert hosts.setup(image).steps == ()
    assert tree(image) == before


def test_setup_does_not_disturb_a_job_that_holds_a_lease(image: Path, places: Places) -> None:
    hosts.setup(image)
    lease = lease_in(places.folder)
    places.mutex.chmod(0o600)
    assert hosts.setup(image).steps == (Step("repair", places.mutex),)
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


# The proposed policy


def resolved(file: Path):
    return resolve({}, script=None, working_directory=file.parent, flags={}, system_file=file)


def test_proposed_policy_is_read_and_says_nothing(image: Path, places: Places) -> None:
    hosts.setup(image)
    found = resolved(places.policy)
    assert found.files == (places.policy,)
    assert (found.policy, found.problems, found.system_notes) == (Policy(), (), ())
    assert {setting.origin.layer for setting in found.settings.values()} == {"default"}


@pytest.mark.parametrize("key", KEYS, ids=lambda key: key.dotted)
def test_one_hash_less_sets_the_key_for_the_host(image: Path, places: Places, key) -> None:
    hosts.setup(image)
    text = places.policy.read_text(encoding="ascii")
    line = f"\n#{key.name} = "
    assert text.count(line) == 1
    places.policy.write_text(text.replace(line, line.replace("#", "")))
    found = resolved(places.policy)
    assert (found.problems, found.system_notes) == ((), ())
    assert found.settings[key.dotted].origin.layer == "system"


def test_policy_lists_what_the_example_lists() -> None:
    lines = hosts.policy_text().decode().splitlines()
    listing = reference.example().partition("\n\n")[2].splitlines()
    assert [line[1:] if line.startswith("#") else line for line in lines[-len(listing) :]] == listing
    assert max(map(len, lines)) <= 120


@pytest.mark.parametrize("dotted", ["limits.per_user", "locked", "select.exclude"])
def test_policy_explains_what_an_administrator_wants(image: Path, places: Places, dotted: str) -> None:
    key = next(key for key in KEYS if key.dotted == dotted)
    head = hosts.policy_text().decode().partition("\n\n")[0]
    said = " ".join(line.lstrip("# ") for line in head.splitlines())
    assert key.more in said
    # The example that stands there is good TOML, and not the default.
    example = next(line.lstrip("# ") for line in head.splitlines() if line.startswith(f"#   {key.name} = "))
    places.policy.parent.mkdir()
    places.policy.write_text((f"[{key.section}]\n" if key.section else "") + example)
    found = resolved(places.policy)
    assert found.problems == ()
    assert getattr(found.policy, key.attribute) != key.default


def test_existing_policy_stays_at_setup_and_at_undo(image: Path, places: Places) -> None:
    places.policy.parent.mkdir()
    places.policy.write_text("[limits]\nper_user = 2\n")
    before = tree(image)[str(places.policy.relative_to(image))]
    hosts.setup(image)
    assert hosts.undo(image).left == (Step("leave", places.policy, why="was not written by autogpu"),)
    assert tree(image)[str(places.policy.relative_to(image))] == before


def test_changed_policy_stays(image: Path, places: Places) -> None:
    hosts.setup(image)
    changed = places.policy.read_bytes().replace(b"#per_user = 0", b"per_user = 2 ")
    places.policy.write_bytes(changed)
    assert hosts.setup(image).steps == ()
    done = hosts.undo(image)
    assert done.left == (Step("leave", places.policy, why="has been changed since autogpu wrote it"),)
    assert done.in_use == ""
    assert places.policy.read_bytes() == changed


def test_policy_of_an_earlier_version_that_nobody_changed_follows(image: Path, places: Places) -> None:
    hosts.setup(image)
    rest = places.policy.read_bytes().partition(b"\n")[2].replace(b"#count = 1", b"#howmany = 1")
    places.policy.write_bytes(seal(rest) + rest)
    assert hosts.setup(image).steps == (Step("write", places.policy, hosts.policy_text()),)
    places.policy.write_bytes(seal(rest) + rest)
    assert places.policy in hosts.undo(image).removed


# What lies in the way


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


# Where systemd is missing, and where it complains


def test_without_tmpfiles_the_line_to_run_at_boot_does_the_same(image: Path, places: Places) -> None:
    shutil.rmtree(str(image / "usr"))
    places.tmpfiles.parent.rmdir()
    done = hosts.setup(image)
    assert [step.path for step in done.steps] == [places.folder, places.policy]
    boot = hosts.parts(done.host)[0]
    assert (boot.name, boot.is_required) == ("boot", False)
    assert boot.problem == "does not exist: nothing on this system reads tmpfiles.d at boot"
    assert "/etc/rc.local" in boot.consequence
    assert hosts.BOOT_LINE in boot.consequence

    expected = places.folder.stat().st_mode
    shutil.rmtree(str(places.folder))
    line = hosts.BOOT_LINE.replace("/run/autogpu", str(places.folder))
    subprocess.run(["sh", "-c", line], timeout=30, check=True)
    assert places.folder.stat().st_mode == expected
    assert set(problems(image)) == {"boot"}


@pytest.mark.parametrize("init", [None, "run/systemd/system", "run/openrc"])
def test_on_a_host_only_a_running_init_makes_the_folder_at_boot(image: Path, monkeypatch, init) -> None:
    monkeypatch.setattr(Places, "is_host", True)
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
def test_folder_is_made_although_the_program_fails(image: Path, places: Places, text, said: str) -> None:
    program = image / "usr/bin/systemd-tmpfiles"
    if text:
        program.write_text(f"#!/bin/sh\n{text}\n")
        program.chmod(0o755)
    host = replace(hosts.observe(image), program=program)
    (note,) = hosts.apply(hosts.plan_setup(host), host)
    assert note.startswith(f"`{program} --create {places.tmpfiles}` did not work {said}")
    assert problems(image) == {}


def test_what_the_program_makes_is_completed(image: Path, places: Places) -> None:
    program = image / "usr/bin/systemd-tmpfiles"
    program.write_text(f'#!/bin/sh\ntest "$*" = "--create {places.tmpfiles}" && mkdir -m 700 {places.folder}\n')
    program.chmod(0o755)
    host = replace(hosts.observe(image), program=program)
    assert hosts.apply(hosts.plan_setup(host), host) == ()
    assert problems(image) == {}


# The fallback


def test_jobs_in_the_fallback_folder_are_seen(image: Path, places: Places) -> None:
    find_folder({}, host=places.folder, fallback=places.fallback)
    lease = lease_in(places.fallback)
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
    places = Places(Path("/"))
    if os.geteuid() != 0:
        pytest.skip("only root can prepare the host")
    paths = (places.folder, places.tmpfiles, places.policy.parent)
    taken = [str(path) for path in paths if os.path.lexists(str(path))]
    if taken:
        pytest.skip(f"{taken[0]} exists")
    folder_was_there = places.tmpfiles.parent.exists()
    yield places
    for path in paths:
        if path.is_dir():
            shutil.rmtree(str(path))
        elif os.path.lexists(str(path)):
            path.unlink()
    if not folder_was_there and places.tmpfiles.parent.exists():
        places.tmpfiles.parent.rmdir()


def test_a_real_host(real_places: Places) -> None:
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
            lease = claim(folder, lambda *_: {"GPU-0": 1}, script="train.py")
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
