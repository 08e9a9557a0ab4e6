"""What an administrator reads, and what a script gets."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from autogpu.cli import main as frame
from autogpu.lease import acquire_lease, find_folder
from tests.support import host_image
from tests.support.host_image import lease_in

image = host_image.image


@pytest.fixture
def run(image: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("os.geteuid", lambda: image.stat().st_uid)

    def run(*options: str) -> tuple:
        status = frame.run(["host-setup", "--root", str(image), *options])
        said = capsys.readouterr()
        assert said.err == ""
        return status, said.out.replace(f"sudo {sys.executable}", sys.executable)

    return run


def test_setup_says_what_it_wrote_and_how_to_undo_it(run, image: Path) -> None:
    ends = (
        "Containers take part with -v /run/autogpu:/run/autogpu\n"
        f"To undo: {sys.executable} -m autogpu host-setup --undo --root {image}\n"
    )
    assert run() == (
        0,
        f"wrote {image}/etc/tmpfiles.d/autogpu.conf\n"
        f"made {image}/run/autogpu\n"
        f"wrote {image}/etc/autogpu/autogpu.toml: a proposal in which nothing is set\n" + ends,
    )
    assert run() == (0, "Everything was in place.\n" + ends)


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
        f"{image}/run/autogpu/mutex does not exist.",
        f"{image}/etc/autogpu/autogpu.toml does not exist.",
        "  The defaults are used, and there is no cap on the GPUs of one user.",
        f"To set it up: {sys.executable} -m autogpu host-setup --root {image}",
    ]
    run()
    status, said = run("--check")
    assert (status, said.splitlines()[-1]) == (0, "All is in place.")
    assert said.count(" is in place.\n") == 5
    # Without a policy as well.
    (image / "etc/autogpu/autogpu.toml").unlink()
    status, said = run("--check")
    assert said.splitlines()[-1] == "All that is required is in place."
    assert (status, f"{image}/etc/autogpu/autogpu.toml does not exist." in said) == (0, True)


def test_undo_says_what_it_left_and_why(run, image: Path) -> None:
    assert run("--undo") == (0, "There is nothing to undo.\n")
    run()
    (image / "etc/autogpu/autogpu.toml").write_text("[limits]\nper_user = 2\n")
    assert run("--undo") == (
        0,
        f"removed {image}/etc/tmpfiles.d/autogpu.conf\n"
        f"removed {image}/run/autogpu\n"
        f"left {image}/etc/autogpu/autogpu.toml, which was not written by autogpu\n",
    )


def test_undo_of_a_folder_in_use_ends_with_status_1(run, image: Path) -> None:
    run()
    folder = image / "run/autogpu"
    lease = lease_in(folder)
    status, said = run("--undo")
    lease.release()
    assert status == 1
    assert f"left {folder}, which is in use: " in said
    assert said.endswith(f"run it again later: {sys.executable} -m autogpu host-setup --undo --root {image}\n")


def test_jobs_in_the_fallback_are_mentioned_in_one_line(run, image: Path) -> None:
    fallback = image / "var/tmp/autogpu.v1"
    folder = find_folder({}, host=image / "run/autogpu", fallback=fallback)
    lease = acquire_lease(folder, lambda *_: {"GPU-0": 1}, script="train.py")
    line = (
        f"1 job holds GPUs in {fallback}: jobs started before host-setup and those started after it do not see "
        "each other until the former end.\n"
    )
    assert line in run()[1]
    assert line in run("--check")[1]
    lease.release()
    assert "see each other" not in run()[1]


def test_json_of_each(run, image: Path) -> None:
    status, said = run("--check", "--json")
    before = json.loads(said)
    assert (status, before["version"], before["root"], before["in_place"]) == (1, 1, str(image), False)
    assert {part["name"]: (part["in_place"], part["required"]) for part in before["parts"]} == {
        "boot": (False, True),
        "folder": (False, True),
        "mutex": (False, True),
        "policy": (False, False),
    }
    status, said = run("--json")
    done = json.loads(said)
    assert (status, done["in_place"], done["notes"]) == (0, True, [])
    assert [step["action"] for step in done["steps"]] == ["write", "make", "write"]
    assert json.loads(run("--check", "--json")[1])["in_place"] is True
    status, said = run("--undo", "--json")
    assert (status, len(json.loads(said)["removed"]), json.loads(said)["left"]) == (0, 3, [])


def test_line_for_boot_stands_alone_to_be_copied(run, image: Path) -> None:
    (image / "usr/bin/systemd-tmpfiles").unlink()
    line = "    install -d -m 1777 /run/autogpu && install -m 444 /dev/null /run/autogpu/mutex"
    for options in ((), ("--check",)):
        status, said = run(*options)
        assert status == 0
        assert line in said.splitlines()
