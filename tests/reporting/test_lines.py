"""The whole output of a process about its GPUs: one or two lines, and more with ``AUTOGPU_LEVEL=explain``."""

from pathlib import Path

import pytest

from autogpu.engines.model import Denial, Grant
from autogpu.frameworks.model import Usage
from autogpu.history import KnownNeed
from autogpu.policy import resolve
from autogpu.reporting.choice import outcome
from autogpu.reporting.memory import memory_in_words
from autogpu.text import GIB, LINE_WIDTH, first_fitting, fitting
from tests.support.selections import claim, decided
from tests.support.values import gpu, inventory

TI = "NVIDIA GeForce RTX 2080 Ti"
CAPPED = "memory limited by other jobs; to reserve 6 GiB: AUTOGPU_NEED=6GiB"
NOT_ENFORCED = "limited to 1024 MiB, allocated as needed (not enforced by TF_GPU_ALLOCATOR=cuda_malloc_async)"
GROWS = "memory allocated as needed"
NEED = KnownNeed(3, 9 * GIB)
LONG = "A" * 60


def lines(decision, *, need=None, task="", memory="allocated as needed", **environ):
    """Return the lines about a decision, for a framework that takes all of its GPUs."""
    nowhere = Path("/nowhere")
    policy = resolve(environ, script=None, working_directory=nowhere, system_file=nowhere / "autogpu.toml")
    return outcome(decision, Usage(decision.ordinals, memory), policy, "TensorFlow", task, need)


def pool(count, **fields):
    return [gpu(index, total_gib=11, **{"name": TI, **fields}) for index in range(count)]


@pytest.mark.parametrize(
    ("decision", "options", "expected"),
    [
        pytest.param(
            decided(*pool(4)),
            {},
            [f"GPU 3 ({TI}, 11.0 of 11.0 GiB free): the idlest of 4; {GROWS}"],
            id="one-line-if-there-is-nothing-to-act-on",
        ),
        pytest.param(
            decided(*pool(4), need_bytes=6 * GIB),
            {},
            [f"GPU 3 ({TI}, 11.0 of 11.0 GiB free): the idlest of 4; {GROWS}", "6.0 GiB reserved"],
            id="stated-need-on-the-second-line",
        ),
        pytest.param(
            decided(*pool(4)),
            {"need": NEED},
            [
                f"GPU 3 ({TI}, 11.0 of 11.0 GiB free): the idlest of 4; {GROWS}",
                "AUTOGPU_NEED=9GiB (enough for the last 3 runs) would let other jobs share this GPU",
            ],
            id="last-runs-on-the-second-line",
        ),
        pytest.param(
            decided(*pool(1, pids=[5004242], used_gib=3, busy=93), wait_s=0.0),
            {"memory": "limited to 7680 MiB, allocated as needed"},
            [
                "GPU 0 (8.0 of 11.0 GiB free): the only one here; memory limited to 7680 MiB, allocated as needed",
                f"{CAPPED}; shared: pid 5004242 (no claim), 93 % busy",
            ],
            id="name-is-left-out-if-it-does-not-fit",
        ),
        pytest.param(
            decided(*pool(2), count=2),
            {},
            [f"GPU 0 (11.0 of 11.0 GiB free) and GPU 1 (11.0 of 11.0 GiB free): both; {GROWS}"],
            id="names-of-two-gpus-are-left-out",
        ),
        pytest.param(
            decided(*pool(4, pids=[7], used_gib=4, busy=50), count=9, wait_s=0.0),
            {"memory": memory_in_words([(), (), (8704.0,), (1536.0,)], 0, grows=True)},
            [
                "GPU 0, GPU 1, GPU 2 and GPU 3: all 4; "
                "memory limited on 2 of 4 GPUs, to 1536 MiB or more, allocated as needed",
                "select.count asks for 9 GPUs, but only 4 are available; memory limited by other jobs",
            ],
            id="too-few-gpus-before-the-notes-on-memory",
        ),
        pytest.param(
            decided(gpu(0, total_gib=12, used_gib=1), need_bytes=int(11.5 * GIB), wait_s=0.0),
            {},
            [
                "GPU 0 (NVIDIA TITAN RTX, 11.0 of 12.0 GiB free): the only one here; memory allocated as needed",
                "11.5 GiB needed, but only 11.0 GiB left",
            ],
            id="need-that-a-desktop-leaves-no-room-for",
        ),
        pytest.param(
            decided(*pool(4), count="all"),
            {},
            [f"GPU 0, GPU 1, GPU 2 and GPU 3: all 4; {GROWS}"],
            id="numbers-alone-if-only-they-fit",
        ),
        pytest.param(
            decided(*pool(4)),
            {"memory": NOT_ENFORCED},
            [
                f"GPU 3 ({TI}, 11.0 of 11.0 GiB free): the idlest of 4",
                f"memory {NOT_ENFORCED}",
            ],
            id="memory-on-the-second-line-if-it-does-not-fit",
        ),
        pytest.param(
            decided(gpu(0), grant=Grant("Slurm", Denial.UNKNOWN_WHICH, unnamed=2, on_host=4)),
            {},
            [
                "no GPU, TensorFlow starts on CPU: Slurm granted 2 of 4 GPUs here, but autogpu can't determine which",
                "leave --gpu-bind=none out",
            ],
            id="reason-is-whole-if-there-is-no-gpu",
        ),
        pytest.param(
            decided(*pool(4), count=0),
            {"AUTOGPU_COUNT": "0"},
            ["no GPU for this process, TensorFlow starts on CPU: select.count is 0; policy: AUTOGPU_COUNT"],
            id="origin-of-the-policy-if-there-is-no-gpu",
        ),
        pytest.param(
            decided(gpu(0, compute_mode=None), count=1, need_bytes=99 * GIB),
            {},
            [
                "no GPU for this process, TensorFlow starts on CPU: no GPU is suitable; policy: defaults",
                "GPU 0: 99.0 GiB needed, the GPU has 24.0 GiB",
            ],
            id="each-gpu-on-the-second-line-if-none-is-suitable",
        ),
    ],
)
def test_decision_is_reported_in_one_or_two_lines(decision, options, expected):
    assert lines(decision, **options) == expected


def test_explained_lines_have_the_policy_and_each_gpu():
    explained = lines(decided(*pool(2), need_bytes=6 * GIB), AUTOGPU_LEVEL="explain")
    assert explained[:4] == [
        f"GPU 1 ({TI}, 11.0 of 11.0 GiB free): the idlest of 2; {GROWS}",
        "6.0 GiB reserved",
        "for more GPUs: AUTOGPU_COUNT=2",
        "policy: AUTOGPU_LEVEL",
    ]
    assert [line[:14] for line in explained[4:]] == ["  GPU 1: taken", "  GPU 0: choic"]


@pytest.mark.parametrize(
    "decision",
    [
        pytest.param(decided(*pool(8, name=LONG), count="all"), id="eight-gpus"),
        pytest.param(decided(*pool(64), count="all"), id="sixty-four-gpus"),
        pytest.param(decided(*pool(8, pids=[4190001, 4190002, 4190003, 4190004], used_gib=8), count=8), id="shared"),
        pytest.param(decided(gpu(0), held={0: claim(9, script=LONG, age_s=99)}, wait_s=0.0), id="long-script-name"),
        pytest.param(decided(*pool(9, pids=[7], used_gib=11), need_bytes=12 * GIB), id="none-is-suitable"),
        pytest.param(
            decided(gpu(0, busy=90, pids=[7]), devices=("0",), inventory=inventory(*pool(9)), wait_s=0.0), id="idle"
        ),
    ],
)
@pytest.mark.parametrize("task", ["", f"Ray task {LONG}"], ids=["alone", "task-of-an-engine"])
def test_usual_lines_fit_120_columns(decision, task):
    found = lines(decision, task=task, need=NEED)
    assert 1 <= len(found) <= 2
    assert [line for line in found if len("autogpu: " + line) > 120] == []


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        pytest.param([], "", id="nothing"),
        pytest.param(["a", "b"], "a; b", id="all"),
        pytest.param(["a" * 100, "b" * 20, "c"], "a" * 100, id="line-ends-before-a-part-without-a-separator"),
        pytest.param(["a", f"b, c; d {'e' * 110}"], "a; b, c; ...", id="last-part-ends-at-a-separator"),
        pytest.param(["a", f"b ({'c' * 99}, d), e"], "a", id="nothing-is-cut-inside-brackets"),
        pytest.param(["a" * 200], "a" * 71 + "..." + "a" * 37, id="first-part-is-always-there"),
    ],
)
def test_parts_that_fit_are_joined(parts, expected):
    assert fitting(parts) == expected
    assert len(fitting(parts)) <= LINE_WIDTH


def test_first_line_that_fits_is_used():
    assert first_fitting(["a" * 112, "b" * 111, "c"]) == "b" * 111
    assert first_fitting(["a" * 112, "b" * 112]) == ""
