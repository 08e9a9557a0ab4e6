"""Other processes with leases or tickets, for tests of a process that requests GPUs."""

from __future__ import annotations

import json
import os
import signal
from contextlib import contextmanager
from pathlib import Path

from autogpu.lease import Lease, Terms, choose_and_lease, find_folder
from autogpu.lease.queue import wait_for_lease

TIMEOUT_S = 60

# Pipe ends of the running jobs. A job ends when its pipe is closed, so a later fork must close its copies.
_pipes: set[int] = set()


class OtherJob:
    """A process that holds a lease or a ticket until :meth:`end`."""

    def __init__(self, pid, pipe):
        self.pid = pid
        self._pipe = pipe

    def end(self):
        if self._pipe is not None:
            _pipes.remove(self._pipe)
            os.close(self._pipe)
            self._pipe = None
            os.waitpid(self.pid, 0)


@contextmanager
def other_job(environ, claims, script="other.py", group=None, caps=None, age_s=0.0, uid=None):
    """Start a process of user ``uid`` with a lease on ``claims`` (bytes keyed by UUID), ``age_s`` seconds old."""

    def hold(folder, is_ready):
        if uid is not None:
            os.setgroups([])
            os.setgid(uid)
            os.setuid(uid)
        held = Lease(folder, script, group=group)
        choose_and_lease(held, lambda *_: (None, Terms(claims, caps or {})))
        if age_s:
            let_age(folder.path, age_s, os.getpid())
        is_ready(True)

    with _process(environ, hold) as job:
        yield job


@contextmanager
def waiting_job(environ, demand):
    """Start a process that waits in the queue and never gets a GPU."""

    def wait(folder, is_ready):
        def waiting(queue, _):
            is_ready(True)
            raise InterruptedError

        never = (None, None)
        waited = Lease(folder, "w.py")
        wait_for_lease(waited, lambda *_: never, demand=demand, timeout_s=TIMEOUT_S, on_wait=waiting)

    with _process(environ, wait) as job:
        yield job


@contextmanager
def _process(environ, run):
    """Fork a process that calls ``run``. It ends when the test closes its end of a pipe, or when the test ends."""
    ready, reader_end = os.pipe(), os.pipe()

    def is_ready(is_so):
        os.write(ready[1], b"x" if is_so else b"-")
        os.read(reader_end[0], 1)

    pid = os.fork()
    if not pid:
        try:
            signal.alarm(TIMEOUT_S)
            for pipe in (reader_end[1], *_pipes):
                os.close(pipe)
            run(find_folder(environ), is_ready)
        finally:
            os._exit(0)
    os.close(reader_end[0])
    os.close(ready[1])
    assert os.read(ready[0], 1) == b"x"
    os.close(ready[0])
    _pipes.add(reader_end[1])
    job = OtherJob(pid, reader_end[1])
    try:
        yield job
    finally:
        job.end()


def let_age(folder, seconds, pid=None):
    """Make the leases in ``folder``, or only those of ``pid``, older: a lease's age is that of its file."""
    for file in Path(folder).glob("job.*"):
        if pid in (None, json.loads(file.read_text())["pid"]):
            written_s = file.stat().st_mtime - seconds
            os.utime(str(file), (written_s, written_s))


def claims_on(*devices):
    """Return claims on the whole memory of each device, in bytes keyed by UUID."""
    return {device.uuid: device.memory_total_bytes for device in devices}
