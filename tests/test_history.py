"""The history of a user's runs, and the estimates for the next run."""

import errno
import os
import resource
import subprocess
import sys
import tempfile
import time
from itertools import takewhile
from pathlib import Path

import pytest

from autogpu.history import History, Run, key_of, last_runs_of, need_of, runs_of
from autogpu.selection.model import LastRuns
from tests.support.processes import in_a_fork

JOB = ("/home/a/train.py", "an argument")


@pytest.fixture
def kept(tmp_path):
    """The history of a user, without any run."""
    return History({"HOME": str(tmp_path)})


def file_of(kept):
    return kept.folder / "runs"


def used(kept, *job):
    """Return the bytes that each run of a job used, oldest first."""
    text = kept.read()
    return [run.used_bytes for run in runs_of(text, key_of(text, *(job or JOB)))]


def failed(used_bytes=0):
    return Run(used_bytes, has_failed=True)


@pytest.mark.parametrize(
    ("runs", "expected"),
    [
        pytest.param([], None, id="no-runs"),
        pytest.param([Run(5)], (5, False), id="one-run"),
        pytest.param([Run(9), Run(5), Run(7), Run(6)], (7, False), id="largest-of-the-last-three"),
        pytest.param([Run(5), failed(9)], (9, True), id="failed-after-success"),
        pytest.param([Run(5), failed(8), failed(9), failed(7)], (9, True), id="largest-failure-after-success"),
        pytest.param([failed(9)], (9, True), id="never-succeeded"),
        pytest.param([Run(5), failed(9), Run(6)], (6, False), id="succeeded-after-failure"),
        pytest.param([Run(5), failed(3)], (5, False), id="failed-with-less-memory"),
        pytest.param([Run(5), failed()], (5, False), id="failed-at-an-unknown-size"),
        pytest.param([failed()], None, id="only-failed-at-an-unknown-size"),
    ],
)
def test_last_runs_are_the_largest_of_three_and_of_later_failures(runs, expected):
    found = last_runs_of(runs, "train.py")
    assert found == (None if expected is None else LastRuns("train.py", *expected))


def needs(*sizes):
    return [Run(1, size) if size else failed() for size in sizes]


@pytest.mark.parametrize(
    ("runs", "ranks", "expected"),
    [
        pytest.param([], 1, 0, id="no-run"),
        pytest.param(needs(5, 4), 1, 0, id="two-runs"),
        pytest.param(needs(9, 5, 4, 6), 1, 6, id="largest-of-the-last-three"),
        pytest.param(needs(5, 4, 6, 0, 7, 8), 1, 0, id="two-runs-after-out-of-memory"),
        pytest.param(needs(9, 0, 0, 7, 8, 6), 1, 8, id="three-runs-after-out-of-memory"),
        pytest.param([*needs(5, 4), Run(9), *needs(6)], 1, 6, id="capped-run-does-not-count"),
        pytest.param(needs(1, 9, 2, 8, 3), 2, 0, id="ranks-count-together"),
        pytest.param(needs(1, 9, 2, 8, 3, 7), 2, 9, id="largest-of-all-ranks"),
    ],
)
def test_need_is_learned_from_three_successful_runs(runs, ranks, expected):
    assert need_of(runs, ranks) == expected


@pytest.mark.parametrize("run", [Run(7, 8), Run(7), failed(7), failed()])
def test_run_is_read_as_it_was_written(kept, run):
    kept.keep(JOB, run)
    assert runs_of(kept.read(), key_of(kept.read(), *JOB)) == [run]


def test_history_is_private_and_contains_no_script_name(kept, tmp_path):
    before = os.umask(0)
    try:
        kept.keep(JOB, Run(5))
    finally:
        os.umask(before)
    assert kept.folder.stat().st_mode & 0o777 == 0o700
    assert [path.name for path in kept.folder.iterdir()] == ["runs"]
    assert file_of(kept).stat().st_mode & 0o777 == 0o600
    assert (used(kept), used(kept, *JOB[:-1])) == ([5], [])
    assert not {"train", "argument"} & set(file_of(kept).read_text().replace(".", " ").split())
    other = History({"HOME": str(tmp_path / "other")})
    other.keep(JOB, Run(5))
    assert key_of(kept.read(), *JOB) != key_of(other.read(), *JOB)


@pytest.mark.parametrize(
    ("environ", "folder"),
    [
        pytest.param({"XDG_STATE_HOME": "/s", "HOME": "/h"}, "/s/autogpu", id="xdg-state-home"),
        pytest.param({"XDG_STATE_HOME": "s", "HOME": "/h"}, "/h/.local/state/autogpu", id="relative-path-is-ignored"),
        pytest.param({}, "None", id="no-home"),
    ],
)
def test_history_folder_is_below_xdg_state_home_or_home(environ, folder):
    assert str(History(environ).folder) == folder


def test_old_and_damaged_lines_are_ignored_and_then_removed(kept):
    kept.keep(JOB, Run(1))
    old = int(time.time()) - 91 * 86400
    with file_of(kept).open("ab") as file:
        file.write(f"{old} {key_of(kept.read(), *JOB)} succeeded 7 7\n12 half a li\n".encode() + b"\xff\xfe\n")
    assert used(kept) == [1]
    kept.keep(JOB, Run(2))
    assert used(kept) == [1, 2]
    assert len(file_of(kept).read_text().splitlines()) == 3


def test_history_file_above_the_read_limit_is_rewritten(kept):
    kept.keep(JOB, Run(1))
    with file_of(kept).open("ab") as file:
        file.write(bytes(300 << 10))
    kept.keep(JOB, Run(2))
    assert used(kept) == [1, 2]
    assert file_of(kept).stat().st_size < 200


def test_history_file_has_a_maximum_size(kept):
    for number in range(1, 1600):
        kept.keep(JOB, Run(number))
        assert file_of(kept).stat().st_size <= 80 << 10
    found = used(kept)
    assert found == list(range(1600 - len(found), 1600))
    assert len(found) > 400


# Files and folders that may stand in place of the history folder. Its parent folder exists.
STATES = {
    "corrupt": lambda folder: (folder.mkdir(), (folder / "runs").write_bytes(b"\x00garbage")),
    "linked-folder": lambda folder: ((folder.parent / "other").mkdir(), folder.symlink_to("other")),
    "linked-file": lambda folder: (
        folder.mkdir(),
        (folder / "other").write_text("0" * 32 + "\n"),
        (folder / "runs").symlink_to("other"),
    ),
    "pipe": lambda folder: (folder.mkdir(), os.mkfifo(folder / "runs")),
    "file": lambda folder: folder.write_text(""),
}


@pytest.mark.parametrize("state", STATES.values(), ids=STATES)
def test_foreign_history_folder_or_file_is_left_alone(kept, state):
    kept.folder.parent.mkdir(parents=True)
    state(kept.folder)

    def found():
        return {path: path.is_file() and path.read_bytes() for path in kept.folder.parent.rglob("*")}

    before = found()
    with pytest.raises(OSError, match=r".*"):
        kept.keep(JOB, Run(1))
    assert kept.read() == ""
    assert found() == before


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user")
def test_history_of_another_user_is_neither_read_nor_created(tmp_path, kept):
    tmp_path.chmod(0o755)
    kept.keep(JOB, Run(1))
    other, home = 65533, tmp_path / "others"
    home.mkdir()
    os.chown(home, other, other)
    # The other user's link leads to a folder that belongs to root and that all users need.
    shared = tmp_path / "run" / "autogpu"
    shared.mkdir(0o755, parents=True)
    (home / ".local").mkdir()
    (home / ".local" / "state").symlink_to(shared.parent)
    with pytest.raises(PermissionError):  # as with sudo, which keeps HOME
        History({"HOME": str(home)}).keep(JOB, Run(1))
    assert (list(shared.iterdir()), shared.stat().st_mode & 0o777) == ([], 0o755)
    ran = subprocess.run(["cat", str(file_of(kept))], user=other, capture_output=True, timeout=60, check=False)
    assert b"Permission denied" in ran.stderr
    os.chown(kept.folder, other, other)
    assert kept.read() == ""


def failure_of(kept, prepare):
    prepare()
    try:
        kept.keep(JOB, Run(1))
    except OSError as error:
        return error.errno
    return None


@pytest.mark.parametrize("has_file", [False, True])
def test_full_disk_keeps_the_old_runs_and_adds_none(kept, has_file):
    if has_file:
        kept.keep(JOB, Run(1))
    # Python ignores SIGXFSZ, so a write fails with EFBIG.
    full = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))  # noqa: E731
    assert in_a_fork(lambda: failure_of(kept, full)) == errno.EFBIG
    assert [path.name for path in kept.folder.iterdir()] == ["runs"] * has_file
    assert len(used(kept)) == has_file


def test_line_cut_by_a_full_disk_loses_only_that_run(kept):
    kept.keep(JOB, Run(1))
    with file_of(kept).open("a") as file:
        file.write("12345 abc")
    written = file_of(kept).stat().st_ino
    for peak in (2, 3):
        kept.keep(JOB, Run(peak))
    assert used(kept) == [1, 2, 3]
    # Another process may still be writing that line. In a new file its run would be lost.
    assert file_of(kept).stat().st_ino == written


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
def test_read_only_history_folder_is_left_alone(kept, tmp_path):
    # Another user has to enter the folders that pytest made. The system's folder for temporary files stays as it is.
    for folder in takewhile(lambda folder: folder != Path(tempfile.gettempdir()), (tmp_path, *tmp_path.parents)):
        folder.chmod(0o755)
    kept.folder.mkdir(parents=True)
    for folder in (tmp_path, kept.folder):
        os.chown(folder, 65533, 65533)
    kept.folder.chmod(0o500)
    assert in_a_fork(lambda: failure_of(kept, lambda: (os.setgroups([]), os.setuid(65533)))) == errno.EACCES
    assert list(kept.folder.iterdir()) == []


KEEP = """
import sys
import tempfile
from autogpu.history import History, Run
for number in range(100):
    History({"HOME": sys.argv[1]}).keep(("a",), Run(1))
"""


def test_runs_of_processes_that_end_together_are_all_kept(tmp_path, kept):
    begun = [subprocess.Popen([sys.executable, "-c", KEEP, str(tmp_path)]) for _ in "123"]
    assert [process.wait(60) for process in begun] == [0, 0, 0]
    assert len(used(kept, "a")) == 300
