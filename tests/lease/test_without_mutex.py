"""If the mutex is stuck, no GPU is claimed twice and the queue is still served in its order."""

import time

import pytest

from autogpu.frozen import replace
from autogpu.lease import Fault, Lease, acquire_lease
from tests.lease.choosers import promised
from tests.lease.conftest import holders, until, waiters

GPUS = [f"GPU-{number}" for number in range(4)]


def stuck(start):
    """Start and return a worker that takes the mutex and never releases it."""
    start().ask("acquire", gpus={})
    worker = start()
    worker.ask("hold_mutex")
    return worker


def test_simultaneous_claims_without_the_mutex_overbook_no_gpu(folder, start):
    stuck(start)
    crowd = start().ask("crowd", count=40, totals=dict.fromkeys(GPUS, 10), size=4, patience_s=0.1)
    claimed = [told["claims"] for told in crowd["told"] if told["claims"]]
    assert promised(holders(folder)) == dict.fromkeys(GPUS, 8)
    # As many claims as fit. Fewer would mean that two processes collided and both gave up.
    assert len(claimed) == 8
    assert all(told["problem"] == "MUTEX_HELD" for told in crowd["told"] if told["claims"])


def test_process_stopped_in_the_mutex_respects_claims_made_meanwhile(start):
    stopped, other = start(), start()
    stopped.tell("acquire", free=GPUS[:2], stops=True)
    assert stopped.hear() == {"event": "choosing"}
    assert other.ask("acquire", free=GPUS[:2], patience_s=0.1)["claims"] == {"GPU-0": 1}
    stopped.process.stdin.write(b"go on\n")
    stopped.process.stdin.flush()
    assert stopped.result()["claims"] == {"GPU-1": 1}


def test_queue_is_served_in_order_without_the_mutex(start):
    holder = start()
    holder.ask("acquire", free=["GPU-0"])
    stuck(start)
    line = [start(), start()]
    for worker in line:
        worker.wait_in_line(free=["GPU-0"], patience_s=0.1)
    for before, worker in zip([holder, *line], line):
        before.kill()
        assert worker.result() == {"claims": {"GPU-0": 1}}


@pytest.mark.thorough
@pytest.mark.turns(2)
@pytest.mark.timeout(900)
def test_two_hundred_and_fifty_waiters_are_all_served(folder, start):
    holder, relay = start(), start()
    holder.ask("acquire", free=["GPU-0"])
    relay.tell("relay", count=250, timeout_s=600)
    until(lambda: len(waiters(folder)) == 250, timeout_s=120)
    holder.kill()
    assert relay.result(timeout_s=600) == {"served": 250}


def test_process_waits_only_once_for_a_stuck_mutex(folder, start):
    holder, problems = stuck(start), []
    folder = replace(folder, patience_s=0.8)

    def claim():
        begun_s = time.monotonic()
        lease = acquire_lease(Lease(folder, "a"), lambda *_: {"GPU-0": 1})
        lease.release()
        problems.extend(filter(None, [lease.problem]))
        return time.monotonic() - begun_s

    assert claim() >= 0.8
    assert max(claim() for _ in range(4)) < 0.7
    assert len(problems) == 5
    assert all((problem.fault, problem.holder[0]) == (Fault.MUTEX_HELD, holder.pid) for problem in problems)
    assert min(problem.stuck_s for problem in problems) >= 0.8
    # After a claim got the mutex, the process waits the full time again.
    holder.kill()
    claim()
    stuck(start)
    assert claim() >= 0.8
    assert len(problems) == 6
