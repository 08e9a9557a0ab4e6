"""The runs of a script that autogpu keeps, and the last runs that its next process reads. The framework is a fake."""

import multiprocessing
import sys

import pytest

from autogpu.caps import CONTEXT_BYTES
from autogpu.engines.model import DASK_WORKER
from autogpu.history import History
from autogpu.selection.model import LastRuns
from autogpu.text import GIB
from tests.support.processes import Process, in_a_fork
from tests.support.values import gpu

ONE = (gpu(0),)
BUSY = (gpu(0, pids=[7], used_gib=9, busy=90),)


@pytest.fixture
def script(tmp_path, monkeypatch):
    """Make ``train.py`` the script of this process. Return a function that sets its arguments or another script."""

    def named(*arguments, name="train.py"):
        (tmp_path / name).touch()
        monkeypatch.setattr(sys, "argv", [str(tmp_path / name), *arguments])

    named()
    return named


@pytest.fixture
def runs(script, tmp_path):
    """Return a function that runs the script once for each peak (GiB) of its framework and returns the last process."""

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
    """Return (ending, GiB used, GiB needed) of each run, without the CUDA context; 0 if a size is unknown."""
    lines = [line.split()[2:] for line in History({"HOME": str(folder)}).read().splitlines()[1:]]
    return [(ended, *(max(0, int(used) - CONTEXT_BYTES) / GIB, int(needed) / GIB)) for ended, used, needed in lines]


def succeeded(gib):
    return "succeeded", gib, gib


def test_line_on_a_shared_gpu_suggests_one_need(runs):
    runs(2, 4, 3)
    _, notes = runs(1, gpus=BUSY).lines
    assert notes.count("AUTOGPU_NEED") == 1
    assert "; to reserve 5 GiB: AUTOGPU_NEED=5GiB" in notes


def test_line_mentions_the_last_runs_only_after_three_of_them(runs):
    assert len(runs(2, 4, 3).lines) == 1
    assert runs(1).lines[1] == "AUTOGPU_NEED=5GiB (enough for the last 3 runs) would let other jobs share this GPU"


@pytest.mark.parametrize(
    ("peak", "options", "said"),
    [
        (4.7, {}, "AUTOGPU_NEED=6GiB (enough for the last 3 runs) would let other jobs share this GPU"),
        (18, {}, ""),
        (2, {"AUTOGPU_NEED": "5GiB"}, ""),
        (2, {"AUTOGPU_LIMIT": "5GiB"}, ""),
        (2, {"AUTOGPU_LEVEL": "quiet"}, ""),
        (2, {"AUTOGPU_HISTORY": "false"}, ""),
    ],
)
def test_need_is_suggested_after_three_runs_only_if_it_would_help(runs, peak, options, said):
    runs(peak, peak, peak)
    last = runs(peak, **options)
    told = "".join(last.lines)
    assert ("last 3 runs" in told) == bool(said)
    assert told.endswith(said)


OTHERS = {
    "script": ("other.py", ONE),
    "gpu-model": ("train.py", (gpu(0, name="NVIDIA A100"),)),
}


@pytest.mark.parametrize(("name", "gpus"), OTHERS.values(), ids=OTHERS)
def test_runs_of_another_script_or_gpu_model_do_not_count(runs, script, name, gpus):
    runs(2, 2, 2)
    script(name=name)
    assert len(runs(2, gpus=gpus).lines) == 1


def test_runs_with_other_arguments_count(runs, script):
    runs(2, 2, 2)
    script("--learning-rate", "0.1")
    assert "last 3 runs" in runs(2).lines[1]


@pytest.mark.parametrize(
    ("gpus", "options", "said"),
    [
        pytest.param(ONE, {"AUTOGPU_HISTORY": "false"}, {}, id="history-off"),
        pytest.param(ONE, {"AUTOGPU_COUNT": "0"}, {}, id="no-gpu"),
        pytest.param(ONE, {DASK_WORKER: "w"}, {}, id="dask-worker"),
    ],
)
def test_run_without_a_gpu_a_script_or_a_history_is_not_kept(runs, tmp_path, gpus, options, said):
    runs(2, gpus=gpus, said=said, **options)
    assert kept(tmp_path) == []


@pytest.mark.parametrize(
    ("gpus", "options", "said"),
    [
        pytest.param(BUSY, {}, {}, id="cap-on-a-shared-gpu"),
        pytest.param(ONE, {"AUTOGPU_LIMIT": "5GiB"}, {}, id="policy-limit"),
        pytest.param(ONE, {}, {"fraction": 0.5}, id="scripts-fraction"),
        pytest.param(ONE, {}, {"limits": (GIB,)}, id="scripts-limit"),
    ],
)
def test_capped_run_is_kept_with_its_use_but_without_a_need(runs, tmp_path, gpus, options, said):
    runs(2, gpus=gpus, said=said, **options)
    assert kept(tmp_path) == [("succeeded", 2, 0)]


def test_run_on_gpus_of_two_models_is_kept_for_each_model(runs, tmp_path):
    runs(2, gpus=(gpu(0), gpu(1, name="NVIDIA A100")), AUTOGPU_COUNT="2")
    assert kept(tmp_path) == [succeeded(2)] * 2


ENDS = {
    "another-error": (ValueError("shape"), 9, ONE, []),
    "interrupted": (KeyboardInterrupt(), 9, ONE, []),
    "out-of-memory": (MemoryError(), 9, ONE, [("failed", 10, 0)]),
    "caused-by-out-of-memory": (raised(RuntimeError("step 7"), MemoryError()), 9, ONE, [("failed", 10, 0)]),
    "out-of-memory-under-a-cap": (MemoryError(), 14, BUSY, [("failed", 15, 0)]),
    "out-of-memory-in-pieces-under-a-cap": (MemoryError(), 9, BUSY, [("failed", 15.5, 0)]),
    "out-of-memory-with-an-unknown-peak": (MemoryError(), 0, ONE, [("failed", 1, 0)]),
    "out-of-memory-above-the-gpus-size": (MemoryError(), 23, ONE, [("failed", 0, 0)]),
}


@pytest.mark.parametrize(("error", "peak", "gpus", "after"), ENDS.values(), ids=ENDS)
def test_failed_run_is_kept_if_it_ran_out_of_memory(runs, tmp_path, error, peak, gpus, after):
    runs(peak, error=error, gpus=gpus)
    assert kept(tmp_path) == after


def last_runs(folder, *devices, **options):
    """Return the last runs as the next process of the script reads them."""
    return Process(folder, *ONE, **options).imports().allocation.this_run.last_runs(devices)


def test_last_runs_are_those_of_the_script_on_each_model(runs, tmp_path):
    runs(9, error=MemoryError())
    runs(3)
    last = LastRuns("train.py", 3 * GIB + CONTEXT_BYTES)
    assert last_runs(tmp_path, *ONE, gpu(1, name="NVIDIA A100")) == {ONE[0].name: last}
    runs(9, error=MemoryError())
    assert last_runs(tmp_path, *ONE) == {ONE[0].name: LastRuns("train.py", 10 * GIB + CONTEXT_BYTES, has_failed=True)}


def test_run_with_more_memory_than_the_gpu_has_is_ignored(runs, tmp_path):
    runs(3)
    file = tmp_path / ".local/state/autogpu/runs"
    file.write_text(file.read_text().replace(str(3 * GIB + CONTEXT_BYTES), "9999999999999999"))
    assert last_runs(tmp_path, *ONE) == {}


def test_worker_of_a_program_reads_no_last_runs(runs, tmp_path):
    reading, writing = multiprocessing.Pipe(duplex=False)

    def work():
        runs(3)
        writing.send((kept(tmp_path), last_runs(tmp_path, *ONE)))

    worker = multiprocessing.get_context("fork").Process(target=work)
    worker.start()
    assert reading.poll(60) and reading.recv() == ([succeeded(3)], {})
    worker.join(60)


ONE_RANK_PER_HOST = {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "RANK": "0", "WORLD_SIZE": "2"}
RANK = {"OMPI_COMM_WORLD_LOCAL_RANK": "0", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}
SLURM = {"SLURM_JOB_ID": "7", "SLURM_NODEID": "0", "SLURM_JOB_GPUS": "0", "CUDA_VISIBLE_DEVICES": "0"}


@pytest.mark.parametrize(
    "options",
    [RANK, ONE_RANK_PER_HOST, SLURM, {"AUTOGPU_HISTORY": "false"}],
    ids=["rank", "rank-alone-on-its-host", "slurm-grant", "no-history"],
)
def test_last_runs_are_empty_for_ranks_grants_or_without_history(runs, tmp_path, options):
    runs(3, **options)
    assert last_runs(tmp_path, *ONE, **options) == {}


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


def test_forked_child_does_not_keep_its_parents_run(runs, tmp_path):
    process = runs(2)
    in_a_fork(lambda: process.allocation.this_run._at_end(None))
    assert kept(tmp_path) == [succeeded(2)]
    process.allocation.this_run._at_end(None)
    assert kept(tmp_path) == [succeeded(2)] * 2


@pytest.mark.parametrize(("peaks", "after"), [((2, 2), [succeeded(4)]), ((2, 0), [])])
def test_peaks_of_two_frameworks_are_added_if_both_are_known(script, tmp_path, peaks, after):
    process = Process(tmp_path, *ONE).imports()
    for framework, peak in zip((process.framework, process.imports_another()), peaks):
        framework.peak = peak * GIB
        framework.take()
    process.allocation.this_run._at_end(None)
    assert kept(tmp_path) == after


@pytest.mark.parametrize("error", [OSError, KeyError, KeyboardInterrupt])
def test_error_at_the_end_of_a_run_is_not_shown(runs, tmp_path, capfd, error):
    process = runs(2)

    def fail():
        raise error

    process.framework.needed_bytes = fail
    process.allocation.this_run._at_end(None)
    assert kept(tmp_path) == [succeeded(2)]
    assert capfd.readouterr() == ("", "")
