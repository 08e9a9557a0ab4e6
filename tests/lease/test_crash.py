"""SIGKILL and Ctrl-C at every line of the lease package."""

import os
import sys

import pytest

from autogpu.lease.leases import LockedFile
from autogpu.lease.snapshot import FolderReader
from tests.lease.conftest import holders, lease_text
from tests.support import environments

# A wait executes hundreds of lines, most of them twice, so the tests stop it only at every fourth line.
WAIT = pytest.param("wait", 4, marks=pytest.mark.thorough)


@pytest.mark.slow
@pytest.mark.parametrize(("what", "step"), [("claim", 1), ("timeout", 2), WAIT])
def test_sigkill_at_every_line_leaves_no_lease_ticket_or_stuck_mutex(start, what, step):
    told = start().ask("die_everywhere", what=what, step=step)
    print(f"\n{what}: {told}")
    assert set(told) == {"lines"}
    assert told["lines"] > 30


@pytest.mark.slow
@pytest.mark.parametrize(("what", "step"), [("claim", 1), WAIT])
def test_ctrl_c_at_every_line_frees_the_mutex_and_loses_no_lease(start, what, step):
    told = start().ask("interrupt_everywhere", what=what, step=step)
    print(f"\n{what}: {told['lines']} lines")
    assert told["problems"] == []
    assert told["lines"] > 300


@pytest.mark.slow
@pytest.mark.parametrize("body_raises", [False, True], ids=["body_ends", "body_raises"])
@pytest.mark.parametrize("version", ["3.7", "3.8"])
def test_ctrl_c_at_every_opcode_frees_the_mutex(start, version, body_raises):
    python = environments.interpreter(version)
    if python is None:
        pytest.skip(f"no Python {version} on this machine")
    told = start(python=python).ask("interrupt_at_each_opcode", body_raises=body_raises)
    assert told["leaks_at"] == ""
    assert told["opcodes"] > 300


def test_cleanup_while_a_lease_is_written_sees_all_of_it_or_nothing(folder):
    file = LockedFile(folder)
    seen = []

    def tidy_up(frame, event, argument):
        """Read and clean the folder before each line of ``put``, as processes on other processors may do."""
        if frame.f_code.co_name != "put":
            return None
        if event == "line":
            sys.settrace(None)
            with folder.open() as descriptor:
                found = FolderReader().read(descriptor, remove_stale=True)
            seen.append(tuple(str(dict(holder.claims)) for holder in found.holders))
            sys.settrace(tidy_up)
        return tidy_up

    sys.settrace(tidy_up)
    try:
        with folder.open() as descriptor:
            file.put(descriptor, "job.0.1.00000000", lease_text({"GPU-0": 2}))
    finally:
        sys.settrace(None)
    assert len(seen) > 10
    assert set(seen) == {(), ("{'GPU-0': 2}",)}
    assert [dict(holder.claims) for holder in holders(folder)] == [{"GPU-0": 2}]


INTERRUPTS = int(os.environ.get("INTERRUPTS", "5000"))
LONGEST_S = 100.0


@pytest.mark.thorough
@pytest.mark.turns(3)
@pytest.mark.timeout(LONGEST_S + 100)
@pytest.mark.parametrize("version", ["3.8", sys.version_info[:2], "3.13"], ids=["3.8", "current", "3.13"])
def test_interrupts_at_random_moments_leave_no_claim_and_no_lock(start, version):
    python = environments.interpreter(version) if isinstance(version, str) else sys.executable
    if python is None:
        pytest.skip(f"no Python {version} on this machine")
    told = start(python=python).ask("interrupt_at_random", count=INTERRUPTS, longest_s=LONGEST_S)
    print(f"\n{told}")
    assert told["problems"] == []
    assert told["interrupted"] >= 1000
