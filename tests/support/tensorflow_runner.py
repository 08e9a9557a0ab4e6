"""Scripts for every version of TensorFlow, and what became of one that ran."""

from __future__ import annotations

import textwrap
from pathlib import Path

from tests.gpusim import Call, Gpu, Server
from tests.support.forkserver import Forks
from tests.support.versions import Version

MIB, GIB = 1 << 20, 1 << 30
CONTEXT = 256 * MIB

# GPU 0 and 2 belong to colleagues; of the idle ones GPU 3 wins the tie. CUDA counts the fastest first: 1, 3, 0, 2.
LAB = (
    Gpu(
        name="NVIDIA GeForce GTX 1080 Ti",
        memory="11GiB",
        compute_capability="6.1",
        processes={5004242: "9GiB"},
        utilization=97,
    ),
    Gpu(name="NVIDIA TITAN RTX", memory="24GiB", compute_capability="7.5", multiprocessors=72),
    Gpu(
        name="NVIDIA GeForce GTX 1080 Ti",
        memory="11GiB",
        compute_capability="6.1",
        processes={5004243: "2GiB"},
        utilization=40,
    ),
    Gpu(name="NVIDIA TITAN RTX", memory="24GiB", compute_capability="7.5", multiprocessors=68),
)
IN_CUDAS_ORDER = [1, 3, 0, 2]

# The names that all versions have.
GROWTH = """
for gpu in tf.config.experimental.list_physical_devices("GPU"):
    tf.config.experimental.set_memory_growth(gpu, True)
"""
LIMIT_OF_1_GIB = """
first = tf.config.experimental.list_physical_devices("GPU")[0]
limit = tf.config.experimental.VirtualDeviceConfiguration(memory_limit=1024)
tf.config.experimental.set_virtual_device_configuration(first, [limit])
"""


def script(*parts: str) -> str:
    return "import json\nimport os\nimport tensorflow as tf\n" + "\n".join(map(textwrap.dedent, parts)) + "\n"


def operation(version: Version) -> str:
    """A first operation on the first GPU, the way this version is used: eager, or in a session of its own."""
    if version.number >= (2, 0):
        return f"with tf.device('/GPU:0'):\n    result = {_tensor(version)}\n"
    return session(version)


def session(version: Version, config: str = "") -> str:
    """The first operation in a version 1 session, which every version has."""
    return (
        "with tf.Graph().as_default():\n"
        "    with tf.device('/GPU:0'):\n"
        f"        result = {_tensor(version)}\n"
        f"    with tf.compat.v1.Session({config}) as session:\n"
        "        session.run(result.op)\n"
    )


def _tensor(version: Version) -> str:
    if version.launches_kernels:
        return "tf.random.uniform((256, 256)) + 1.0"
    # Memory that is never written to: all that an operation can have on a GPU without a kernel.
    return "tf.raw_ops.Empty(shape=[256, 256], dtype=tf.float32)"


class Ran:
    """A script that has ended, with what it asked of the driver."""

    def __init__(self, stdout: str, stderr: str, calls: list[Call]):
        self.stdout, self.stderr, self.calls = stdout, stderr, calls

    @property
    def said(self) -> list[str]:
        """What autogpu printed."""
        return [line for line in self.stderr.splitlines() if line.startswith("autogpu: ")]

    @property
    def contexts(self) -> list[int]:
        """The GPUs with a context, in PCI order."""
        return sorted({call.gpu for call in self.calls if call.call == "context" and call.gpu is not None})

    @property
    def allocated(self) -> dict[int, int]:
        """Bytes asked for and granted, by GPU."""
        granted: dict[int, int] = {}
        for call in self.calls:
            if call.call == "allocate" and call.gpu is not None and call.bytes is not None:
                granted[call.gpu] = granted.get(call.gpu, 0) + call.bytes
        return granted


class Runner:
    """Runs scripts on one server with one environment's Python, as ``train.py`` in ``folder``.

    Args:
        forks: Where to run them, unless a test asks for a fresh process; without, each is one.
    """

    def __init__(self, python: Path, server: Server, folder: Path, forks: Forks | None = None):
        self.python, self.server, self.folder, self.forks = python, server, folder, forks
        folder.mkdir(exist_ok=True)

    def __call__(self, text: str, *, exit_status: int = 0, fresh: bool = False, **environ: str) -> Ran:
        file = self.folder / "train.py"
        file.write_text(text)
        before = len(self.server.calls())
        if self.forks and not fresh:
            everything = self.server.environ_of_child(environ)
            done = self.forks.run(self.python, file, environ=everything, folder=self.folder)
        else:
            done = self.server.run([str(self.python), str(file)], environ=environ, timeout=300, cwd=str(self.folder))
        # pytest explains bare assertions in files of tests only.
        assert done.returncode == exit_status, f"exit status {done.returncode}\n{done.stdout}\n{done.stderr}"
        return Ran(done.stdout, done.stderr, self.server.calls()[before:])
