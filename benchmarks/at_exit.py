"""What autogpu adds to the end of a process that has used a GPU.

    python benchmarks/at_exit.py [--runs N]

Each run is a fresh interpreter, in which clocks around autogpu's own steps tell what they take; medians are printed.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
GOAL_MS = 3.0

# The last that was registered is the first that is called.
WITHOUT_AN_ERROR = """
import atexit, sys, time
sys.path.insert(0, sys.argv[1])
import autogpu.activation  # as in every process that imports a framework
atexit.register(lambda: print(1000 * (made + time.perf_counter() - at_exit)))
begun = time.perf_counter()
from autogpu.uncaught import Watch
Watch(print)
made = time.perf_counter() - begun
def begin():
    global at_exit
    at_exit = time.perf_counter()
atexit.register(begin)
"""

ROWS = {"end of a run without an error, its preparation at the claim included": WITHOUT_AN_ERROR}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20)
    runs = parser.parse_args().runs
    for name, program in ROWS.items():
        command = [sys.executable, "-c", program, str(ROOT)]
        took = [float(subprocess.run(command, check=True, capture_output=True, timeout=60).stdout) for _ in range(runs)]
        print(f"{name}: {statistics.median(took):.2f} ms (goal: under {GOAL_MS:.0f} ms)")


if __name__ == "__main__":
    main()
