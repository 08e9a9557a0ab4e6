"""The lines after an out-of-memory error: the cap and its origin, the other processes, and advice.

The driver and the framework are fakes.
"""

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
from tests.support.fakes import FakeFramework, FirstGpusFramework
from tests.support.processes import in_a_fork
from tests.support.values import gpu


class Unsplit(FakeFramework):
    """A framework without logical GPUs, as PyTorch and JAX."""

    HAS_LOGICAL_GPUS = False


class TakesAll(FakeFramework):
    """A framework whose allocator grows until the driver refuses, as PyTorch's."""

    default_share = 1.0


ONE, FULL = [gpu(0)], [gpu(0, pids=[7], used_gib=14, busy=90)]
HAD = "; had 0.3 GiB, requested 1.0 GiB more"
OUT = "out of memory on GPU 0 (24.0 GiB): "
LIMITED = OUT + "limited to "
OWN_PART = "limited to 21.1 GiB, the part that Fakeflow takes by default"
AT_ONCE = "for more memory, allocated at once: AUTOGPU_LIMIT=95% AUTOGPU_GROWTH=false"
STATUS = "`autogpu status` shows the jobs on each GPU, and which GPU has room"
PAGE = Path(__file__).resolve().parents[1] / "docs" / "memory.md"
VARIABLE = "AUTOGPU_LIMIT", "AUTOGPU_LIMIT=3GiB"
LIMIT, SPLIT, UNSPLIT = {"AUTOGPU_LIMIT": "2GiB"}, {"AUTOGPU_VIRTUAL_GPUS": "2"}, {"kind": Unsplit}


def ended(process, error=None) -> list[str]:
    """Return the lines that the process prints about an error."""
    before = len(process.lines)
    process.framework.on_uncaught(error or MemoryError())
    return "\n".join(process.lines[before:]).replace("autogpu: ", "").splitlines()


@pytest.mark.parametrize(
    ("options", "said", "first"),
    [
        pytest.param(LIMIT, {}, "2.0 GiB by memory.limit (AUTOGPU_LIMIT)", id="policy-limit"),
        pytest.param({**LIMIT, **SPLIT}, {}, "4.0 GiB by memory.limit", id="limit-of-each-logical-gpu"),
        pytest.param({**LIMIT, **SPLIT, **UNSPLIT}, {}, "4.0 GiB by memory.limit", id="limit-no-logical-gpus"),
        pytest.param(SPLIT, {}, "21.1 GiB, divided among its logical GPUs", id="logical-gpus"),
        pytest.param({**SPLIT, **UNSPLIT}, {}, "21.1 GiB, the part that Fakeflow takes", id="no-logical-gpus"),
        pytest.param(LIMIT, {"limits": (8 * GIB,)}, "8.0 GiB by the script's", id="scripts-limit"),
        pytest.param({}, {"fraction": 0.25}, "6.0 GiB by the script's own", id="scripts-fraction"),
    ],
)
def test_message_states_the_cap_and_its_origin(started, options, said, first):
    process = started(*ONE, **options)
    process.framework.take(**said)
    lines = ended(process)
    assert lines[0].startswith(LIMITED + first) and lines[0].endswith(HAD)
    assert len(lines) == 2


@pytest.mark.parametrize(
    ("options", "number", "index"),
    [
        pytest.param({"AUTOGPU_COUNT": "2"}, 1, 0, id="second-gpu"),
        pytest.param({"AUTOGPU_COUNT": "2", **SPLIT}, 1, 2, id="second-logical-gpu-of-the-first-gpu"),
        pytest.param({"AUTOGPU_COUNT": "2", **SPLIT}, 3, 0, id="second-logical-gpu-of-the-second-gpu"),
        pytest.param({"kind": FirstGpusFramework}, 0, 2, id="claimed-gpu-of-a-framework-that-takes-the-first"),
        pytest.param({"kind": FirstGpusFramework}, 1, 0, id="other-gpu-of-a-framework-that-takes-the-first"),
    ],
)
def test_message_names_the_gpu_of_the_error(started, options, number, index):
    process = started(gpu(0), gpu(1, pids=[7], used_gib=14, busy=90), gpu(2), **options)
    process.framework.take()
    assert ended(process, MemoryError(number))[0].startswith(f"out of memory on GPU {index} (24.0 GiB): ")


@pytest.mark.parametrize(("typed", "word", "remedy"), [("2GiB", "--limit", "--limit 3GiB"), ("1GiB", *VARIABLE)])
def test_message_names_the_option_or_variable_that_set_the_limit(started, typed, word, remedy):
    process = started(*ONE, **LIMIT, AUTOGPU_RUN_LIMIT=typed)
    process.framework.take()
    first, last = ended(process)
    assert f"by memory.limit ({word})" in first
    assert last == f"for more memory: {remedy}"


def test_message_on_a_shared_gpu_matches_the_documentation(started, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "train.py")])
    (tmp_path / "train.py").touch()
    process = started(*FULL)
    process.framework.take()
    process.framework.peak = 9 * GIB
    first, second, third = ended(process)
    assert first.startswith(LIMITED) and "by other jobs on the GPU" in first
    assert re.fullmatch(r"also on this GPU: pid 7( of \S+)?, 14.0 GiB", second)
    assert third == "the next run waits until 10.5 GiB is free; to reserve that much: AUTOGPU_NEED=11GiB"
    # The documentation contains the same lines with other numbers.
    page = unnumbered(PAGE.read_text(encoding="utf-8"))
    assert unnumbered(f"autogpu: {first}\nautogpu: also on this GPU: ben's train.py (pid 4242), 17.2 GiB") in page
    assert unnumbered(f"autogpu: {third}\n") in page


@pytest.mark.parametrize("options", [{"AUTOGPU_WAIT": "0"}, {"AUTOGPU_HISTORY": "false"}], ids=["wait-0", "no-history"])
def test_message_announces_no_wait_if_the_next_run_will_not_wait(started, tmp_path, monkeypatch, options):
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "train.py")])
    (tmp_path / "train.py").touch()
    process = started(*FULL, **options)
    process.framework.take()
    process.framework.peak = 9 * GIB
    assert ended(process)[-1] == "to reserve enough memory next time: AUTOGPU_NEED=11GiB"


def test_need_exceeds_the_cap_even_if_less_memory_was_counted(started):
    """Otherwise the advice would lead to the same GPU and the same error: memory below the cap is in pieces."""
    process = started(*FULL)
    process.framework.take()
    process.framework.peak = GIB // 2
    assert ended(process)[-1].endswith("AUTOGPU_NEED=11GiB")


def test_advised_limit_counts_the_cap_of_one_logical_gpu(started):
    process = started(*ONE, **LIMIT, **SPLIT)
    process.framework.take()
    process.framework.peak = GIB * 3 // 2
    assert ended(process)[-1].endswith("AUTOGPU_LIMIT=5GiB")


def unnumbered(text) -> str:
    return re.sub(r"[\d.]+", "0", text)


def test_need_that_is_larger_than_the_gpu_is_not_advised(started):
    process = started(replace(FULL[0], memory_total_bytes=24 * GIB - MIB))
    process.framework.take()
    process.framework.peak = 22 * GIB + 128 * MIB
    assert ended(process)[-1] == "to wait for a GPU that no other job uses: AUTOGPU_BUSY=wait"


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"AUTOGPU_NEED": "20GiB", "AUTOGPU_WAIT": "0"}, id="need-is-already-stated"),
        pytest.param({"CUDA_VISIBLE_DEVICES": "0", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, id="inherited-list-of-one-gpu"),
    ],
)
def test_need_is_not_advised_if_it_gives_no_other_gpu(started, options):
    process = started(*FULL, **options)
    process.framework.take()
    assert ended(process)[-1] == STATUS


def test_override_is_advised_if_the_script_lists_a_busy_gpu(started):
    process = started(*FULL, gpu(1), counted=FULL, CUDA_DEVICE_ORDER="PCI_BUS_ID")
    process.environ[CUDA_VISIBLE_DEVICES] = "0"
    process.framework.take()
    assert ended(process)[-1].endswith("AUTOGPU_SCRIPT=override")


def test_message_names_the_three_largest_other_processes(started):
    process = started(*ONE, AUTOGPU_HISTORY="false")
    process.framework.take()
    first = 1 << 22  # larger than any pid
    others = tuple(Process(first + number, number * GIB) for number in range(1, 6))
    process.driver.change(0, compute_processes=(Process(os.getpid(), GIB), *others))
    why, second, third = ended(process)
    assert "no memory limit applies to this process" in why
    named = "; ".join(f"pid {first + number}, {number}.0 GiB" for number in (5, 4, 3))
    assert second == f"also on this GPU: {named}; 2 more"
    assert third == "to reserve enough memory next time: AUTOGPU_NEED=2GiB"


def test_a_setting_that_the_host_locks_is_not_advised(started, tmp_path):
    (tmp_path / "none").write_text('locked = ["memory.limit"]\n[memory]\nlimit = "2GiB"\n')
    process = started(*ONE)
    process.framework.take()
    assert ended(process)[-1] == "memory.limit is locked on this host: ask its administrator to change it"


ALL_OF_IT = "this process has the GPU to itself: use a larger GPU, or less memory in the script"


@pytest.mark.parametrize(
    ("kind", "peak_gib", "why", "last"),
    [
        pytest.param(FakeFramework, 10, OWN_PART, AT_ONCE, id="default-share-of-the-framework"),
        pytest.param(
            FakeFramework,
            23,
            OWN_PART,
            "the script needs more memory than the GPU has: use a larger GPU, or less memory in the script",
            id="model-larger-than-the-gpu",
        ),
        pytest.param(TakesAll, 10, "no memory limit applies to this process", ALL_OF_IT, id="no-cap"),
    ],
)
def test_message_advises_a_process_that_has_the_gpu_to_itself(started, kind, peak_gib, why, last):
    process = started(*ONE, kind=kind)
    process.framework.take()
    process.framework.peak = peak_gib * GIB
    assert ended(process) == [OUT + why + HAD, last]


def test_message_omits_sizes_if_the_driver_does_not_list_the_process(started):
    process = started(*ONE)
    process.framework.take()
    process.driver.change(0, compute_processes=(Process(os.getpid() + (1 << 22), 300 * MIB),))
    said = [OUT + "no memory limit applies to this process; requested 1.0 GiB more", STATUS]
    assert ended(process) == said
    process.driver.now = None
    assert ended(process) == said


def test_each_error_is_printed_even_if_its_line_is_the_same(started, capfd):
    process = started(*ONE, say=stderr.say)
    process.framework.take()
    for _ in range(2):
        process.framework.on_uncaught(MemoryError())
    assert capfd.readouterr().err.count("out of memory") == 2


def test_message_to_a_child_lists_the_other_process_of_its_job(started):
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
    assert first.startswith("out of memory on GPU 1 (24.0 GiB): no memory limit applies to this process")
    assert f"(pid {os.getpid()}), 12.0 GiB" in second
    assert third == STATUS


def test_only_errors_caused_by_out_of_memory_are_explained(started):
    process = started(*ONE)
    process.framework.take()
    led_to = KeyError("step 7")
    led_to.__cause__ = MemoryError()
    assert (bool(ended(process, led_to)), ended(process, ValueError())) == (True, [])
