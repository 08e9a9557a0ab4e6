"""Jobs of real TensorFlow that run side by side on one simulated server, and what the lease folder says of them."""

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

# The same on the GPU of its number among several processes, an expression; in TensorFlow 2 and in TensorFlow 1.
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
