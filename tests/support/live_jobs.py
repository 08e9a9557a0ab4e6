"""Jobs of real TensorFlow that run side by side on one simulated server, and what the lease folder says of them."""

from __future__ import annotations

import fcntl
import json
import os
import struct

GIB = 1 << 30

# Takes a GPU, says so, and keeps it until its input ends.
HOLD = """
import sys
import tensorflow as tf
with tf.device("/GPU:0"):
    x = tf.random.uniform((256, 256))
print("ready", x.device[-5:], flush=True)
sys.stdin.read()
"""


class Job:
    def __init__(self, server, python, file, *arguments, forks, **environ):
        self.server = server
        child = server.environ_of_child(environ)
        self.process = server.adopt(forks.start(python, file, *arguments, environ=child, folder=file.parent))
        self.pid = self.process.pid

    def ready(self):
        """What the job says once it has its GPU; empty if it has ended without."""
        return self.process.stdout.readline().strip()

    def end(self):
        """Let it end by itself; its exit status and what autogpu said."""
        _, errors = self.process.communicate(timeout=120)
        return self.process.returncode, [line for line in errors.splitlines() if line.startswith("autogpu: ")]

    def gpus(self):
        return self.server.contexts().get(self.pid, [])

    def allocated(self):
        return sum(call.bytes for call in self.server.calls(pid=self.pid, call="allocate"))


def is_owned(file):
    """The file's user has it locked; asked without autogpu, by F_OFD_GETLK."""
    answer = fcntl.fcntl(file, 36, struct.pack("hhqqi4x", fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0))
    return struct.unpack_from("h", answer)[0] != fcntl.F_UNLCK


def leases(folder):
    """The text of every lease that is alive, read without autogpu."""
    alive = {}
    for path in folder.glob("job.*"):
        with path.open() as file:
            if is_owned(file):
                alive[path.name] = json.load(file)
    return alive


def claims(folder, server):
    """By pid, the GPU indices and GiB that its lease claims."""
    index = {gpu.uuid: position for position, gpu in enumerate(server.gpus)}
    return {
        fields["pid"]: {index[uuid]: round(size / GIB, 2) for uuid, size in fields["gpus"].items()}
        for fields in leases(folder).values()
    }
