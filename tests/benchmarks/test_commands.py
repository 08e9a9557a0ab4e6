"""Smallest runs of the benchmarks without a framework, because these import private modules of autogpu."""

import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.mark.thorough
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "command",
    [
        ["at_exit.py", "--runs", "1"],
        ["contention.py", "--runs", "1"],
        ["scale.py", "--runs", "1", "--leases", "0", "10"],
    ],
    ids=" ".join,
)
def test_benchmark_exits_with_0(command):
    name, *options = command
    ran = subprocess.run(
        [sys.executable, str(BENCHMARKS / name), *options], capture_output=True, text=True, timeout=280, check=False
    )
    assert (ran.returncode, "Traceback" in ran.stderr) == (0, False), ran.stderr
