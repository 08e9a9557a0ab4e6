"""The lines for a job that ran out of memory, by plain values."""

from __future__ import annotations

from pathlib import Path

import pytest

from autogpu.reporting.advice import Shortage, advice
from autogpu.reporting.text import GIB
from autogpu.selection.model import Cap

PAGE = Path(__file__).resolve().parents[2] / "docs" / "memory.md"

BEN = ("ben's train.py (pid 4242)", 17 * GIB)


def shortage(**known):
    return Shortage(
        "3",
        **{
            "total_bytes": 24 * GIB,
            "held_bytes": 5 * GIB,
            "asked_bytes": GIB,
            "others": (BEN,),
            **known,
        },
    )


@pytest.mark.parametrize(
    ("known", "first", "last"),
    [
        pytest.param(
            {"cap": Cap(5 * GIB, "share")},
            "this process may take 5.0 GiB there, because it shares the GPU",
            "to get a GPU of its own: AUTOGPU_BUSY=wait; or to say what it needs at least: AUTOGPU_NEED=6GiB",
            id="best-effort",
        ),
        pytest.param(
            {"cap": Cap(5 * GIB, "share"), "waits": True},
            "this process may take 5.0 GiB there, because it shares the GPU",
            "to say what it needs at least: AUTOGPU_NEED=6GiB",
            id="best-effort-that-waits-already",
        ),
        pytest.param(
            {"cap": Cap(5 * GIB, "limit ~/autogpu.toml:3")},
            "this process may take 5.0 GiB there, by memory.limit (~/autogpu.toml:3)",
            "to have more: AUTOGPU_LIMIT=6GiB",
            id="limit",
        ),
        pytest.param(
            {
                "cap": Cap(24 * GIB - 1, "limit AUTOGPU_LIMIT"),
                "total_bytes": int(24.04 * GIB),
                "held_bytes": 23 * GIB + 1,
            },
            "this process may take 24.0 GiB there, by memory.limit (AUTOGPU_LIMIT)",
            "to have more: AUTOGPU_LIMIT=100%",
            id="limit-of-nearly-all",
        ),
        pytest.param(
            {"cap": Cap(6 * GIB, "grant Ray")},
            "this process may take 6.0 GiB there, the part that Ray granted",
            "to have more: ask Ray for a larger part of a GPU",
            id="grant",
        ),
        pytest.param(
            {"cap": Cap(6 * GIB, "ranks")},
            "this process may take 6.0 GiB there, because ranks of its job share the GPU",
            "to have more: fewer ranks on each GPU",
            id="ranks-of-one-job",
        ),
        pytest.param(
            {"cap": Cap(5 * GIB, "a later word")},
            "this process may take 5.0 GiB there, because it shares the GPU",
            "to get a GPU of its own: AUTOGPU_BUSY=wait; or to say what it needs at least: AUTOGPU_NEED=6GiB",
            id="the-lease-of-another-version",
        ),
        pytest.param(
            {"cap": Cap(6 * GIB, "script")},
            "this process may take 6.0 GiB there, by the script's own limit",
            "to have more: raise the limit in the script",
            id="script",
        ),
        pytest.param(
            {"cap": Cap(12 * GIB, "split")},
            "this process may take 12.0 GiB there, in each of its logical GPUs",
            "to have it in one piece: AUTOGPU_VIRTUAL_GPUS=1",
            id="logical-gpus",
        ),
        pytest.param(
            {},
            "nothing limits this process there",
            "to say what it needs at least: AUTOGPU_NEED=6GiB",
            id="others-that-came-later",
        ),
        pytest.param(
            {"elsewhere": (("1", 3 * GIB), ("2", 8 * GIB))},
            "nothing limits this process there",
            "GPU 2 has 8.0 GiB free now: AUTOGPU_NEED=6GiB gets it",
            id="another-has-room",
        ),
        pytest.param(
            {"elsewhere": (("1", 3 * GIB),), "remedy": "to have the idlest instead: AUTOGPU_SCRIPT=override"},
            "nothing limits this process there",
            "to have the idlest instead: AUTOGPU_SCRIPT=override",
            id="named-by-the-script",
        ),
        pytest.param(
            {"held_bytes": 0, "waits": True},
            "nothing limits this process there",
            "`autogpu status` shows who is there",
            id="nothing-is-known",
        ),
        pytest.param(
            {"asked_bytes": 24 * GIB, "cap": Cap(20 * GIB, "share")},
            "this process may take 20.0 GiB there, because it shares the GPU",
            "its model is larger than the GPU",
            id="needs-more-than-the-gpu-has",
        ),
        pytest.param(
            {"asked_bytes": 24 * GIB, "elsewhere": (("1", 80 * GIB),)},
            "nothing limits this process there",
            "GPU 1 has 80.0 GiB free now: AUTOGPU_NEED=29GiB gets it",
            id="needs-a-larger-gpu",
        ),
        pytest.param(
            {"cap": Cap(5 * GIB, "limit /etc/autogpu/autogpu.toml:3"), "locked": frozenset({"memory.limit"})},
            "this process may take 5.0 GiB there, by memory.limit (/etc/autogpu/autogpu.toml:3)",
            "memory.limit is locked on this host: ask who administers it",
            id="a-locked-limit",
        ),
        pytest.param(
            {"cap": Cap(5 * GIB, "share"), "locked": frozenset({"select.busy", "memory.limit"})},
            "this process may take 5.0 GiB there, because it shares the GPU",
            "to say what it needs at least: AUTOGPU_NEED=6GiB",
            id="a-locked-key-of-two",
        ),
        pytest.param(
            {"claimed_bytes": 6 * GIB},
            "nothing limits this process there",
            "`autogpu status` shows who is there",
            id="has-said-so-already",
        ),
        pytest.param(
            {"cap": Cap(int(4.5 * GIB), "limit AUTOGPU_LIMIT"), "held_bytes": 3 * GIB},
            "this process may take 4.5 GiB there, by memory.limit (AUTOGPU_LIMIT)",
            "to have more: AUTOGPU_LIMIT=5GiB",
            id="no-limit-that-is-in-force",
        ),
        pytest.param(
            {"own_part": Cap(18 * GIB, "default JAX"), "used_bytes": 17 * GIB + 1, "others": ()},
            "this process may take 18.0 GiB there, the part that JAX takes by itself",
            "to have more: AUTOGPU_LIMIT=95%",
            id="the-frameworks-own-part",
        ),
        pytest.param(
            {"own_part": Cap(18 * GIB, "default JAX"), "others": ()},
            "nothing limits this process there",
            "its memory may be in pieces; to have it in one: AUTOGPU_GROWTH=false",
            id="in-pieces",
        ),
        pytest.param(
            {"cap": Cap(5 * GIB, "share"), "others": ()},
            "this process may take 5.0 GiB there, because it shares the GPU",
            "no other job is on it any more: start it again",
            id="the-others-have-gone",
        ),
    ],
)
def test_why_and_what_now(known, first, last):
    lines = advice(shortage(**known))
    assert lines[0].partition("; it ")[0] == f"out of memory on GPU 3 (24.0 GiB): {first}"
    assert lines[-1] == last
    assert len(lines) <= 3


def test_what_it_had_and_who_else_is_there():
    others = (BEN, ("pid 7", 0), ("pid 8", GIB), ("pid 9", GIB), ("pid 10", GIB))
    lines = advice(shortage(others=others))
    assert lines[0].endswith("; it had 5.0 GiB and it asked for 1.0 GiB more")
    assert lines[1] == "also there: ben's train.py (pid 4242), 17.0 GiB; pid 7; pid 8, 1.0 GiB; 2 more"


def test_one_line_where_it_had_the_gpu_to_itself():
    whole = (
        "out of memory on GPU 3 (24.0 GiB): this process had all of it and no limit: its model is larger than the GPU"
    )
    assert advice(shortage(others=())) == [whole]


def test_nothing_is_said_of_others_where_the_driver_did_not_answer():
    lines = advice(Shortage("0", None, is_certain=False))
    assert lines == [
        "out of memory on GPU 0: nothing limits this process there",
        "`autogpu status` shows who is there",
    ]


def test_the_lines_of_the_documents():
    ben = ("ben's train.py (pid 4242)", int(17.2 * GIB))
    held, cap = int(5.5 * GIB), Cap(int(5.6 * GIB), "share")
    lines = advice(Shortage("3", 24 * GIB, held, 0, 2 * GIB, cap, others=(ben,)))
    assert "\n".join(f"autogpu: {line}" for line in lines) in PAGE.read_text(encoding="utf-8")
