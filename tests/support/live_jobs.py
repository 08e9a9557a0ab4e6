"""Jobs with real TensorFlow that run side by side on one simulated server, and functions to read their leases."""

import fcntl
import json
import os
import struct

GIB = 1 << 30

# Takes a GPU, prints a line, and keeps the GPU until the end of stdin.
HOLD = """
import sys
import tensorflow as tf
with tf.device("/GPU:0"):
    x = tf.random.uniform((256, 256))
print("ready", x.device[-5:], flush=True)
sys.stdin.read()
"""

# The same for one of several processes. `number` is an expression for the GPU number of the process. The first script
# uses the API of TensorFlow 2, the second one that of TensorFlow 1.
GPU_OF_NUMBER = {
    "set_visible_devices": """
import json, os, sys
import tensorflow as tf
number = int({number})
tf.config.set_visible_devices(tf.config.list_physical_devices("GPU")[number], "GPU")
x = tf.random.uniform((256, 256))
os.write(1, f"{{number}} {{os.getpid()}}\\n".encode())
sys.stdin.read()
""",
    "visible_device_list": """
import json, os, sys
import tensorflow as tf
v1, number = tf.compat.v1, int({number})
options = v1.GPUOptions(visible_device_list=str(number))
with tf.Graph().as_default(), v1.Session(config=v1.ConfigProto(gpu_options=options)) as session:
    session.run(tf.random.uniform((256, 256)))
    os.write(1, f"{{number}} {{os.getpid()}}\\n".encode())
    sys.stdin.read()
""",
}


class Job:
    def __init__(self, server, python, file, *arguments, forks, **environ):
        self.server = server
        child = server.environ_of_child(environ)
        self.process = server.adopt(forks.start(python, file, *arguments, environ=child, folder=file.parent))
        self.pid = self.process.pid

    def ready(self):
        """Wait until the job has its GPU and return the line that it prints; ``""`` if the job has ended before."""
        return self.process.stdout.readline().strip()

    def end(self):
        """Close stdin, wait for the end, and return the exit status and autogpu's lines on stderr."""
        _, errors = self.process.communicate(timeout=120)
        return self.process.returncode, [line for line in errors.splitlines() if line.startswith("autogpu: ")]

    def gpus(self):
        return self.server.contexts().get(self.pid, [])

    def allocated(self):
        return sum(call.bytes for call in self.server.calls(pid=self.pid, call="allocate"))


def is_owned(file):
    """True if a process has locked the file. Uses F_OFD_GETLK (36) instead of autogpu's own code."""
    answer = fcntl.fcntl(file, 36, struct.pack("hhqqi4x", fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0))
    return struct.unpack_from("h", answer)[0] != fcntl.F_UNLCK


def leases(folder):
    """Return the fields of every live lease, keyed by file name. Does not use autogpu's own code."""
    alive = {}
    for path in folder.glob("job.*"):
        with path.open() as file:
            if is_owned(file):
                alive[path.name] = json.load(file)
    return alive


def claims(folder, server):
    """Return the GiB claimed by each live lease, keyed by pid and then by GPU index."""
    index = {gpu.uuid: position for position, gpu in enumerate(server.gpus)}
    return {
        fields["pid"]: {index[uuid]: round(size / GIB, 2) for uuid, size in fields["gpus"].items()}
        for fields in leases(folder).values()
    }
