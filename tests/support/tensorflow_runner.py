"""Scripts for every version of TensorFlow, and the GPUs of a server for them."""

from __future__ import annotations

import textwrap
from dataclasses import replace
from pathlib import Path

from tests.gpusim import Gpu, Server
from tests.support.forkserver import Forks
from tests.support.framework_machines import CONTEXT, GIB, MIB, Ran, run  # noqa: F401  (sizes, for tests)

# Colleagues use GPU 0 and 2. Of the idle ones autogpu prefers the highest index, 3. CUDA's own order has the fastest
# first: 1, 3, 0, 2.
_GTX_1080_TI = Gpu(name="NVIDIA GeForce GTX 1080 Ti", memory="11GiB", compute_capability="6.1")
_TITAN_RTX = Gpu(name="NVIDIA TITAN RTX", memory="24GiB", compute_capability="7.5")
LAB = (
    replace(_GTX_1080_TI, processes={5004242: "9GiB"}, utilization=97),
    replace(_TITAN_RTX, multiprocessors=72),
    replace(_GTX_1080_TI, processes={5004243: "2GiB"}, utilization=40),
    replace(_TITAN_RTX, multiprocessors=68),
)

# Defines `leased()`, which returns the GiB claimed by the script's process, keyed by UUID.
LEASED = """
import json, os, pathlib
import tensorflow as tf

def leased():
    for file in pathlib.Path(os.environ["AUTOGPU_LEASE_DIR"]).glob("job.*"):
        fields = json.loads(file.read_text())
        if fields["pid"] == os.getpid():
            return {uuid: size / 2**30 for uuid, size in fields["gpus"].items()}
"""
# Defines functions for each way to use a GPU. All TensorFlow versions have the names that they use.
SESSIONS = (
    LEASED
    + """
from tensorflow.python.client import device_lib
v1 = tf.compat.v1
Options = v1.GPUOptions
Virtual = Options.Experimental.VirtualDevices
gpus = tf.config.experimental.list_physical_devices("GPU")

def show(devices):
    limits = [getattr(d, "memory_limit_bytes", None) or getattr(d, "memory_limit", None) for d in devices]
    print([limit >> 20 for d, limit in zip(devices, limits) if d.device_type == "GPU"])

def session(target="", *, device_count=None, **options):
    with tf.Graph().as_default():
        config = v1.ConfigProto(gpu_options=Options(**options), device_count=device_count)
        before = config.SerializeToString()
        made = v1.Session(target, config=config)
        assert config.SerializeToString() == before, "the script's own proto is left alone"
        show(made.list_devices())
        if made.list_devices()[-1].device_type == "GPU":
            with tf.device("/GPU:0"):
                result = tf.raw_ops.Empty(shape=[256, 256], dtype=tf.float32)
            made.run(result.op)

def eager():
    from tensorflow.python.eager import context

    context.context().ensure_initialized()
    print(context.context().num_gpus())
"""
)


def script(*parts: str) -> str:
    return "import json\nimport os\nimport tensorflow as tf\n" + "\n".join(map(textwrap.dedent, parts)) + "\n"


class Runner:
    """Runs scripts on one server with one environment's Python, as ``train.py`` in ``folder``.

    Args:
        forks: Runs scripts as forks, unless a test requests a fresh process. Without it, every process is fresh.
    """

    def __init__(self, python: Path, server: Server, folder: Path, forks: Forks | None = None):
        self.python, self.server, self.folder, self.forks = python, server, folder, forks
        folder.mkdir(exist_ok=True)

    def __call__(self, text: str, *, exit_status: int = 0, fresh: bool = False, **environ: str) -> Ran:
        file = self.folder / "train.py"
        file.write_text(text)
        ran = run(
            [str(self.python), str(file)],
            self.server,
            environ=self.server.environ_of_child(environ),
            folder=self.folder,
            forks=None if fresh else self.forks,
        )
        # The message is explicit, because pytest explains assertions only in test files.
        assert ran.exit_status == exit_status, f"exit status {ran.exit_status}\n{ran.stdout}\n{ran.stderr}"
        return ran
