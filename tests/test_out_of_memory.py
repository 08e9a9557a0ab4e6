"""Which cap a process had, by whose word, and who else is there: the driver and the framework are fakes."""

from __future__ import annotations

import os

import pytest

from autogpu.devices.model import Process
from autogpu.frozen import replace
from autogpu.reporting import stderr
from autogpu.reporting.text import GIB, MIB
from autogpu.variables import CUDA_VISIBLE_DEVICES, LEASE, LEASE_DIR
from tests.support.fakes import FakeFramework
from tests.support.processes import in_a_fork
from tests.support.values import gpu


class Unsplit(FakeFramework):
    """As PyTorch and JAX, which have no logical GPUs."""

    HAS_LOGICAL_GPUS = False


ONE, FULL = [gpu(0)], [gpu(0, pids=[7], used_gib=14, busy=90)]
HAD = "; it had 0.3 GiB and it asked for 1.0 GiB more"
OUT = "out of memory on GPU 0 (24.0 GiB): "
MAY = OUT + "this process may take "
VARIABLE = "AUTOGPU_LIMIT", "AUTOGPU_LIMIT=3GiB"
LIMIT, SPLIT, UNSPLIT = {"AUTOGPU_LIMIT": "2GiB"}, {"AUTOGPU_VIRTUAL_GPUS": "2"}, {"kind": Unsplit}


def ended(process, error=None) -> list[str]:
    """What is said of an error, and not before it."""
    before = len(process.lines)
    process.framework.on_uncaught(error or MemoryError())
    return "\n".join(process.lines[before:]).replace("autogpu: ", "").splitlines()


def case(rule, gpus, options, said, first):
    return pytest.param(gpus, options, said, first, id=rule)


@pytest.mark.parametrize(
    ("gpus", "options", "said", "first"),
    [
        case("limit", ONE, LIMIT, {}, "2.0 GiB there, by memory.limit (AUTOGPU_LIMIT)"),
        case("of-each-logical-gpu", ONE, {**LIMIT, **SPLIT}, {}, "4.0 GiB there, by memory.limit"),
        case("of-two-that-are-one", ONE, {**LIMIT, **SPLIT, **UNSPLIT}, {}, "4.0 GiB there, by memory.limit"),
        case("in-parts", ONE, SPLIT, {}, "10.6 GiB there, in each of its logical GPUs"),
        case("scripts-limit", ONE, LIMIT, {"limits": (8 * GIB,)}, "8.0 GiB there, by the script's"),
        case("scripts-fraction", ONE, {}, {"fraction": 0.25}, "6.0 GiB there, by the script's own"),
    ],
)
def test_the_cap_and_whose_word_it_is(started, gpus, options, said, first):
    process = started(*gpus, **options)
    process.framework.take(**said)
    lines = ended(process)
    assert lines[0].startswith(MAY + first) and lines[0].endswith(HAD)
    assert len(lines) == 2


def test_one_that_has_no_logical_gpus_is_not_told_of_them(started):
    process = started(*ONE, **SPLIT, **UNSPLIT)
    process.framework.take()
    assert "nothing limits this process there" in ended(process)[0]


@pytest.mark.parametrize(("typed", "word", "remedy"), [("2GiB", "--limit", "--limit 3GiB"), ("1GiB", *VARIABLE)])
def test_an_option_that_was_typed_is_named_as_it_is_typed(started, typed, word, remedy):
    process = started(*ONE, **LIMIT, AUTOGPU_RUN_LIMIT=typed)
    process.framework.take()
    first, last = ended(process)
    assert f"by memory.limit ({word})" in first
    assert last == f"to have more: {remedy}"


def test_beside_others(started):
    process = started(*FULL)
    process.framework.take()
    first, second, third = ended(process)
    assert first.startswith(MAY) and "because it shares the GPU" in first
    assert second.startswith(("also there: pid 7", "also there: root's process 7", "also there: your process 7"))
    assert third == "to get a GPU of its own: AUTOGPU_BUSY=wait; or to say what it needs at least: AUTOGPU_NEED=2GiB"


def test_beside_others_where_the_shell_names_the_gpu(started):
    busy = FULL[0]
    process = started(busy, gpu(1), counted=[busy], CUDA_VISIBLE_DEVICES="0", CUDA_DEVICE_ORDER="PCI_BUS_ID")
    process.framework.take()
    assert ended(process)[-1] == "to have another GPU: leave CUDA_VISIBLE_DEVICES unset"


def test_alone(started):
    process = started(*ONE)
    process.framework.take()
    process.framework.peak = 23 * GIB
    assert ended(process) == [OUT + "this process had all of it and no limit: its model is larger than the GPU"]


@pytest.mark.parametrize(
    ("growth", "peak_gib", "first", "last"),
    [
        pytest.param("1", 10, "nothing limits this", "its memory may be in pieces", id="growth-leaves-gaps"),
        pytest.param("1", 0, "nothing limits this", "its memory may be in pieces", id="not-counted"),
        pytest.param("0", 10, "this process had all of it", "", id="all-at-once"),
        pytest.param(
            "1",
            21,
            "this process may take 21.1 GiB there, the part that Fakeflow takes",
            "to have more: AUTOGPU_LIMIT=95%",
            id="its-own-part",
        ),
    ],
)
def test_alone_although_it_would_fit(started, growth, peak_gib, first, last):
    process = started(*ONE, AUTOGPU_GROWTH=growth)
    process.framework.take()
    process.framework.peak = peak_gib * GIB
    lines = ended(process)
    assert lines[0].startswith(OUT + first)
    assert "".join(lines[1:]).startswith(last)


def test_where_the_driver_does_not_answer_or_counts_by_other_pids_as_for_a_container(started):
    process = started(*ONE)
    process.framework.take()
    process.driver.change(0, compute_processes=(Process(os.getpid() + (1 << 22), 300 * MIB),))
    said = [OUT + "nothing limits this process there; it asked for 1.0 GiB more", "`autogpu status` shows who is there"]
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
    names, counted = (LEASE, LEASE_DIR, CUDA_VISIBLE_DEVICES), parent.cuda.devices

    def work():
        child = started(gpu(0), used, counted=counted, **{name: parent.environ[name] for name in names})
        child.framework.take()
        return ended(child)

    first, second, third = in_a_fork(work)
    assert first.startswith("out of memory on GPU 1 (24.0 GiB): nothing limits this process there")
    assert f"(pid {os.getpid()}), 12.0 GiB" in second
    assert third == "the processes of one job share its GPU: use it in fewer of them, or give memory back"


def test_another_gpu_that_has_room_now(started):
    process = started(gpu(0), gpu(1))
    process.framework.take()
    process.driver.change(1, compute_processes=(Process(os.getpid(), 4 * GIB), Process(7, 19 * GIB)))
    assert ended(process)[-1] == "GPU 0 has 24.0 GiB free now: AUTOGPU_NEED=5GiB gets it"


def test_an_error_that_it_led_to_is_explained_and_no_other(started):
    process = started(*ONE)
    process.framework.take()
    led_to = KeyError("step 7")
    led_to.__cause__ = MemoryError()
    assert (bool(ended(process, led_to)), ended(process, ValueError())) == (True, [])
