"""The demo's sentence follows from the driver's log, whatever happened."""

from __future__ import annotations

from demo.story import GIB, phase, sentence
from tests.gpusim import Call


def log(*events):
    return [Call(pid, call, gpu, size, float(time)) for time, (pid, call, gpu, size) in enumerate(events)]


def test_a_run_is_read_out_of_the_log():
    calls = log(
        (1, "context", 0, GIB),
        (1, "allocate", 0, 4 * GIB),
        (2, "context", 0, GIB),
        (2, "context", 1, GIB),
        (2, "refused", 0, 9 * GIB),
        (1, "free", 0, 4 * GIB),
        (1, "context_end", 0, GIB),
        (2, "allocate", 0, 2 * GIB),
        (99, "allocate", 0, 7 * GIB),
    )
    run = phase(calls, [1, 2], [0, 1], 2, ["noise\nautogpu: a line\n"])
    assert run.most_bytes == (6 * GIB, GIB)
    assert run.working_gpus == (frozenset({0}), frozenset({0}))
    assert run.context_gpus == (frozenset({0}), frozenset({0, 1}))
    assert (run.refused, run.lines, run.exit_statuses) == (1, ("autogpu: a line",), (0, 1))


def test_the_sentence_says_what_happened():
    crowded = phase(
        log((1, "context", 0, GIB), (1, "context", 1, GIB), (1, "allocate", 0, GIB), (2, "allocate", 0, GIB)),
        [1, 2],
        [0, 1],
        2,
        [],
    )
    apart = phase(log((1, "allocate", 1, GIB), (2, "allocate", 2, GIB)), [1, 2], [0, 0], 3, [])
    assert sentence(crowded, apart, busy=[0]) == (
        "Without autogpu both jobs worked on GPU 0, where a colleague's job was running, held memory on GPU 1 without "
        "using it, took 4.0 GiB in all and one of them failed. "
        "With it each job had a GPU to itself (GPUs 1 and 2), touched no other GPU and took 2.0 GiB in all."
    )
