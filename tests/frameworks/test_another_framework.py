"""Support for another framework needs one class, an entry in the hook and one in ``FRAMEWORKS``.

Its jobs then get a GPU, a claim and autogpu's line.
"""

import ast
import json

from autogpu.frameworks import FRAMEWORKS
from tests.gpusim import Gpu, Server
from tests.hook.throwaway import TEMPLATES
from tests.support import environments

# The framework. It makes a context on each GPU in ``ordinals``, or on every visible GPU without ``ordinals``.
TOYFLOW = """
import ctypes

cuda = ctypes.CDLL("libcuda.so.1")

def gpu_count():
    count = ctypes.c_int()
    assert not cuda.cuInit(0) and not cuda.cuDeviceGetCount(ctypes.byref(count))
    return count.value

def take(ordinals=None):
    for ordinal in range(gpu_count()) if ordinals is None else ordinals:
        device, context = ctypes.c_int(), ctypes.c_void_p()
        assert not cuda.cuDeviceGet(ctypes.byref(device), ordinal)
        assert not cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
"""

PACKAGE = """
import sys

from autogpu.frameworks.base import HookedFramework
from autogpu.frameworks.model import DeviceRequest, Hooks, Usage


class Toyflow(HookedFramework):
    NAME = "Toyflow"

    @staticmethod
    def find_hooks():
        return Hooks("1.0", ("toyflow.take",))

    @staticmethod
    def peak_bytes():
        return 0

    @staticmethod
    def out_of_memory(error):
        return None

    def install_hooks(self, hooks):
        toyflow = sys.modules["toyflow"]
        original = toyflow.take

        def take(ordinals=None):
            with self.guard():
                self.prepare()
                assigned = self.assign(DeviceRequest(toyflow.gpu_count(), ordinals)).ordinals
                ordinals = ordinals if assigned is None else assigned
                self.on_usage(Usage(ordinals, "allocated as needed"))
            original(ordinals)

        toyflow.take = take
"""

# The script adds the two entries at run time, because other tests use the same environment.
SCRIPT = """
import sys

import _autogpu_hook
from autogpu import frameworks

_autogpu_hook.frameworks += ("toyflow",)
frameworks.FRAMEWORKS["toyflow"] = "autogpu_toyflow:Toyflow"

import toyflow

toyflow.take()
print("taken", flush=True)
sys.stdin.read()
"""


def test_jobs_of_a_framework_added_by_one_class_get_different_gpus(tmp_path):
    for name, text in {"toyflow": TOYFLOW, "autogpu_toyflow": PACKAGE, "train": SCRIPT}.items():
        (tmp_path / f"{name}.py").write_text(text)
    python = str(environments.environment(environments.interpreter("3.11"), with_hook=True))
    with Server([Gpu(), Gpu()], folder=tmp_path) as server:
        jobs = [server.popen([python, "train.py"], cwd=tmp_path, stdin=-1, stdout=-1, stderr=-1) for _ in range(2)]
        assert [job.stdout.readline() for job in jobs] == ["taken\n"] * 2
        status = json.loads(server.run([python, "-m", "autogpu", "status", "--json"], cwd=tmp_path).stdout)
        lines = [job.communicate("", timeout=60)[1] for job in jobs]
        contexts = server.contexts()
    assert sorted(contexts[job.pid] for job in jobs) == [[0], [1]]
    assert sorted(job["pid"] for gpu in status["gpus"] for job in gpu["jobs"]) == sorted(job.pid for job in jobs)
    for job, line in zip(jobs, lines):
        assert line.startswith(f"autogpu: GPU {contexts[job.pid][0]} (")
        assert "; memory allocated as needed" in line


def test_hook_watches_every_registered_framework():
    hook = ast.parse((TEMPLATES / "_autogpu_hook.py").read_text(encoding="utf-8"))
    (watched,) = (
        ast.literal_eval(node.value)
        for node in hook.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "frameworks"
    )
    assert watched == tuple(FRAMEWORKS)
