"""One job of a compressed day: chooses by autogpu, grows into its memory, works for its time, ends.

Started by ``test_lab_day_live.py`` with a JSON object as argument; goes on when its input has a line, and prints one
JSON object a line.
"""

from __future__ import annotations

import json
import os
import sys
import time

import contention_job
from contention_job import tell

MIB = 1 << 20


def main(order):
    choose, cuda = contention_job.autogpu(None), contention_job.Cuda()
    tell(event="ready")
    sys.stdin.readline()
    choice = choose(cuda)
    begun_s = time.monotonic()
    tell(event="decided", gpus=choice.gpus, cap_bytes=choice.cap_bytes, time_s=begun_s)
    if choice.gpus:
        died = run(cuda, order, choice, begun_s)
        tell(event="died" if died else "done", why=died, time_s=time.monotonic())
    sys.stdout.flush()
    os._exit(0)


def run(cuda, order, choice, begun_s):
    """Why the job ended before its time; empty for one that was done."""
    if not cuda.make_context(choice.ordinal):
        return "no room for a context"
    choice.finish()
    arena = order["peak_bytes"] - order["context_bytes"]
    used = 0
    for step in range(1, order["steps"] + 1):
        time.sleep(max(0.0, begun_s + step * order["step_s"] - time.monotonic()))
        wanted = arena * step // order["steps"]
        if choice.cap_bytes is not None and wanted > choice.cap_bytes:
            return "its cap"
        size = (wanted - used) // (2 * MIB) * (2 * MIB)
        if size and not cuda.allocate(size):
            return "no room"
        used += size
    time.sleep(max(0.0, begun_s + order["duration_s"] - time.monotonic()))
    return ""


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
