"""Other processes that hold GPUs by leases, for tests of one that wants some."""

from __future__ import annotations

import os
import signal
from contextlib import contextmanager

from autogpu.lease import acquire_lease, find_folder

TIMEOUT_S = 60

# What ends the jobs that live: a later one must not keep it open.
_pipes: set[int] = set()


class OtherJob:
    """A process that holds a lease until it is told to end."""

    def __init__(self, pid, pipe):
        self.pid = pid
        self._pipe = pipe

    def end(self):
        """Let it end, and wait for that."""
        if self._pipe is not None:
            _pipes.remove(self._pipe)
            os.close(self._pipe)
            self._pipe = None
            os.waitpid(self.pid, 0)


@contextmanager
def other_job(environ, claims, script="other.py", group=None, caps=None, uid=None):
    """A process that holds ``claims`` (bytes by UUID) in the lease folder that ``environ`` names, as user ``uid``."""
    ready, reader_end = os.pipe(), os.pipe()
    pid = os.fork()
    if not pid:
        try:
            signal.alarm(TIMEOUT_S)
            for pipe in (reader_end[1], *_pipes):
                os.close(pipe)
            if uid is not None:
                os.setgroups([])
                os.setgid(uid)
                os.setuid(uid)
            folder = find_folder(environ)
            held = acquire_lease(folder, lambda *_: claims, script=script, group=group, caps=lambda: caps or {})
            os.write(ready[1], b"x" if held else b"-")
            os.read(reader_end[0], 1)  # until the test closes its end, or ends
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


def claims_on(*devices):
    """The whole of each, as one job claims it."""
    return {device.uuid: device.memory_total_bytes for device in devices}
