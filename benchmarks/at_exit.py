"""Time that autogpu adds to the end of a process that has used a GPU, and to the next start of its script.

    python benchmarks/at_exit.py [--runs N]

Each run is a fresh interpreter that times only autogpu's own steps. The benchmark prints the median of each row.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
GOAL_MS = 3.0

# atexit calls functions in reverse order: first begin(), then autogpu's function, then the print.
WITHOUT_AN_ERROR = """
import atexit, sys, time
sys.path.insert(0, sys.argv[1])
import contextlib, typing  # as every framework does
import autogpu.activation  # as in every process that imports one
atexit.register(lambda: print(1000 * (made + time.perf_counter() - at_exit)))
begun = time.perf_counter()
from autogpu.uncaught import watch
watch(print)
made = time.perf_counter() - begun
def begin():
    global at_exit
    at_exit = time.perf_counter()
atexit.register(begin)
"""


# The user's history holds 900 runs of other scripts (see _fill), close to its limit of 1,000.
PREPARED = """
import sys, time
sys.path.insert(0, sys.argv[1])
import hashlib  # as every framework does
import autogpu.activation, autogpu.policy, autogpu.engines.facts, autogpu.caps, autogpu.devices.model
from autogpu.frozen import replace
import os
environ = dict(os.environ)
policy = replace(autogpu.policy.Policy())
grant = autogpu.engines.facts.granted_here(environ)
device = autogpu.devices.model.Device(
    uuid="GPU-0", index=0, memory_total_bytes=24 << 30, memory_used_bytes=0, utilization_percent=0,
    compute_processes=(), graphics_processes=(), compute_mode=autogpu.devices.model.ComputeMode.DEFAULT,
)
def begin():
    global run
    from autogpu.history import ThisRun
    run = ThisRun(policy, environ, grant)
"""

NEXT_START = (
    PREPARED
    + """
begun = time.perf_counter()
begin()
run.last_runs([device])
run.need_worth_stating([device], by_script=False)
print(1000 * (time.perf_counter() - begun))
"""
)

END_OF_A_RUN = (
    PREPARED
    + """
class Framework:
    def needed_bytes(self, *, growth):
        return 1 << 30
    peak_bytes = lambda self: 1 << 30
    requested_bytes = lambda self, failure: 1 << 30
    out_of_memory = lambda self, error: None
begin()
import atexit
atexit.register(lambda: print(1000 * (used + time.perf_counter() - at_exit)))
begun = time.perf_counter()
run.last_runs([device])
run.uses(Framework(), [device], is_limited=False)
used = time.perf_counter() - begun
def end():
    global at_exit
    at_exit = time.perf_counter()
atexit.register(end)
"""
)

ROWS = {
    "end of a run without an error, with the preparation at the claim": WITHOUT_AN_ERROR,
    "end of a run that saves its peak memory": END_OF_A_RUN,
    "next start, which reads the script's history": NEXT_START,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20)
    runs = parser.parse_args().runs
    with tempfile.TemporaryDirectory() as folder:
        environ = {**os.environ, "XDG_STATE_HOME": folder, "PYTHONPYCACHEPREFIX": f"{folder}/cache"}
        environ.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package is compiled already
        _fill(environ)
        for name, program in ROWS.items():
            script = Path(folder) / "train.py"
            script.write_text(program)
            command = [sys.executable, str(script), str(ROOT)]
            _printed(command, environ)
            median_ms = statistics.median(_printed(command, environ) for _ in range(runs))
            print(f"{name}: {median_ms:.2f} ms (goal: under {GOAL_MS:.0f} ms)")


def _fill(environ: dict[str, str]) -> None:
    sys.path.insert(0, str(ROOT))
    from autogpu.history import History, Run

    for number in range(900):
        History(environ).keep((number,), Run(1 << 30, 1 << 30))


def _printed(command: list[str], environ: dict[str, str]) -> float:
    return float(subprocess.run(command, env=environ, check=True, capture_output=True, timeout=60).stdout)


if __name__ == "__main__":
    main()
