"""Waiting in line: in order, woken at once, and never behind a dead process."""

from __future__ import annotations

import json
import os
import signal
import time

import pytest

from autogpu.errors import WaitTimeout
from autogpu.lease import Demand, Uncoordinated, acquire_lease, inotify, locks
from autogpu.lease.queue import wait_for_lease
from autogpu.lease.snapshot import FolderReader
from tests.lease.conftest import ALICE, BOB, holders, until, waiters
from tests.lease.test_record import TICKET

GPU = ["GPU-0"]


def never(holders, waiters):
    return None


def test_who_need_not_wait_does_not(folder):
    lease = wait_for_lease(folder, lambda *_: {"GPU-0": 1}, demand=Demand(), script="a", timeout_s=0)
    assert lease.claims == {"GPU-0": 1}
    assert waiters(folder) == ()
    lease.release()


def test_a_free_gpu_goes_to_those_who_wait_in_their_order_and_at_once(folder, start):
    """Processes of all users; one of them is killed before its turn."""
    users = (ALICE, BOB) if os.geteuid() == 0 else ()
    who = [(), *(("--uid", str(uid), "--umask", "077") for uid in users)]
    serving, *line = (start(*who[number % len(who)]) for number in range(7))
    serving.ask("acquire", free=GPU)
    for position, worker in enumerate(line, start=1):
        assert worker.wait_in_line(free=GPU) == {"event": "waiting", "position": position, "holders": 1}
    assert [waiter.pid for waiter in waiters(folder)] == [worker.pid for worker in line]
    line.pop(2).kill()
    until(lambda: [waiter.pid for waiter in waiters(folder)] == [worker.pid for worker in line])

    times = []
    for worker in line:
        begin = time.perf_counter()
        serving.kill()
        assert worker.result() == {"claims": {"GPU-0": 1}}
        times.append((time.perf_counter() - begin) * 1000)
        assert [holder.pid for holder in holders(folder)] == [worker.pid]
        serving = worker

    print("\nhand-over in ms: " + " ".join(f"{ms:.1f}" for ms in times))
    # The heartbeat alone would take a second on the average.
    assert sorted(times)[2] < 500
    assert waiters(folder) == ()


@pytest.mark.slow
def test_a_holders_death_wakes_those_who_sleep(start):
    holder, waiting = start(), start()
    holder.ask("acquire", free=GPU)
    waiting.wait_in_line(free=GPU)
    # Until a look that only the heartbeat can have caused; the next would come two seconds later.
    gap_s = 0.0
    while gap_s < 1.5:
        begin = time.monotonic()
        assert waiting.hear()["event"] == "waiting"
        gap_s = time.monotonic() - begin
    begin = time.monotonic()
    holder.kill()
    assert waiting.result() == {"claims": {"GPU-0": 1}}
    woken_s = time.monotonic() - begin
    assert woken_s < 1.9


def test_without_inotify_the_head_looks_often(folder, start, monkeypatch):
    monkeypatch.setattr(inotify, "_start", lambda folder: None)
    holder = start()
    holder.ask("acquire", free=GPU)
    begin = time.monotonic()

    def on_wait(state):
        holder.kill()

    def choose(holders, waiters):
        return None if holders else {"GPU-0": 1}

    lease = wait_for_lease(folder, choose, demand=Demand(), script="a", timeout_s=30, on_wait=on_wait)
    assert time.monotonic() - begin < 1.9
    lease.release()


def test_the_queue_is_told_who_holds_and_who_is_ahead(folder, start):
    holder, first = start(), start()
    holder.ask("acquire", free=GPU)
    first.wait_in_line(free=GPU, count=2, bytes=7)
    states = []
    with pytest.raises(WaitTimeout) as caught:
        wait_for_lease(folder, never, demand=Demand(), script="a", timeout_s=0.05, on_wait=states.append)
    assert states[0].position == 2
    assert [one.pid for one in states[0].holders] == [holder.pid]
    assert [one.pid_here for one in states[0].ahead] == [first.pid]
    assert states[0].ahead[0].demand == Demand(2, 7, ("GPU-0",))
    assert caught.value.what == "gave up after 0 s at place 2"
    # Whoever gave up no longer stands in line.
    assert [waiter.pid for waiter in waiters(folder)] == [first.pid]


def test_who_does_not_wait_does_not_jump_the_queue(folder, start):
    holder, other, waiting, jumper = start(), start(), start(), start()
    holder.ask("acquire", gpus={"GPU-0": 1})
    other.ask("acquire", gpus={"GPU-1": 1})
    waiting.wait_in_line(free=GPU)
    seen = []
    acquire_lease(folder, lambda holders, waiters: seen.append([waiter.pid for waiter in waiters]), script="a")
    assert seen[-1] == [waiting.pid]
    other.kill()
    assert jumper.ask("acquire", free=["GPU-0", "GPU-1"])["claims"] == {"GPU-1": 1}
    waiting.stop(folder)
    holder.kill()
    assert jumper.ask("acquire", free=GPU)["claims"] is None
    waiting.kill(signal.SIGCONT)
    assert waiting.result() == {"claims": {"GPU-0": 1}}


def test_a_waiter_for_other_gpus_does_not_block(start):
    holder, other, first, second = start(), start(), start(), start()
    holder.ask("acquire", gpus={"GPU-0": 1})
    other.ask("acquire", gpus={"GPU-1": 1})
    first.wait_in_line(free=["GPU-0"])
    second.wait_in_line(free=["GPU-1"])
    other.kill()
    assert second.result() == {"claims": {"GPU-1": 1}}


def test_a_worker_that_a_waiting_process_forked_does_not_stand_in_line_for_it(folder, start):
    holder, forking = start(), start()
    holder.ask("acquire", free=GPU)
    forking.ask("wait_in_thread")
    forking.ask("fork")
    assert len(waiters(folder)) == 1
    forking.kill()
    until(lambda: waiters(folder) == ())


@pytest.mark.slow
def test_the_stopped_are_passed_over_after_five_seconds_and_keep_their_place(folder, start):
    holder, stopped, next_one, jumper = start(), start(), start(), start()
    holder.ask("acquire", free=GPU)
    stopped.wait_in_line(free=GPU)
    next_one.wait_in_line(free=GPU)
    stopped.stop(folder)
    begin = time.monotonic()
    holder.kill()

    assert next_one.result() == {"claims": {"GPU-0": 1}}

    waited_s = time.monotonic() - begin
    assert 2.5 < waited_s < 12
    (still,) = waiters(folder)
    assert (still.pid, still.is_unresponsive) == (stopped.pid, True)
    next_one.kill()
    assert jumper.ask("acquire", free=GPU)["claims"] == {"GPU-0": 1}
    stopped.kill(signal.SIGCONT)
    assert stopped.hear()["event"] == "waiting"
    until(lambda: not waiters(folder)[0].is_unresponsive)
    jumper.kill()
    assert stopped.result() == {"claims": {"GPU-0": 1}}


def test_ctrl_c_or_a_timeout_ends_the_wait_at_once(folder, start):
    holder, interrupted, late = start(), start(), start()
    holder.ask("acquire", free=GPU)
    interrupted.wait_in_line(free=GPU)
    begin = time.monotonic()
    late.wait_in_line(free=GPU, timeout_s=0.5)
    interrupted.kill(signal.SIGINT)
    assert interrupted.result() == {"error": "KeyboardInterrupt"}
    assert time.monotonic() - begin < 1.9
    assert late.result()["error"] == "WaitTimeout"
    assert 0.4 < time.monotonic() - begin < 10
    assert waiters(folder) == ()


def test_a_look_of_its_own_precedes_choosing(folder):
    order = []

    def choose(holders, waiters):
        order.append("choose")
        return {"GPU-0": 1} if order.count("look") == 2 else None

    def on_wait(state):
        # As a lease that ends.
        (folder.path / "job.1.1.00000000").touch()

    lease = wait_for_lease(
        folder,
        choose,
        demand=Demand(),
        script="a",
        timeout_s=30,
        on_wait=on_wait,
        before_look=lambda: order.append("look"),
    )

    # The driver is read while others can choose: not again under the mutex.
    assert order == ["look", "choose", "look", "choose", "choose"]
    lease.release()


def test_the_driver_is_read_by_the_head_and_rarely_by_the_others(folder, start, path):
    holder, first = start(), start()
    holder.ask("acquire", free=GPU)
    first.wait_in_line(free=GPU)
    order = []

    def choose(holders, waiters):
        order.append("behind" if waiters else "head")
        return None if waiters or len(order) < 8 else {"GPU-0": 1}

    def on_wait(state):
        if len(order) == 6:
            first.kill()
        if len(order) > 6:
            order.append("told")
        # Events that matter to those behind.
        (path / "job.1.1.00000000").touch()
        (path / "job.1.1.00000000").unlink()

    wait_for_lease(
        folder,
        choose,
        demand=Demand(),
        script="a",
        timeout_s=30,
        on_wait=on_wait,
        before_look=lambda: order.append("read"),
    ).release()

    # Once at its coming, then not at all for events, and when it has become the head at once.
    assert order[:6] == ["read", "behind", "behind", "behind", "behind", "behind"]
    after = order[6:]
    assert after[after.index("head") :] == ["head", "read", "head", "head"]


@pytest.mark.parametrize("demand", [Demand(count=0), Demand(bytes_per_gpu=-1), Demand(uuids=("a b",))], ids=str)
def test_an_impossible_wish_is_refused_to_its_face(folder, path, demand):
    with pytest.raises(ValueError):
        wait_for_lease(folder, never, demand=demand, script="a", timeout_s=30)
    assert list(path.iterdir()) == []


def test_a_folder_that_vanishes_ends_the_wait(folder, path):
    def on_wait(state):
        path.rename(path.parent / "gone")

    begin = time.monotonic()
    with pytest.raises(Uncoordinated):
        wait_for_lease(folder, never, demand=Demand(), script="a", timeout_s=30, on_wait=on_wait)
    assert time.monotonic() - begin < 1.9


def test_a_removed_ticket_is_taken_again(folder, path):
    counts = []

    def on_wait(state):
        counts.append(len(waiters(folder)))
        for ticket in path.glob("wait.*"):
            if len(counts) == 1:
                ticket.unlink()
        if len(counts) == 3:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        wait_for_lease(folder, never, demand=Demand(), script="a", timeout_s=30, on_wait=on_wait)
    assert counts == [1, 1, 1]
    # What the caller raises comes through, and leaves the line.
    assert waiters(folder) == ()


def test_a_waiter_whose_clock_is_wrong_is_served_in_its_turn_and_passes_nobody_over(folder, start):
    holder, *line = start(), start(), start(prefix=("env", "CLOCK_AHEAD_S=3600")), start(), start()
    holder.ask("acquire", free=GPU)
    for worker in line:
        worker.wait_in_line(free=GPU)
    for before, worker in zip([holder, *line], line):
        before.kill()
        assert worker.result() == {"claims": {"GPU-0": 1}}
        assert [waiter.is_unresponsive for waiter in waiters(folder)] == [False] * (len(line) - line.index(worker) - 1)


def test_a_last_place_that_is_taken_is_shared(folder, path, start):
    with (path / "wait.9999999999.0.1").open("w") as ticket:
        locks.own(ticket.fileno())
        ticket.write(json.dumps(TICKET))
        ticket.flush()
        start().wait_in_line(gpus=None)
        assert [waiter.place for waiter in waiters(folder)] == [9999999999, 9999999999]


def test_each_reading_has_the_heartbeats_of_its_own_moment(folder):
    ticket = folder.path / f"wait.0000000001.{os.geteuid()}.00000000"
    ticket.write_text(json.dumps(TICKET))
    with ticket.open("r+b") as file, folder.opened() as descriptor:
        locks.own(file.fileno())
        os.utime(ticket, (time.time() - 100, time.time() - 100))
        reader = FolderReader()
        (before,) = reader.read(descriptor).waiters
        os.utime(ticket)
        (after,) = reader.read(descriptor, fresh_s=60.0).waiters
    assert before.silent_s > 90
    assert after.silent_s < 60
