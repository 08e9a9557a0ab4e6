"""The queue: waiters are served in their order, and never behind a dead process."""

import contextlib
import fcntl
import json
import os
import signal
import time

import pytest

from autogpu.lease import Demand, GaveUp, Lease, acquire_lease, locks, queue
from autogpu.lease.snapshot import FolderReader
from tests.lease.choosers import wait_for_claims
from tests.lease.conftest import ALICE, BOB, holders, pass_a_tick, until, waiters
from tests.lease.test_record import TICKET

GPU = ["GPU-0"]


def never(holders, waiters):
    return None


def test_free_gpu_goes_to_the_waiters_in_their_order(folder, start):
    """The waiters belong to several users, and one is killed before its turn."""
    users = (ALICE, BOB) if os.geteuid() == 0 else ()
    who = [(), *(("--uid", str(uid), "--umask", "077") for uid in users)]
    serving, *line = (start(*who[number % len(who)]) for number in range(7))
    serving.ask("acquire", free=GPU)
    for position, worker in enumerate(line, start=1):
        assert worker.wait_in_line(free=GPU) == {"event": "waiting", "position": position}
    assert [waiter.pid for waiter in waiters(folder)] == [worker.pid for worker in line]
    line.pop(2).kill()
    until(lambda: [waiter.pid for waiter in waiters(folder)] == [worker.pid for worker in line])

    for worker in line:
        serving.kill()
        assert worker.result() == {"claims": {"GPU-0": 1}}
        assert [holder.pid for holder in holders(folder)] == [worker.pid]
        serving = worker

    assert waiters(folder) == ()


def test_on_wait_gets_the_position_and_the_waiters_ahead(folder, start):
    holder, first = start(), start()
    holder.ask("acquire", free=GPU)
    first.wait_in_line(free=GPU, count=2, bytes=7)
    states = []
    with pytest.raises(GaveUp) as caught:
        wait_for_claims(Lease(folder, "a"), never, demand=Demand(), timeout_s=0.05, on_wait=states.append)
    assert states[0].position == 2
    assert [one.pid_here for one in states[0].ahead] == [first.pid]
    assert states[0].ahead[0].demand == Demand(2, 7, ("GPU-0",))
    assert (caught.value.timeout_s, caught.value.position) == (0.05, 2)
    # A process that gave up has left the queue.
    assert [waiter.pid for waiter in waiters(folder)] == [first.pid]


def test_claim_without_waiting_does_not_jump_the_queue(folder, start):
    holder, other, waiting, jumper = start(), start(), start(), start()
    holder.ask("acquire", gpus={"GPU-0": 1})
    other.ask("acquire", gpus={"GPU-1": 1})
    waiting.wait_in_line(free=GPU)
    seen = []
    acquire_lease(Lease(folder, "a"), lambda holders, waiters: seen.append([waiter.pid for waiter in waiters]))
    assert seen[-1] == [waiting.pid]
    other.kill()
    assert jumper.ask("acquire", free=["GPU-0", "GPU-1"])["claims"] == {"GPU-1": 1}
    waiting.stop(folder)
    holder.kill()
    assert jumper.ask("acquire", free=GPU)["claims"] is None
    waiting.kill(signal.SIGCONT)
    assert waiting.result() == {"claims": {"GPU-0": 1}}


def test_ticket_ends_with_its_process_although_a_forked_child_lives(folder, start):
    holder, forking = start(), start()
    holder.ask("acquire", free=GPU)
    forking.ask("wait_in_thread")
    forking.ask("fork")
    assert len(waiters(folder)) == 1
    forking.kill()
    until(lambda: waiters(folder) == ())


@pytest.mark.slow
def test_stopped_waiter_is_passed_over_after_5_s_and_keeps_its_place(folder, start):
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
    assert late.result()["error"] == "GaveUp"
    assert 0.4 < time.monotonic() - begin < 10
    assert waiters(folder) == ()


def test_waiter_reads_the_driver_from_time_to_time_without_the_mutex(folder, monkeypatch):
    monkeypatch.setattr(queue, "LOOK_S", 0.1)
    monkeypatch.setattr(queue, "READ_S", 0.15)
    order = []

    def choose(holders, waiters):
        order.append("choose")
        return {"GPU-0": 1} if order.count("read") == 2 else None

    lease = wait_for_claims(
        Lease(folder, "a"), choose, demand=Demand(), timeout_s=30, before_look=lambda _: order.append("read")
    )

    # The first look takes the ticket before the driver is read. The last choice, under the mutex, adds no reading.
    assert order == ["choose", "choose", "read", "choose", "choose", "read", "choose", "choose"]
    lease.release()


def test_waiter_reads_the_driver_again_before_it_claims(folder, monkeypatch):
    monkeypatch.setattr(queue, "LOOK_S", 0.1)
    monkeypatch.setattr(queue, "READ_S", 60.0)
    order = []

    def choose(holders, waiters):
        order.append("choose")
        # The GPU is free at the second look. The reading shows that another job uses it, until the fourth look.
        return {"GPU-0": 1} if order.count("choose") in (2, 5, 6) else None

    lease = wait_for_claims(
        Lease(folder, "a"), choose, demand=Demand(), timeout_s=30, before_look=lambda _: order.append("read")
    )
    assert order == ["choose", "choose", "read", "choose", "choose", "choose", "read", "choose"]
    lease.release()


def test_waiter_that_lost_the_race_for_a_gpu_takes_a_ticket_at_once(folder):
    looks, at_s = iter([{"GPU-0": 1}]), []

    def on_wait(state):
        if waiters(folder):
            at_s.append(state.waited_s)

    # The second look takes the ticket. If it did not come at once, it would come only at the timeout of 0.9 s.
    with pytest.raises(GaveUp):
        choose = lambda *_: next(looks, None)  # noqa: E731
        wait_for_claims(Lease(folder, "a"), choose, demand=Demand(), timeout_s=0.9, on_wait=on_wait)
    assert at_s[0] < 0.8


@pytest.mark.parametrize(("near", "most"), [(8, 100), (-1, 3)], ids=["near", "far"])
def test_waiter_far_back_looks_rarely_but_sends_heartbeats(folder, monkeypatch, near, most):
    monkeypatch.setattr(queue, "_NEAR", near)
    monkeypatch.setattr(queue, "LOOK_S", 0.02)
    monkeypatch.setattr(queue, "_FAR_LOOK_S", 0.5)
    beats, looks = [], []
    monkeypatch.setattr(locks, "beat", beats.append)
    with pytest.raises(GaveUp):
        wait_for_claims(Lease(folder, "a"), never, demand=Demand(), timeout_s=0.7, on_wait=looks.append)
    assert (len(looks) <= most, len(looks) > 3, len(beats) > 3) == (True, near > 0, True)


@pytest.mark.parametrize("demand", [Demand(count=0), Demand(bytes_per_gpu=-1), Demand(uuids=("a b",))], ids=str)
def test_impossible_demand_raises_value_error_and_takes_no_ticket(folder, path, demand):
    with pytest.raises(ValueError):
        wait_for_claims(Lease(folder, "a"), never, demand=demand, timeout_s=30)
    assert list(path.iterdir()) == []


def test_a_removed_ticket_is_taken_again(folder, path, monkeypatch):
    monkeypatch.setattr(queue, "LOOK_S", 0.01)
    counts = []

    def on_wait(state):
        counts.append(len(waiters(folder)))
        for ticket in path.glob("wait.*"):
            if len(counts) == 1:
                ticket.unlink()
        if len(counts) == 3:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        wait_for_claims(Lease(folder, "a"), never, demand=Demand(), timeout_s=30, on_wait=on_wait)
    assert counts == [1, 1, 1]
    assert waiters(folder) == ()


@pytest.fixture
def ticket(path):
    """Return a function that makes a ticket as any user can: an open, locked file with any name and fields."""

    def ticket(name, **fields):
        file = files.enter_context((path / name).open("w+"))
        locks.own(file.fileno())
        file.write(json.dumps({**TICKET, "pid": os.getpid(), **fields}))
        file.flush()
        return file

    with contextlib.ExitStack() as files:
        yield ticket


def pids(folder):
    return [waiter.pid for waiter in waiters(folder)]


FIRST = "wait.0000000000.0.00000000"
TRICKS = {
    "a-rename": lambda file: file.rename(file.with_name("wait.0.0.00000000")),
    "an-old-mtime": lambda file: os.utime(str(file), (0, 0)),
    "another-mode": lambda file: file.chmod(0o640),
    "a-second-name": lambda file: os.link(str(file), str(file.with_name("wait.0.0.00000000"))),
}


@pytest.fixture
def waiting(start):
    """Return a worker whose ticket is in the queue, and the worker that holds the GPU."""
    holder, waiting = start(), start()
    holder.ask("acquire", free=GPU)
    waiting.wait_in_line(free=GPU)
    return waiting, holder


def test_later_ticket_with_an_earlier_name_is_not_served_first(folder, waiting, ticket):
    first, _ = waiting
    ticket(FIRST, t=0)
    assert pids(folder) == [first.pid, os.getpid()]


def test_prepared_file_gets_its_place_when_it_gets_a_ticket_name(folder, path, ticket, request):
    for name in (".wait.0", "ready"):
        ticket(name, t=0)
    pass_a_tick()
    first, _ = request.getfixturevalue("waiting")
    (path / ".wait.0").rename(path / FIRST)
    os.link(str(path / "ready"), str(path / "wait.0.0.00000001"))
    assert pids(folder) == [first.pid, os.getpid(), os.getpid()]


@pytest.mark.parametrize("trick", TRICKS.values(), ids=TRICKS)
def test_changing_a_ticket_file_moves_it_to_the_end_of_the_queue(folder, path, ticket, trick, request):
    ticket(FIRST, t=0)
    pass_a_tick()
    first, holder = request.getfixturevalue("waiting")
    assert pids(folder) == [os.getpid(), first.pid]
    trick(path / FIRST)
    assert pids(folder) == [first.pid, os.getpid()]
    holder.kill()
    assert first.result() == {"claims": {"GPU-0": 1}}


def test_heartbeats_do_not_change_the_ctime_or_order_of_tickets(folder, start):
    holder, *line = start(), start(), start()
    holder.ask("acquire", free=GPU)
    for worker in line:
        worker.wait_in_line(free=GPU)
    came = [(folder.path / waiter.name).stat().st_ctime_ns for waiter in waiters(folder)]
    begun_s = time.monotonic()
    until(lambda: time.monotonic() - begun_s > 3.0)
    assert [(folder.path / waiter.name).stat().st_ctime_ns for waiter in waiters(folder)] == came
    assert all(-0.5 < waiter.silent_s < 2.5 for waiter in waiters(folder))
    assert pids(folder) == [worker.pid for worker in line]


def test_heartbeat_follows_a_clock_that_is_set_back_or_ahead(path, monkeypatch):
    with (path / FIRST).open("w+") as file, (path / FIRST).open() as other:
        assert locks.last_beat(other.fileno()) is None
        locks.own(file.fileno())
        assert locks.last_beat(other.fileno()) == 0.0
        for now_s in (5000.0, 5003.5, 1400.25, 9000.0):
            monkeypatch.setattr(locks, "unix_s", lambda now_s=now_s: now_s)
            locks.beat(file.fileno())
            assert locks.last_beat(other.fileno()) == now_s


def test_read_lock_of_another_process_can_not_stop_a_heartbeat(path, monkeypatch):
    """A process that can read a file can take a read lock on it. That lock would block the owner's write lock."""
    with (path / FIRST).open("w+") as file, (path / FIRST).open() as another, (path / FIRST).open() as other:
        locks.own(file.fileno())
        for now_s in (5000.0, 5002.0, 5004.0):
            monkeypatch.setattr(locks, "unix_s", lambda now_s=now_s: now_s)
            locks.beat(file.fileno())
            taken = []
            for start_ms in (0, 4999000, int(now_s * 1000), int(now_s * 1000) + 1, 10**15):
                try:
                    locks._set_owned(another.fileno(), fcntl.F_RDLCK, start_ms, 1)
                    taken.append(start_ms)
                except BlockingIOError:
                    pass
            assert taken == [0, 4999000]
            assert locks.last_beat(other.fileno()) == now_s
    # The owner has closed the file, and only a read lock of another descriptor remains.
    with (path / FIRST).open() as another, (path / FIRST).open() as other:
        locks._set_owned(another.fileno(), fcntl.F_RDLCK, 0, 0)
        assert locks.last_beat(other.fileno()) is None


def test_each_reading_of_the_folder_has_the_current_heartbeats(folder, ticket, monkeypatch):
    file = ticket(FIRST)
    with monkeypatch.context() as then:
        then.setattr(locks, "unix_s", lambda: time.time() - 100)
        locks.beat(file.fileno())
    with folder.open() as descriptor:
        reader = FolderReader()
        (before,) = reader.read(descriptor).waiters
        locks.beat(file.fileno())
        (after,) = reader.read(descriptor).waiters
    assert before.silent_s > 90
    assert -1 < after.silent_s < 60
