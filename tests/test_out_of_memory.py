"""Which cap a process had, by whose word, and who else is there: the driver and the framework are fakes."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

from autogpu import stderr
from autogpu.devices.model import Process
from autogpu.frozen import replace
from autogpu.text import GIB, MIB
from autogpu.variables import CUDA_VISIBLE_DEVICES
from tests.support.fakes import FakeFramework
from tests.support.processes import in_a_fork
from tests.support.values import gpu


class Unsplit(FakeFramework):
    """As PyTorch and JAX, which have no logical GPUs."""

    HAS_LOGICAL_GPUS = False


class TakesAll(FakeFramework):
    """As PyTorch, whose allocator grows until the driver refuses."""

    default_share = 1.0


ONE, FULL = [gpu(0)], [gpu(0, pids=[7], used_gib=14, busy=90)]
HAD = "; it had 0.3 GiB with its CUDA context and it asked for 1.0 GiB more"
OUT = "out of memory on GPU 0 (24.0 GiB): "
MAY = OUT + "this process may take "
OWN_PART = "this process may take 21.1 GiB there, the part that Fakeflow takes by itself"
IN_ONE_PIECE = "to have more, and in one piece: AUTOGPU_LIMIT=95% AUTOGPU_GROWTH=false"
STATUS = "`autogpu status` shows who is there, and which GPU has room"
PAGE = Path(__file__).resolve().parents[1] / "docs" / "memory.md"
VARIABLE = "AUTOGPU_LIMIT", "AUTOGPU_LIMIT=3GiB"
LIMIT, SPLIT, UNSPLIT = {"AUTOGPU_LIMIT": "2GiB"}, {"AUTOGPU_VIRTUAL_GPUS": "2"}, {"kind": Unsplit}


def ended(process, error=None) -> list[str]:
    """What is said of an error, and not before it."""
    before = len(process.lines)
    process.framework.on_uncaught(error or MemoryError())
    return "\n".join(process.lines[before:]).replace("autogpu: ", "").splitlines()


@pytest.mark.parametrize(
    ("options", "said", "first"),
    [
        pytest.param(LIMIT, {}, "2.0 GiB there, by memory.limit (AUTOGPU_LIMIT)", id="limit"),
        pytest.param({**LIMIT, **SPLIT}, {}, "4.0 GiB there, by memory.limit", id="of-each-logical-gpu"),
        pytest.param({**LIMIT, **SPLIT, **UNSPLIT}, {}, "4.0 GiB there, by memory.limit", id="of-two-that-are-one"),
        pytest.param(SPLIT, {}, "21.1 GiB there, in its logical GPUs", id="in-parts"),
        pytest.param({**SPLIT, **UNSPLIT}, {}, "21.1 GiB there, the part that Fakeflow takes", id="not-in-parts"),
        pytest.param(LIMIT, {"limits": (8 * GIB,)}, "8.0 GiB there, by the script's", id="scripts-limit"),
        pytest.param({}, {"fraction": 0.25}, "6.0 GiB there, by the script's own", id="scripts-fraction"),
    ],
)
def test_the_cap_and_whose_word_it_is(started, options, said, first):
    process = started(*ONE, **options)
    process.framework.take(**said)
    lines = ended(process)
    assert lines[0].startswith(MAY + first) and lines[0].endswith(HAD)
    assert len(lines) == 2


@pytest.mark.parametrize(("typed", "word", "remedy"), [("2GiB", "--limit", "--limit 3GiB"), ("1GiB", *VARIABLE)])
def test_an_option_that_was_typed_is_named_as_it_is_typed(started, typed, word, remedy):
    process = started(*ONE, **LIMIT, AUTOGPU_RUN_LIMIT=typed)
    process.framework.take()
    first, last = ended(process)
    assert f"by memory.limit ({word})" in first
    assert last == f"to have more: {remedy}"


def test_beside_others(started, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "train.py")])
    (tmp_path / "train.py").touch()
    process = started(*FULL)
    process.framework.take()
    process.framework.peak = GIB // 2
    first, second, third = ended(process)
    assert first.startswith(MAY) and "because it shares the GPU" in first
    assert re.fullmatch(r"also there: pid 7( of \S+)?, 14.0 GiB", second)
    assert third == "the next run waits until 2.0 GiB are free; to reserve them as well: AUTOGPU_NEED=2GiB"
    # But for the numbers, the lines of the documents.
    page = unnumbered(PAGE.read_text(encoding="utf-8"))
    assert unnumbered(f"autogpu: {first}\nautogpu: also there: ben's train.py (pid 4242), 17.2 GiB") in page
    assert unnumbered(f"autogpu: {third}\n") in page


@pytest.mark.parametrize("options", [{"AUTOGPU_WAIT": "0"}, {"AUTOGPU_HISTORY": "false"}], ids=["at-once", "unknown"])
def test_next_run_that_does_not_wait_is_not_said_to_wait(started, tmp_path, monkeypatch, options):
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "train.py")])
    (tmp_path / "train.py").touch()
    process = started(*FULL, **options)
    process.framework.take()
    process.framework.peak = GIB // 2
    assert ended(process)[-1] == "to say what it needs at least: AUTOGPU_NEED=2GiB"


def unnumbered(text) -> str:
    return re.sub(r"[\d.]+", "0", text)


def test_a_need_that_no_such_gpu_has_in_whole_gib_is_not_advised(started):
    process = started(replace(FULL[0], memory_total_bytes=24 * GIB - MIB))
    process.framework.take()
    process.framework.peak = 22 * GIB + 128 * MIB
    assert ended(process)[-1] == "to get a GPU of its own: AUTOGPU_BUSY=wait"


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"AUTOGPU_NEED": "20GiB", "AUTOGPU_WAIT": "0"}, id="a-need-that-is-claimed-already"),
        pytest.param({"CUDA_VISIBLE_DEVICES": "0", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, id="in-a-list"),
    ],
)
def test_who_gets_no_other_gpu_by_its_need_is_not_told_of_it(started, options):
    process = started(*FULL, **options)
    process.framework.take()
    assert ended(process)[-1] == STATUS


def test_a_script_that_names_a_busy_gpu_while_one_is_idle(started):
    process = started(*FULL, gpu(1), counted=FULL, CUDA_DEVICE_ORDER="PCI_BUS_ID")
    process.environ[CUDA_VISIBLE_DEVICES] = "0"
    process.framework.take()
    assert ended(process)[-1].endswith("AUTOGPU_SCRIPT=override")


def test_the_three_largest_are_named(started):
    process = started(*ONE, AUTOGPU_HISTORY="false")
    process.framework.take()
    first = 1 << 22  # no process has such a number
    others = tuple(Process(first + number, number * GIB) for number in range(1, 6))
    process.driver.change(0, compute_processes=(Process(os.getpid(), GIB), *others))
    why, second, third = ended(process)
    assert "nothing limits this process there" in why
    named = "; ".join(f"pid {first + number}, {number}.0 GiB" for number in (5, 4, 3))
    assert second == f"also there: {named}; 2 more"
    assert third == "to say what it needs at least: AUTOGPU_NEED=2GiB"


def test_a_setting_that_the_host_locks_is_not_advised(started, tmp_path):
    (tmp_path / "none").write_text('locked = ["memory.limit"]\n[memory]\nlimit = "2GiB"\n')
    process = started(*ONE)
    process.framework.take()
    assert ended(process)[-1] == "memory.limit is locked on this host: ask who administers it"


ALL_OF_IT = "it has the GPU to itself: use a larger GPU, or less memory in the script"


@pytest.mark.parametrize(
    ("kind", "peak_gib", "why", "last"),
    [
        pytest.param(FakeFramework, 10, OWN_PART, IN_ONE_PIECE, id="its-own-part"),
        pytest.param(FakeFramework, 23, OWN_PART, "its model is larger than the GPU", id="needs-more-than-there-is"),
        pytest.param(TakesAll, 10, "nothing limits this process there", ALL_OF_IT, id="all"),
    ],
)
def test_alone(started, kind, peak_gib, why, last):
    process = started(*ONE, kind=kind)
    process.framework.take()
    process.framework.peak = peak_gib * GIB
    assert ended(process) == [OUT + why + HAD, last]


def test_where_the_driver_does_not_answer_or_counts_by_other_pids_as_for_a_container(started):
    process = started(*ONE)
    process.framework.take()
    process.driver.change(0, compute_processes=(Process(os.getpid() + (1 << 22), 300 * MIB),))
    said = [OUT + "nothing limits this process there; it asked for 1.0 GiB more", STATUS]
    assert ended(process) == said
    process.driver.now = None
    assert ended(process) == said


def test_each_error_is_told_also_in_the_same_words(started, capfd):
    process = started(*ONE, say=stderr.say)
    process.framework.take()
    for _ in range(2):
        process.framework.on_uncaught(MemoryError())
    assert capfd.readouterr().err.count("out of memory") == 2


def test_a_child_is_told_that_its_job_shares_the_gpu(started):
    parent = started(gpu(0), gpu(1))
    parent.framework.take()
    used = replace(gpu(1, used_gib=12), compute_processes=(Process(os.getpid(), 12 * GIB),))
    inherited = {name: value for name, value in parent.environ.items() if name.startswith(("AUTOGPU_", "CUDA_"))}
    counted = parent.cuda.devices

    def work():
        child = started(gpu(0), used, counted=counted, **inherited)
        child.framework.take()
        return ended(child)

    first, second, third = in_a_fork(work)
    assert first.startswith("out of memory on GPU 1 (24.0 GiB): nothing limits this process there")
    assert f"(pid {os.getpid()}), 12.0 GiB" in second
    assert third == STATUS


def test_an_error_that_it_led_to_is_explained_and_no_other(started):
    process = started(*ONE)
    process.framework.take()
    led_to = KeyError("step 7")
    led_to.__cause__ = MemoryError()
    assert (bool(ended(process, led_to)), ended(process, ValueError())) == (True, [])
