"""Output and exit status of ``autogpu host-setup``, and the policy file that it writes."""

import os
import shutil

import pytest

from autogpu.cli import host_setup as hosts
from autogpu.cli import main as frame
from autogpu.errors import InstallError
from autogpu.policy import Policy, resolve
from autogpu.policy.templates import example
from autogpu.users import host_setup_command, sudo
from tests.lease.conftest import needs_root


@pytest.fixture
def run(image, capsys, monkeypatch):
    host = image.host
    monkeypatch.setattr(hosts, "Host", lambda: host)
    monkeypatch.setattr(hosts, "sudo", lambda: "")

    def run(*options):
        status = frame.run(["host-setup", *options])
        said = capsys.readouterr()
        assert said.err == ""
        return status, said.out

    return run


def test_setup_lists_its_changes_and_a_second_run_changes_nothing(run, image):
    ends = (
        "All that is required is in place.\nTo let a container take part, start it with -v /run/autogpu:/run/autogpu\n"
    )
    wrote = f"wrote {image.tmpfiles}\nmade {image.folder}\nwrote {image.policy}\n"
    assert run() == (0, wrote + ends)
    before = image.tree()
    assert (run(), image.tree()) == ((0, ends), before)


def test_check_lists_each_missing_part_with_its_consequence(run, image):
    status, said = run("--check")
    assert status == 1
    assert said.splitlines() == [
        f"{image.tmpfiles} does not exist.",
        "  /run is emptied at boot, and then jobs coordinate in /var/tmp/autogpu.v1 again.",
        f"{image.folder} does not exist.",
        "  Jobs coordinate in /var/tmp/autogpu.v1. Its first user owns it, and can remove the leases of others. "
        "Containers, and services with a private /tmp and /var/tmp, can't see it. A cleaner of /var/tmp may remove it.",
        f"{image.policy} does not exist.",
        "  The defaults are used, and there is no cap on the GPUs of one user.",
        "To set it up: autogpu host-setup",
    ]
    run()
    status, said = run("--check")
    assert (status, said.splitlines()[3]) == (0, "All that is required is in place.")
    assert said.count(" is in place.\n") == 4
    # The policy file is not required.
    image.policy.unlink()
    status, said = run("--check")
    assert "All that is required is in place.\n" in said
    assert (status, f"{image.policy} does not exist." in said) == (0, True)


@pytest.fixture
def without_systemd(image):
    shutil.rmtree(image.root / "run/systemd")


@pytest.mark.parametrize("options", [(), ("--check",)], ids=["set-up", "check"])
def test_without_systemd_the_output_warns_that_the_folder_ends_at_boot(without_systemd, run, image, options):
    run()
    status, said = run(*options)
    assert (status, "All that is required" in said) == (0, False)
    assert f"{image.tmpfiles} has no effect: nothing on this system reads tmpfiles.d at boot.\n" in said
    assert "  /run is emptied at boot, and then jobs coordinate in /var/tmp/autogpu.v1 again. " in said
    assert said.splitlines()[-2:] == [
        "/run/autogpu exists until the next boot; nothing makes it again after that.",
        "To let a container take part, start it with -v /run/autogpu:/run/autogpu",
    ]


def test_python_that_can_not_be_used_stops_the_command_with_the_reason(image, capsys, monkeypatch):
    host = image.host
    monkeypatch.setattr(hosts, "Host", lambda: host)
    gone = str(image.root / "gone")
    assert frame.run(["host-setup", "--all-pythons", "--print", "--python", gone]) == 1
    what, remedy = capsys.readouterr().err.splitlines()
    assert what.startswith(f"autogpu: {gone}: ")
    assert remedy.startswith("autogpu: set --python to a base Python")


MISSPELT = 'locked contains "select.exclud", which is not a key, nearest is select.exclude'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        pytest.param('locked = ["select.exclud"]\n', MISSPELT, id="misspelt-lock"),
        pytest.param("[limits]\nper_user = -1\n", "limits.per_user", id="invalid-value"),
        pytest.param("[limits]\nper_users = 1\n", "per_users", id="unknown-key"),
        pytest.param("[limits\n", "is not valid TOML", id="invalid-toml"),
    ],
)
def test_existing_policy_with_a_mistake_stays_and_is_reported(run, image, text, said):
    run()
    image.policy.write_text(text)
    before = image.tree()
    for options, status in (("--check",), 1), ((), 0):
        found, told = run(*options)
        assert (found, f"{image.policy} does not take effect as written.\n  {image.policy}:" in told) == (status, True)
        assert (said in told, "All that is required" in told, "To set it up" in told) == (True, False, False)
    assert image.tree() == before


@pytest.mark.parametrize(
    ("at", "mode", "said"),
    [
        pytest.param("", 0o600, "jobs of other users can't read it", id="readable-by-root-only"),
        pytest.param("..", 0o700, "jobs of other users can't read it", id="folder-open-to-root-only"),
        pytest.param("", 0o666, "every user can change it", id="writable-by-everybody"),
        pytest.param("", 0o664, "", id="readable-by-everybody"),
    ],
)
def test_policy_with_a_wrong_mode_is_reported(image, at, mode, said):
    image.setup()
    (image.policy.parent if at else image.policy).chmod(mode)
    part = image.host.parts()[-1]
    assert (bool(part.problem), said in part.consequence) == (bool(said), True)


@needs_root
def test_policy_that_only_one_group_can_read_is_accepted(image):
    image.setup()
    os.chown(image.policy, 0, 4711)
    image.policy.chmod(0o640)
    assert not image.host.parts()[-1].problem


def test_print_shows_the_files_and_the_command_and_changes_nothing(run, image):
    before = image.tree()
    status, said = run("--print")
    assert (status, image.tree()) == (0, before)
    run()
    assert said == (
        f"# {image.tmpfiles}\n{image.tmpfiles.read_text()}\n# {image.policy}\n{image.policy.read_text()}\n"
        f"# then run: systemd-tmpfiles --create {image.tmpfiles}\n"
    )
    again = f"# {image.tmpfiles} is not written\n# {image.policy} is not written\n"
    assert run("--print") == (0, again)


def test_written_policy_sets_nothing_and_lists_the_example_as_comments(image):
    image.setup()
    found = resolve({}, script=None, working_directory=image.root, system_file=image.policy)
    assert (found.policy, found.problems, found.system_notes) == (Policy(), (), ())
    lines = image.policy.read_text(encoding="ascii").splitlines()
    listing = example().partition("\n\n")[2].splitlines()
    assert lines[-len(listing) :] == [f"#{line}" if line and line[0] != "[" else line for line in listing]
    assert max(map(len, lines)) <= 120


def test_system_without_a_run_folder_is_refused(tmp_path):
    with pytest.raises(InstallError, match=r"this is not a Linux system: .*/run does not exist"):
        hosts.Host(tmp_path)


def test_only_root_may_change_the_host(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(InstallError, match="host-setup needs root") as refused:
        hosts.setup(hosts.Host())
    assert refused.value.remedy == "sudo $(command -v autogpu) host-setup"


@pytest.mark.parametrize(("by_sudo", "begin"), [(True, "sudo $(command -v autogpu) "), (False, "autogpu ")])
def test_printed_command_uses_sudo_only_if_root_came_by_sudo(monkeypatch, by_sudo, begin):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.delenv("SUDO_USER", raising=False)
    if by_sudo:
        monkeypatch.setenv("SUDO_USER", "ann")
    assert host_setup_command(sudo()) == f"{begin}host-setup"
