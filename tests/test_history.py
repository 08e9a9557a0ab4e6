"""What is kept of a user's runs, and what follows for the next one."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
import time

import pytest

from autogpu.history import History, advice, learned, need_of, peak_of
from autogpu.reporting.text import GIB, MIB
from tests.support.processes import in_a_fork

JOB = ("/home/a/train.py", "--batch", "32")
CONTEXT = 512 * MIB
OUT_OF_MEMORY = 0


@pytest.fixture
def kept(tmp_path):
    """The history of a user who has none yet."""
    return History({"HOME": str(tmp_path)})


def file_of(kept):
    return kept.folder / "runs"


@pytest.mark.parametrize(
    ("peaks", "ranks", "expected"),
    [
        pytest.param([], 1, None, id="no-run"),
        pytest.param([5, 4], 1, None, id="two-runs"),
        pytest.param([5, 4, 6], 1, 6, id="three"),
        pytest.param([9, 5, 4, 6], 1, 6, id="the-last-three"),
        pytest.param([5, 4, 6, OUT_OF_MEMORY], 1, None, id="out-of-memory"),
        pytest.param([5, 4, 6, OUT_OF_MEMORY, 7, 8], 1, None, id="two-since-then"),
        pytest.param([9, OUT_OF_MEMORY, OUT_OF_MEMORY, 7, 8, 6], 1, 8, id="three-since-then"),
        pytest.param([1, 9, 2, 8, 3], 2, None, id="ranks-count-together"),
        pytest.param([1, 9, 2, 8, 3, 7], 2, 9, id="largest-of-all-ranks"),
    ],
)
def test_three_clean_runs_tell_what_a_script_takes(peaks, ranks, expected):
    assert peak_of(peaks, ranks) == expected


def test_the_words_of_the_line():
    peak = int(4.7 * GIB)
    need = need_of(peak, CONTEXT)
    assert advice(peak, CONTEXT) == "its last 3 runs took at most 5.2 GiB: AUTOGPU_NEED=6GiB lets others share this GPU"
    assert learned(3, need) == "claims 5.7 GiB, learned from 3 runs"
    assert learned(1, None) == "select.need is learned from 3 runs, of which there is 1"


def test_a_run_is_kept_for_its_user_alone(kept):
    before = os.umask(0)
    try:
        kept.keep(JOB, "train.py", 5 * GIB)
    finally:
        os.umask(before)
    assert kept.folder.stat().st_mode & 0o777 == 0o700
    assert [path.name for path in kept.folder.iterdir()] == ["runs"]
    assert file_of(kept).stat().st_mode & 0o777 == 0o600
    (run,) = kept.read()
    assert run.peak_bytes == 5 * GIB
    assert kept.peaks(*JOB) == (5 * GIB,)
    assert kept.peaks(*JOB[:-1]) == ()
    text = file_of(kept).read_text()
    assert "train" not in text
    assert "batch" not in text


def test_the_same_job_of_another_user_has_another_name(tmp_path):
    for user in "ab":
        (tmp_path / user).mkdir()
        History({"HOME": str(tmp_path / user)}).keep(JOB, "train.py", 1)
    runs = [History({"HOME": str(tmp_path / user)}).read()[0] for user in "ab"]
    assert runs[0].job != runs[1].job
    assert runs[0].name != runs[1].name


@pytest.mark.parametrize(
    ("environ", "folder"),
    [
        pytest.param({"XDG_STATE_HOME": "/s", "HOME": "/h"}, "/s/autogpu", id="state"),
        pytest.param({"HOME": "/h"}, "/h/.local/state/autogpu", id="home"),
        pytest.param({"XDG_STATE_HOME": "s", "HOME": "/h"}, "/h/.local/state/autogpu", id="relative-is-ignored"),
        pytest.param({}, "None", id="no-home"),
    ],
)
def test_where_it_is(environ, folder):
    assert str(History(environ).folder) == folder


def test_runs_end_after_ninety_days_and_leave_the_file(kept):
    kept.keep(JOB, "train.py", 1)
    (run,) = kept.read()
    salt = file_of(kept).read_text()[:32]
    old = int(time.time()) - 91 * 86400
    file_of(kept).write_text(f"{salt}\n{old} {run.job} {run.name} 7\n")
    assert kept.read() == ()
    kept.keep(JOB, "train.py", 2)
    assert [run.peak_bytes for run in kept.read()] == [2]
    assert str(old) not in file_of(kept).read_text()


def test_the_file_has_a_bound(kept):
    for number in range(1, 2000):
        kept.keep(JOB, "train.py", number)
        assert file_of(kept).stat().st_size <= 64 << 10
    peaks = [run.peak_bytes for run in kept.read()]
    assert peaks == list(range(2000 - len(peaks), 2000))
    assert len(peaks) > 400


def test_what_is_damaged_counts_for_nothing_and_the_rest_holds(kept):
    kept.keep(JOB, "train.py", 1)
    with file_of(kept).open("ab") as file:
        file.write(b"12 half a li\n\xff\xfe\n")
    kept.keep(JOB, "train.py", 2)
    assert [run.peak_bytes for run in kept.read()] == [1, 2]


def corrupt(kept):
    kept.folder.mkdir(parents=True)
    file_of(kept).write_bytes(b"\x00garbage")


def linked_folder(kept):
    kept.folder.parent.mkdir(parents=True)
    (kept.folder.parent / "elsewhere").mkdir()
    kept.folder.symlink_to("elsewhere")


def linked_file(kept):
    kept.folder.mkdir(parents=True)
    (kept.folder / "other").write_text("0" * 32 + "\n")
    file_of(kept).symlink_to("other")


def a_pipe(kept):
    kept.folder.mkdir(parents=True)
    os.mkfifo(file_of(kept))


def a_file_in_its_place(kept):
    kept.folder.parent.mkdir(parents=True)
    kept.folder.write_text("")


@pytest.mark.parametrize("state", [corrupt, linked_folder, linked_file, a_pipe, a_file_in_its_place])
def test_a_folder_in_a_state_that_is_not_ours_stays_as_it_is(kept, state):
    state(kept)

    def found():
        files = [path for path in sorted(kept.folder.parent.rglob("*")) if path.is_file()]
        return [(path, path.read_bytes()) for path in files]

    before = found()
    try:
        kept.keep(JOB, "train.py", 1)
    except OSError:
        pass
    assert kept.read() == ()
    assert found() == before


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user")
def test_another_user_neither_reads_it_nor_gets_a_folder_made_for(tmp_path, kept):
    tmp_path.chmod(0o755)
    kept.keep(JOB, "train.py", 1)
    other, home = 65533, tmp_path / "others"
    home.mkdir()
    os.chown(home, other, other)
    with pytest.raises(PermissionError):  # as with sudo, which keeps HOME
        History({"HOME": str(home)}).keep(JOB, "train.py", 1)
    assert list(home.iterdir()) == []
    ran = subprocess.run(["cat", str(file_of(kept))], user=other, capture_output=True, timeout=60, check=False)
    assert b"Permission denied" in ran.stderr
    os.chown(kept.folder, other, other)
    assert kept.read() == ()


def keep_on_a_full_disk(kept):
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))  # Python ignores the signal for it
    return failure_of(kept)


def keep_where_nothing_may_be_written(kept):
    os.setgroups([])
    os.setuid(65533)
    return failure_of(kept)


def failure_of(kept):
    try:
        kept.keep(JOB, "train.py", 1)
    except OSError as error:
        return error.errno
    return None


@pytest.mark.parametrize("has_file", [False, True])
def test_a_full_disk_keeps_nothing_and_breaks_nothing(kept, has_file):
    if has_file:
        kept.keep(JOB, "train.py", 1)
    assert in_a_fork(lambda: keep_on_a_full_disk(kept)) == errno.EFBIG
    assert [path.name for path in kept.folder.iterdir()] == ["runs"] * has_file
    assert len(kept.read()) == has_file


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
def test_a_folder_that_can_only_be_read_is_left_as_it_is(kept, tmp_path):
    for folder in (*tmp_path.parents, tmp_path)[-3:]:
        folder.chmod(0o755)
    kept.folder.mkdir(parents=True)
    for folder in (tmp_path, kept.folder):
        os.chown(folder, 65533, 65533)
    kept.folder.chmod(0o500)
    assert in_a_fork(lambda: keep_where_nothing_may_be_written(kept)) == errno.EACCES
    assert list(kept.folder.iterdir()) == []


KEEP = """
import sys
from autogpu.history import History
for number in range(int(sys.argv[2]), int(sys.argv[2]) + 100):
    History({"HOME": sys.argv[1]}).keep(("a",), "a", number)
"""


def test_processes_that_end_at_once_all_have_their_run_kept(tmp_path, kept):
    kept.keep(("a",), "a", 1)
    begun = [subprocess.Popen([sys.executable, "-c", KEEP, str(tmp_path), str(1000 * each)]) for each in (1, 2, 3)]
    assert [process.wait(60) for process in begun] == [0, 0, 0]
    assert len(kept.read()) == 301


def test_forget(kept):
    assert not kept.forget()
    kept.keep(JOB, "train.py", 1)
    assert kept.forget()
    assert kept.read() == ()
    file_of(kept).write_bytes(b"something else\n")
    assert not kept.forget()
    assert file_of(kept).exists()
