"""What is kept of a user's runs, and what follows for the next one."""

import errno
import os
import resource
import subprocess
import sys
import time

import pytest

from autogpu.history import History, key_of, peak_of, runs_of
from tests.support.processes import in_a_fork

JOB = ("/home/a/train.py", "--batch", "32")
OUT_OF_MEMORY = 0


@pytest.fixture
def kept(tmp_path):
    """The history of a user who has none yet."""
    return History({"HOME": str(tmp_path)})


def file_of(kept):
    return kept.folder / "runs"


def peaks(kept, *job):
    """Of a job, oldest first."""
    text = kept.read()
    return [int(run.split()[-1]) for run in runs_of(text, key_of(text, *(job or JOB)))]


@pytest.mark.parametrize(
    ("runs", "ranks", "expected"),
    [
        pytest.param([], 1, 0, id="no-run"),
        pytest.param([5, 4], 1, 0, id="two-runs"),
        pytest.param([9, 5, 4, 6], 1, 6, id="the-last-three"),
        pytest.param([5, 4, 6, OUT_OF_MEMORY, 7, 8], 1, 0, id="two-since-out-of-memory"),
        pytest.param([9, OUT_OF_MEMORY, OUT_OF_MEMORY, 7, 8, 6], 1, 8, id="three-since-then"),
        pytest.param([1, 9, 2, 8, 3], 2, 0, id="ranks-count-together"),
        pytest.param([1, 9, 2, 8, 3, 7], 2, 9, id="largest-of-all-ranks"),
    ],
)
def test_three_clean_runs_tell_what_a_script_takes(kept, runs, ranks, expected):
    for run in runs:
        kept.keep(JOB, run)
    assert peak_of(kept.read(), JOB, ranks) == expected


def test_a_run_is_kept_for_its_user_alone_and_says_nothing_to_others(kept, tmp_path):
    before = os.umask(0)
    try:
        kept.keep(JOB, 5)
    finally:
        os.umask(before)
    assert kept.folder.stat().st_mode & 0o777 == 0o700
    assert [path.name for path in kept.folder.iterdir()] == ["runs"]
    assert file_of(kept).stat().st_mode & 0o777 == 0o600
    assert (peaks(kept), peaks(kept, *JOB[:-1])) == ([5], [])
    assert not {"train", "batch"} & set(file_of(kept).read_text().replace(".", " ").split())
    other = History({"HOME": str(tmp_path / "other")})
    other.keep(JOB, 5)
    assert key_of(kept.read(), *JOB) != key_of(other.read(), *JOB)


@pytest.mark.parametrize(
    ("environ", "folder"),
    [
        pytest.param({"XDG_STATE_HOME": "/s", "HOME": "/h"}, "/s/autogpu", id="state"),
        pytest.param({"XDG_STATE_HOME": "s", "HOME": "/h"}, "/h/.local/state/autogpu", id="relative-is-ignored"),
        pytest.param({}, "None", id="no-home"),
    ],
)
def test_where_it_is(environ, folder):
    assert str(History(environ).folder) == folder


def test_what_is_old_or_damaged_counts_for_nothing_and_leaves_the_file(kept):
    kept.keep(JOB, 1)
    old = int(time.time()) - 91 * 86400
    with file_of(kept).open("ab") as file:
        file.write(f"{old} {key_of(kept.read(), *JOB)} 7\n12 half a li\n".encode() + b"\xff\xfe\n")
    assert peaks(kept) == [1]
    kept.keep(JOB, 2)
    assert peaks(kept) == [1, 2]
    assert len(file_of(kept).read_text().splitlines()) == 3


def test_the_file_has_a_bound(kept):
    for number in range(1, 1600):
        kept.keep(JOB, number)
        assert file_of(kept).stat().st_size <= 64 << 10
    found = peaks(kept)
    assert found == list(range(1600 - len(found), 1600))
    assert len(found) > 400


# What may be in the place of the folder, whose parent is there.
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
def test_a_folder_in_a_state_that_is_not_ours_stays_as_it_is(kept, state):
    kept.folder.parent.mkdir(parents=True)
    state(kept.folder)

    def found():
        return {path: path.is_file() and path.read_bytes() for path in kept.folder.parent.rglob("*")}

    before = found()
    with pytest.raises(OSError, match=r".*"):
        kept.keep(JOB, 1)
    assert kept.read() == ""
    assert found() == before


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user")
def test_another_user_neither_reads_it_nor_gets_a_folder_made_for(tmp_path, kept):
    tmp_path.chmod(0o755)
    kept.keep(JOB, 1)
    other, home = 65533, tmp_path / "others"
    home.mkdir()
    os.chown(home, other, other)
    # A link of the other user's, to a folder of root's that all users need.
    shared = tmp_path / "run" / "autogpu"
    shared.mkdir(0o755, parents=True)
    (home / ".local").mkdir()
    (home / ".local" / "state").symlink_to(shared.parent)
    with pytest.raises(PermissionError):  # as with sudo, which keeps HOME
        History({"HOME": str(home)}).keep(JOB, 1)
    assert (list(shared.iterdir()), shared.stat().st_mode & 0o777) == ([], 0o755)
    ran = subprocess.run(["cat", str(file_of(kept))], user=other, capture_output=True, timeout=60, check=False)
    assert b"Permission denied" in ran.stderr
    os.chown(kept.folder, other, other)
    assert kept.read() == ""


def failure_of(kept, prepare):
    prepare()
    try:
        kept.keep(JOB, 1)
    except OSError as error:
        return error.errno
    return None


@pytest.mark.parametrize("has_file", [False, True])
def test_a_full_disk_keeps_nothing_and_breaks_nothing(kept, has_file):
    if has_file:
        kept.keep(JOB, 1)
    # Python ignores the signal for it.
    full = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))  # noqa: E731
    assert in_a_fork(lambda: failure_of(kept, full)) == errno.EFBIG
    assert [path.name for path in kept.folder.iterdir()] == ["runs"] * has_file
    assert len(peaks(kept)) == has_file


def test_a_line_that_a_full_disk_has_cut_costs_that_run_alone(kept):
    kept.keep(JOB, 1)
    with file_of(kept).open("a") as file:
        file.write("12345 abc")
    written = file_of(kept).stat().st_ino
    for peak in (2, 3):
        kept.keep(JOB, peak)
    assert peaks(kept) == [1, 2, 3]
    # It may be another process's that goes on with it: in a new file its run would be lost.
    assert file_of(kept).stat().st_ino == written


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
def test_a_folder_that_can_only_be_read_is_left_as_it_is(kept, tmp_path):
    for folder in (*tmp_path.parents, tmp_path)[-3:]:
        folder.chmod(0o755)
    kept.folder.mkdir(parents=True)
    for folder in (tmp_path, kept.folder):
        os.chown(folder, 65533, 65533)
    kept.folder.chmod(0o500)
    assert in_a_fork(lambda: failure_of(kept, lambda: (os.setgroups([]), os.setuid(65533)))) == errno.EACCES
    assert list(kept.folder.iterdir()) == []


KEEP = """
import sys
from autogpu.history import History
for number in range(100):
    History({"HOME": sys.argv[1]}).keep(("a",), 1)
"""


def test_processes_that_end_at_once_all_have_their_run_kept(tmp_path, kept):
    kept.keep(("a",), 1)
    begun = [subprocess.Popen([sys.executable, "-c", KEEP, str(tmp_path)]) for _ in "123"]
    assert [process.wait(60) for process in begun] == [0, 0, 0]
    assert len(runs_of(kept.read())) == 301
