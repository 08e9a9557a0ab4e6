"""The lines for a job that ran out of memory, by plain values."""

from __future__ import annotations

from pathlib import Path

import pytest

from autogpu.out_of_memory import Shortage, advice
from autogpu.reporting.text import GIB
from autogpu.selection.model import Cap
from tests.support.selections import request
from tests.support.values import gpu

PAGE = Path(__file__).resolve().parents[1] / "docs" / "memory.md"

BEN = ("ben's train.py (pid 4242)", 17 * GIB)
SHARES, NOTHING = "5.0 GiB there, because it shares the GPU", "nothing limits this process there"
NEED, WAIT = "to say what it needs at least: AUTOGPU_NEED=6GiB", "to get a GPU of its own: AUTOGPU_BUSY=wait"
SHARE = Cap(5 * GIB, "share")


def shortage(*, policy=None, total_gib=24.0, **known):
    device = gpu(3, total_gib=total_gib)
    known = {"held_bytes": 5 * GIB, "asked_bytes": GIB, "others": (BEN,), **known}
    return Shortage(device, request(device, **(policy or {})), **known)


def capped(gib, cause, **known):
    return {"cap": Cap(int(gib * GIB), cause), **known}


# By the case, what is known, what limits the process, and what avoids it.
CASES = {
    "best-effort": ({"cap": SHARE}, SHARES, f"{WAIT}; or {NEED}"),
    "best-effort-that-waits-already": ({"cap": SHARE, "policy": {"busy": "wait"}}, SHARES, NEED),
    "limit": (
        capped(5, "limit ~/autogpu.toml:3"),
        "5.0 GiB there, by memory.limit (~/autogpu.toml:3)",
        "to have more: AUTOGPU_LIMIT=6GiB",
    ),
    "limit-of-nearly-all": (
        {"cap": Cap(24 * GIB - 1, "limit AUTOGPU_LIMIT"), "total_gib": 24.04, "held_bytes": 23 * GIB + 1},
        "24.0 GiB there, by memory.limit (AUTOGPU_LIMIT)",
        "to have more: AUTOGPU_LIMIT=100%",
    ),
    "no-limit-that-is-in-force": (
        capped(4.5, "limit AUTOGPU_LIMIT", held_bytes=3 * GIB),
        "4.5 GiB there, by memory.limit (AUTOGPU_LIMIT)",
        "to have more: AUTOGPU_LIMIT=5GiB",
    ),
    "a-locked-limit": (
        capped(5, "limit /etc/a.toml:3", policy={"locked": frozenset({"memory.limit"})}),
        "5.0 GiB there, by memory.limit (/etc/a.toml:3)",
        "memory.limit is locked on this host: ask who administers it",
    ),
    "a-locked-key-of-two": (
        {"cap": SHARE, "policy": {"locked": frozenset({"select.busy", "memory.limit"})}},
        SHARES,
        NEED,
    ),
    "grant": (
        capped(6, "grant Ray"),
        "6.0 GiB there, the part that Ray granted",
        "to have more: ask Ray for a larger part of a GPU",
    ),
    "ranks-of-one-job": (
        capped(6, "ranks"),
        "6.0 GiB there, because ranks of its job share the GPU",
        "to have more: fewer ranks on each GPU",
    ),
    "the-lease-of-another-version": (capped(5, "a later word"), SHARES, f"{WAIT}; or {NEED}"),
    "script": (
        capped(6, "script"),
        "6.0 GiB there, by the script's own limit",
        "to have more: raise the limit in the script",
    ),
    "logical-gpus": (
        capped(12, "split"),
        "12.0 GiB there, in each of its logical GPUs",
        "to have it in one piece: AUTOGPU_VIRTUAL_GPUS=1",
    ),
    "the-frameworks-own-part": (
        {"own_part": Cap(18 * GIB, "default JAX"), "used_bytes": 17 * GIB + 1, "others": ()},
        "18.0 GiB there, the part that JAX takes by itself",
        "to have more: AUTOGPU_LIMIT=95%",
    ),
    "in-pieces": (
        {"own_part": Cap(18 * GIB, "default JAX"), "others": ()},
        NOTHING,
        "its memory may be in pieces; to have it in one: AUTOGPU_GROWTH=false",
    ),
    "the-others-have-gone": (
        {"cap": SHARE, "others": ()},
        SHARES,
        "no other job is on it any more: start it again",
    ),
    "others-that-came-later": ({}, NOTHING, NEED),
    "has-said-so-already": ({"policy": {"need_bytes": 6 * GIB}}, NOTHING, "`autogpu status` shows who is there"),
    "nothing-is-known": ({"held_bytes": 0, "policy": {"busy": "wait"}}, NOTHING, "`autogpu status` shows who is there"),
    "another-has-room": (
        {"elsewhere": (("1", 3 * GIB), ("2", 8 * GIB))},
        NOTHING,
        "GPU 2 has 8.0 GiB free now: AUTOGPU_NEED=6GiB gets it",
    ),
    "named-by-the-script": (
        {"elsewhere": (("1", 3 * GIB),), "remedy": "to have the idlest: AUTOGPU_SCRIPT=override"},
        NOTHING,
        "to have the idlest: AUTOGPU_SCRIPT=override",
    ),
    "needs-more-than-the-gpu-has": (
        {"asked_bytes": 24 * GIB, "cap": SHARE},
        SHARES,
        "its model is larger than the GPU",
    ),
    "needs-a-larger-gpu": (
        {"asked_bytes": 24 * GIB, "elsewhere": (("1", 80 * GIB),)},
        NOTHING,
        "GPU 1 has 80.0 GiB free now: AUTOGPU_NEED=29GiB gets it",
    ),
}


@pytest.mark.parametrize(("known", "first", "last"), CASES.values(), ids=CASES)
def test_why_and_what_now(known, first, last):
    lines = advice(shortage(**known))
    why = first if first == NOTHING else f"this process may take {first}"
    assert lines[0].partition("; it ")[0] == f"out of memory on GPU 3 (24.0 GiB): {why}"
    assert lines[-1] == last
    assert len(lines) <= 3


def test_what_it_had_and_who_else_is_there():
    others = (BEN, ("pid 7", 0), ("pid 8", GIB), ("pid 9", GIB), ("pid 10", GIB))
    lines = advice(shortage(others=others))
    assert lines[0].endswith("; it had 5.0 GiB and it asked for 1.0 GiB more")
    assert lines[1] == "also there: ben's train.py (pid 4242), 17.0 GiB; pid 7; pid 8, 1.0 GiB; 2 more"


def test_one_line_where_it_had_the_gpu_to_itself():
    (whole,) = advice(shortage(others=()))
    assert whole.endswith("(24.0 GiB): this process had all of it and no limit: its model is larger than the GPU")


def test_nothing_is_said_of_others_where_the_driver_did_not_answer():
    device = gpu(0, total_gib=None)
    assert advice(Shortage(device, request(device), others=None)) == [
        "out of memory on GPU 0: nothing limits this process there",
        "`autogpu status` shows who is there",
    ]


def test_the_lines_of_the_documents():
    ben = ("ben's train.py (pid 4242)", int(17.2 * GIB))
    held, cap = int(5.5 * GIB), Cap(int(5.6 * GIB), "share")
    lines = advice(shortage(held_bytes=held, asked_bytes=2 * GIB, cap=cap, others=(ben,)))
    assert "\n".join(f"autogpu: {line}" for line in lines) in PAGE.read_text(encoding="utf-8")
