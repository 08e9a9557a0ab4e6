"""An unknown TensorFlow still gets the idlest GPU and memory growth, through environment variables alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import each_python
from tests.gpusim import Gpu, Server
from tests.support import environments

SHOW = """
import json, os
import tensorflow
names = ("CUDA_VISIBLE_DEVICES", "TF_FORCE_GPU_ALLOW_GROWTH")
print(json.dumps([os.environ.get(name) for name in names]))
try:
    os.wait()
except ChildProcessError:
    print("no child left behind")
"""


@pytest.fixture(scope="module", params=each_python())
def python(request) -> Path:
    return environments.environment(environments.interpreter(request.param), with_hook=True)


LACKS = (
    "autogpu: TensorFlow 9.0 lacks functions that autogpu hooks into: Context.config (autogpu chooses GPUs at "
    "import and claims none)"
)


def show(python, tmp_path, script=SHOW, said=LACKS, **environ):
    package = tmp_path / "tensorflow"
    package.mkdir()
    (package / "__init__.py").write_text("__version__ = '9.0'\n")
    (tmp_path / "train.py").write_text(script)
    with Server([Gpu(), Gpu(), Gpu(processes={5000007: "9GiB"})], folder=tmp_path) as server:
        done = server.run([str(python), str(tmp_path / "train.py")], environ=environ)
        assert (done.returncode, done.stderr.strip()) == (0, said)
        return done.stdout.splitlines()


@pytest.mark.parametrize("own", [{}, {"TF_FORCE_GPU_ALLOW_GROWTH": "false"}], ids=["growth-unset", "growth-by-user"])
def test_unknown_tensorflow_sees_the_chosen_gpu_and_grows_by_default(python, tmp_path, own):
    values, children = show(python, tmp_path, **own)
    growth = own.get("TF_FORCE_GPU_ALLOW_GROWTH", "true")
    assert (values, children) == (f'["1", "{growth}"]', "no child left behind")


def test_disabled_policy_sets_no_environment_variable(python, tmp_path):
    (tmp_path / "autogpu.toml").write_text("enabled = false\n")
    values, children = show(python, tmp_path, said="")
    assert (values, children) == ("[null, null]", "no child left behind")


def test_message_lists_requested_settings_that_need_a_hook(python, tmp_path):
    said = LACKS + "; select.busy (AUTOGPU_BUSY) and memory.limit (AUTOGPU_LIMIT) have no effect"
    show(python, tmp_path, said=said, AUTOGPU_LIMIT="2GiB", AUTOGPU_BUSY="wait")


# The calls that a hooked framework makes when it creates its context, without the framework.
CLAIM = """
import ctypes
import tensorflow
from autogpu import activation
from autogpu.frameworks import base
allocation, framework = activation.allocation, activation.imported["tensorflow"]
framework.prepare()
cuda = ctypes.CDLL("libcuda.so.1")
count = ctypes.c_int()
assert cuda.cuInit(0) == 0 and cuda.cuDeviceGetCount(ctypes.byref(count)) == 0
print(framework.assign(base.DeviceRequest(count.value)).ordinals, len(allocation.lease.claims))
"""


def test_choosing_and_claiming_works_on_every_python(python, tmp_path):
    (line,) = show(python, tmp_path, CLAIM)
    assert line == "(0,) 1"
