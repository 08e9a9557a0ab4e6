"""Claims in processes whose clock or threads a script has replaced, and on a host full of other locks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from autogpu.frozen import replace
from autogpu.lease import locks
from tests.lease.conftest import TIMEOUT_S, holders

ROOT = Path(__file__).resolve().parents[2]

CLAIM = """
import sys
sys.path.insert(0, sys.argv[2])
from pathlib import Path
from autogpu.lease import Folder, Lease, acquire_lease
path = Path(sys.argv[1])
lease = acquire_lease(Lease(Folder(path, "environment", path.stat().st_uid), "a.py"), lambda *_: {"GPU-0": 1})
print(dict(lease.claims), "could not be had for 2 s" in lease.problem.what)
"""

CLOCKS = """
import time
time.time = lambda: 1325376000.0
time.monotonic = time.perf_counter = lambda: 1000.0
"""


def claimed(python, folder, before):
    command = [str(python), "-c", before + CLAIM, str(folder.path), str(ROOT)]
    return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)


@pytest.mark.slow
def test_a_clock_that_stands_still_does_not_stop_a_claim(folder):
    with folder.locked():
        done = claimed(sys.executable, folder, CLOCKS)
    assert (done.stdout, done.stderr) == ("{'GPU-0': 1} True\n", "")


def test_where_there_are_too_many_locks_to_look_through_nobody_is_named_nor_taken_for_dead(folder, start, monkeypatch):
    start().ask("acquire", free=["GPU-0"])
    # As with thousands of locks before that one.
    monkeypatch.setattr(locks, "_MOST_PIECES", 0)
    with folder.locked(), replace(folder, patience_s=0.1).locked() as (_, problem):
        assert problem.what.endswith("by a process that can't be seen from here")
    assert len(holders(folder)) == 1
