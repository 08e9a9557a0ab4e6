"""The lines that autogpu printed about a user's jobs: autogpu keeps them, and ``status`` shows them to that user."""

import os

import pytest

from autogpu.cli.status_screen import View, lines
from autogpu.frozen import replace
from autogpu.history import JobLines
from autogpu.status.snapshot import read_leases
from tests.support.host_states import holder, host
from tests.support.values import gpu, inventory

MINE, OTHER = "job.1000.7.0123abcd", "job.1000.8.0123abcd"
LINES = ["GPU 0 (24.0 of 24.0 GiB free): the only one here; memory allocated as needed", "6.0 GiB reserved"]


@pytest.fixture
def environ(tmp_path):
    return {"HOME": str(tmp_path), "AUTOGPU_LEASE_DIR": str(tmp_path / "leases")}


@pytest.fixture
def file(tmp_path):
    return tmp_path / ".local/state/autogpu/lines"


def test_lines_are_kept_for_each_lease_and_for_the_user_alone(environ, file):
    job_lines = JobLines(environ)
    assert job_lines.read() == {}
    job_lines.keep(MINE, LINES[:1])
    job_lines.keep(OTHER, LINES)
    job_lines.keep(MINE, LINES[1:])
    assert job_lines.read() == {MINE: tuple(LINES), OTHER: tuple(LINES)}
    assert file.stat().st_mode & 0o777 == 0o600


def test_file_of_lines_never_grows_above_its_limit(environ, file):
    job_lines = JobLines(environ)
    for number in range(1000):
        job_lines.keep(f"job.1000.{number}.0123abcd", LINES)
        assert file.stat().st_size <= 64 << 10
    kept = job_lines.read()
    assert 100 < len(kept) < 1000
    assert kept["job.1000.999.0123abcd"] == tuple(LINES)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(b"\xff\xfe\x00" * 40000, id="binary-without-lines"),
        pytest.param(b"job.1000.7.0123abcd\n\n- -\n", id="without-a-text"),
        pytest.param(b"", id="empty"),
    ],
)
def test_damaged_file_of_lines_is_read_as_empty_and_can_be_written(environ, file, text):
    file.parent.mkdir(parents=True)
    file.write_bytes(text)
    assert JobLines(environ).read() == {}
    JobLines(environ).keep(MINE, LINES)
    assert JobLines(environ).read() == {MINE: tuple(LINES)}


def test_link_in_place_of_the_file_is_not_followed(environ, file, tmp_path):
    file.parent.mkdir(parents=True)
    target = tmp_path / "another"
    target.write_text(f"{MINE} a line\n")
    file.symlink_to(target)
    assert JobLines(environ).read() == {}
    with pytest.raises(OSError, match="symbolic"):
        JobLines(environ).keep(MINE, LINES)
    assert target.read_text() == f"{MINE} a line\n"


def test_lines_of_a_file_of_another_user_are_not_read(environ, file):
    JobLines(environ).keep(MINE, LINES)
    if os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    os.chown(file, 65534, 65534)
    assert JobLines(environ).read() == {}


@pytest.mark.parametrize(
    ("uid", "expected"),
    [
        pytest.param(1000, tuple(LINES), id="own-job"),
        # Any user can give a lease this name.
        pytest.param(1001, (), id="lease-of-another-user-by-the-same-name"),
    ],
)
def test_status_shows_the_lines_of_own_jobs(uid, expected):
    mine = replace(holder(MINE, (0, 24)), uid=uid)
    (shown,) = host(inventory(gpu(0, pids=[7])), [mine], printed={MINE: LINES}).gpus
    assert shown.jobs[0].printed == expected


def test_two_jobs_with_the_same_lines_both_show_them():
    jobs = [holder(MINE, (0, 4), pid=4121, group=MINE), holder(OTHER, (0, 4), pid=4122, group=OTHER)]
    shown = host(inventory(gpu(0, pids=[4121, 4122])), jobs, printed={MINE: LINES, OTHER: LINES})
    page = [line.plain.strip() for line in lines(shown, View(120))]
    assert page.count(f"autogpu: {LINES[0]}") == 2


def test_lines_are_read_with_the_leases(environ, tmp_path):
    (tmp_path / "leases").mkdir(mode=0o1777)
    (tmp_path / "leases").chmod(0o1777)
    JobLines(environ).keep(MINE, LINES)
    assert read_leases(environ).printed == {MINE: tuple(LINES)}
