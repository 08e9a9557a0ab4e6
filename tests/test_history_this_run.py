"""What a process learns from the last runs of its script, and which runs are kept; the framework is a fake."""

import sys

import pytest

from autogpu.history import History, runs_of
from autogpu.selection.grants import DASK_WORKER
from autogpu.text import GIB
from tests.support.processes import Process, in_a_fork
from tests.support.values import gpu

ONE = (gpu(0),)
BUSY = (gpu(0, pids=[7], used_gib=9, busy=90),)


@pytest.fixture
def script(tmp_path, monkeypatch):
    """Name the script and the arguments of this process."""

    def named(*arguments, name="train.py"):
        (tmp_path / name).touch()
        monkeypatch.setattr(sys, "argv", [str(tmp_path / name), *arguments])

    named()
    return named


@pytest.fixture
def runs(script, tmp_path):
    """Let the script run to its end, with a framework that counts so many GiB; its process."""

    def run(*peaks, gpus=ONE, said=None, error=None, **options):
        process = None
        for peak in peaks:
            process = Process(tmp_path, *gpus, **options).imports()
            process.framework.peak = int(peak * GIB)
            process.framework.take(**(said or {}))
            process.allocation.this_run._at_end(error)
            process.allocation.release()
        return process

    return run


def raised(error, cause):
    error.__cause__ = cause
    return error


def kept(folder):
    return [int(run.split()[-1]) / GIB for run in runs_of(History({"HOME": str(folder)}).read())]


def test_line_names_no_runs_until_three_are_known(runs):
    assert "runs" not in runs(2, 4, 3).lines[0]
    hint = "; by its last 3 runs, AUTOGPU_NEED=5GiB should be enough and lets others share this GPU"
    assert runs(1).lines[0].endswith(hint)


@pytest.mark.parametrize(
    ("peak", "options", "said"),
    [
        (4.7, {}, "by its last 3 runs, AUTOGPU_NEED=6GiB should be enough and lets others share this GPU"),
        (18, {}, ""),
        (2, {"AUTOGPU_NEED": "5GiB"}, ""),
        (2, {"AUTOGPU_LIMIT": "5GiB"}, ""),
        (2, {"AUTOGPU_LEVEL": "quiet"}, ""),
        (2, {"AUTOGPU_HISTORY": "false"}, ""),
    ],
)
def test_what_is_said_of_three_runs(runs, peak, options, said):
    runs(peak, peak, peak)
    last = runs(peak, **options)
    told = "".join(last.lines)
    assert ("last 3 runs" in told) == bool(said)
    assert told.endswith(said)


OTHERS = {
    "arguments": (["--batch", "64"], "train.py", {}, ONE),
    "script": ([], "other.py", {}, ONE),
    "policy": ([], "train.py", {"AUTOGPU_GROWTH": "0"}, ONE),
    "count": ([], "train.py", {"AUTOGPU_COUNT": "2"}, ONE),
    "model": ([], "train.py", {}, (gpu(0, name="NVIDIA A100"),)),
}


@pytest.mark.parametrize(("arguments", "name", "options", "gpus"), OTHERS.values(), ids=OTHERS)
def test_other_runs_are_no_runs_of_this_job(runs, script, arguments, name, options, gpus):
    runs(2, 2, 2)
    script(*arguments, name=name)
    assert "last 3 runs" not in runs(2, gpus=gpus, **options).lines[0]


@pytest.mark.parametrize(
    ("gpus", "options", "said"),
    [
        pytest.param(BUSY, {}, {}, id="best-effort"),
        pytest.param(ONE, {"AUTOGPU_LIMIT": "5GiB"}, {}, id="limit"),
        pytest.param(ONE, {}, {"fraction": 0.5}, id="the-scripts-fraction"),
        pytest.param(ONE, {}, {"limits": (GIB,)}, id="the-scripts-limit"),
        pytest.param(ONE, {"AUTOGPU_HISTORY": "false"}, {}, id="switched-off"),
        pytest.param(ONE, {"AUTOGPU_COUNT": "0"}, {}, id="no-gpu"),
        pytest.param(ONE, {DASK_WORKER: "w"}, {}, id="worker"),
    ],
)
def test_a_run_that_teaches_nothing_is_not_kept(runs, tmp_path, gpus, options, said):
    runs(2, gpus=gpus, said=said, **options)
    assert kept(tmp_path) == []


ENDS = {
    "another-error": (ValueError("shape"), ONE, [2, 2, 2]),
    "interrupted": (KeyboardInterrupt(), ONE, [2, 2, 2]),
    "out-of-memory": (MemoryError(), ONE, [2, 2, 2, 0]),
    "an-error-that-it-led-to": (raised(RuntimeError("step 7"), MemoryError()), ONE, [2, 2, 2, 0]),
    "out-of-memory-under-a-limit": (MemoryError(), BUSY, [2, 2, 2, 0]),
}


@pytest.mark.parametrize(("error", "gpus", "after"), ENDS.values(), ids=ENDS)
def test_a_run_that_ends_by_an_error(runs, tmp_path, error, gpus, after):
    runs(2, 2, 2)
    runs(9, error=error, gpus=gpus)
    assert kept(tmp_path) == after


@pytest.mark.parametrize(
    "argv", [["-c"], ["notebook"], [""], ["-"], [], None, [None], ["/no/such/file"], ["x" * 5000], ["a\0"]]
)
def test_program_without_a_file_keeps_no_runs(runs, tmp_path, monkeypatch, argv):
    monkeypatch.setattr(sys, "argv", argv)
    if argv == ["notebook"]:
        (tmp_path / "notebook").touch()
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "ps1", "In : ", raising=False)
    assert "last 3 runs" not in runs(2, 2, 2, 2).lines[0]
    assert kept(tmp_path) == []


def test_a_forked_child_keeps_nothing_of_its_parents(runs, tmp_path):
    process = runs(2)
    in_a_fork(lambda: process.allocation.this_run._at_end(None))
    assert kept(tmp_path) == [2]
    process.allocation.this_run._at_end(None)
    assert kept(tmp_path) == [2, 2]


@pytest.mark.parametrize(("peaks", "after"), [((2, 2), [4]), ((2, 0), [])])
def test_what_two_frameworks_took_is_added_if_both_have_counted(script, tmp_path, peaks, after):
    process = Process(tmp_path, *ONE).imports()
    for framework, peak in zip((process.framework, process.imports_another()), peaks):
        framework.peak = peak * GIB
        framework.take()
    process.allocation.this_run._at_end(None)
    assert kept(tmp_path) == after


@pytest.mark.parametrize("error", [OSError, KeyError, KeyboardInterrupt])
def test_whatever_fails_at_the_end_is_not_seen(runs, tmp_path, capfd, error):
    process = runs(2)

    def fail():
        raise error

    process.framework.needed_bytes = fail
    process.allocation.this_run._at_end(None)
    assert kept(tmp_path) == [2]
    assert capfd.readouterr() == ("", "")
