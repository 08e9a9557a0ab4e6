"""What an administrator reads, and what a script gets."""

from __future__ import annotations

from pathlib import Path

import pytest

from autogpu.cli import host_setup as hosts
from autogpu.cli import main as frame
from tests.support import host_image
from tests.support.host_image import tree

image = host_image.image


@pytest.fixture
def run(image: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch):
    host = host_image.host(image)
    monkeypatch.setattr(hosts, "Host", lambda: host)
    monkeypatch.setattr(hosts, "sudo", lambda: "")

    def run(*options: str) -> tuple:
        status = frame.run(["host-setup", *options])
        said = capsys.readouterr()
        assert said.err == ""
        return status, said.out

    return run


def test_setup_says_what_it_wrote(run, image: Path) -> None:
    ends = "All that is required is in place.\nContainers take part with -v /run/autogpu:/run/autogpu\n"
    assert run() == (
        0,
        f"wrote {image}/etc/tmpfiles.d/autogpu.conf\n"
        f"made {image}/run/autogpu\n"
        f"wrote {image}/etc/autogpu/autogpu.toml\n" + ends,
    )
    assert run() == (0, ends)


def test_check_tells_each_part_and_the_way_out(run, image: Path) -> None:
    status, said = run("--check")
    assert status == 1
    assert said.splitlines() == [
        f"{image}/etc/tmpfiles.d/autogpu.conf does not exist.",
        "  /run is emptied at boot, and then jobs coordinate in /var/tmp/autogpu.v1 again.",
        f"{image}/run/autogpu does not exist.",
        "  Jobs coordinate in /var/tmp/autogpu.v1, which trusts its first user, who owns it and may remove the "
        "leases of others; does not reach into containers, nor into services with a private /tmp and /var/tmp; "
        "does not survive a cleaner of /var/tmp.",
        f"{image}/etc/autogpu/autogpu.toml does not exist.",
        "  The defaults are used, and there is no cap on the GPUs of one user.",
        "To set it up: autogpu host-setup",
    ]
    run()
    status, said = run("--check")
    assert (status, said.splitlines()[3]) == (0, "All that is required is in place.")
    assert said.count(" is in place.\n") == 4
    # Without a policy as well.
    (image / "etc/autogpu/autogpu.toml").unlink()
    status, said = run("--check")
    assert "All that is required is in place.\n" in said
    assert (status, f"{image}/etc/autogpu/autogpu.toml does not exist." in said) == (0, True)


@pytest.mark.parametrize("option", ["--check", None])
def test_policy_that_enforces_nothing_is_told(run, image: Path, option) -> None:
    run()
    policy = image / "etc/autogpu/autogpu.toml"
    policy.write_text('locked = ["select.exclud"]\n')
    status, said = run(*([option] if option else []))
    assert status == (1 if option else 0)
    assert f'{policy} is not in force as it is written.\n  {policy}:1: locked names "select.exclud"' in said
    assert "All that is required" not in said
    assert "To set it up" not in said


def test_print_shows_what_would_be_written_and_run(run, image: Path) -> None:
    before = tree(image)
    status, said = run("--print")
    assert (status, tree(image)) == (0, before)
    run()
    files = [image / "etc/tmpfiles.d/autogpu.conf", image / "etc/autogpu/autogpu.toml"]
    assert said == (
        f"# {files[0]}\n{files[0].read_text()}\n# {files[1]}\n{files[1].read_text()}\n"
        f"# then run: systemd-tmpfiles --create {files[0]}\n"
    )
