"""A TensorFlow that lacks a hooked function works as without autogpu, and one message lists what is not in force."""

import pytest

from tests.support.tensorflow_runner import GIB, MIB

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(900)]

# This code changes one of TensorFlow's modules, as another version of TensorFlow might.
CHANGED = """
import sys
module = sys.modules["tensorflow.python.{module}"]
{change}
import tensorflow as tf
v1 = tf.compat.v1
"""

EAGER = "x = tf.random.uniform((256, 256)); print(x.device[-5:])\n"
SESSION = (
    "with tf.Graph().as_default(), v1.Session(config=v1.ConfigProto()) as session:\n"
    "    session.run(tf.random.uniform((256, 256)).op)\n"
)


LOADS = """
import sys
import tensorflow as tf

def loaded():
    return {name for name in sys.modules if name.partition(".")[0] in ("autogpu", "pynvml")}

at_import = loaded()
tf.zeros(1) + 1
print(len(at_import), sorted(loaded() - at_import))
"""


def test_claim_imports_no_module_of_autogpu(run):
    # If another thread forks a child during an import, the child waits for the module's lock forever.
    count, at_claim = run(LOADS, AUTOGPU_LIMIT="2GiB").stdout.strip().split(maxsplit=1)
    assert at_claim == "[]"
    # Every process that imports a framework finds, opens and reads each of these modules, so their number is limited.
    assert 30 < int(count) <= 69


def changed(module, change, *parts):
    return CHANGED.format(module=module, change=change) + "".join(parts)


def test_without_the_essential_hook_only_the_environment_is_set(run):
    # This object behaves like the property that it replaces, so TensorFlow itself still works.
    change = "module.Context.config = type('Other', (), {'__get__': lambda s, c, t: p.fget(c)})()"
    script = changed("eager.context", f"p = module.Context.config; {change}", EAGER)
    ran = run(script, AUTOGPU_LIMIT="2GiB", AUTOGPU_VIRTUAL_GPUS="1")
    assert (ran.contexts, list(ran.allocated)) == ([3], [3])
    assert ran.allocated[3] <= 64 * MIB
    assert len(ran.said) == 1
    assert "lacks functions that autogpu hooks into: Context.config (autogpu chooses GPUs at import" in ran.said[0]
    assert ran.said[0].endswith("; memory.limit (AUTOGPU_LIMIT) has no effect")


@pytest.mark.parametrize(
    ("module", "change", "work", "lacks", "contexts"),
    [
        pytest.param(
            "client.device_lib",
            "module.list_devices_now = module.__dict__.pop('list_local_devices')",
            EAGER,
            "device_lib.list_local_devices (listing makes a context on each GPU)",
            [3],
            id="missing-function",
        ),
        pytest.param(
            "client.session",
            "class Base(module.BaseSession): pass\nmodule.BaseSession = Base",
            SESSION,
            "BaseSession.__init__ (sessions with a ConfigProto take the same GPUs and memory as without autogpu), "
            "BaseSession.list_devices (multi_gpu_model refuses GPUs that this process did not get)",
            [0, 1, 2, 3],
            id="session-methods-in-a-base-class",
        ),
        pytest.param(
            "eager.context",
            "del module.Context.set_visible_devices",
            EAGER,
            "Context.set_visible_devices (if a script makes all GPUs visible, the policy still chooses)",
            [3],
            id="missing-setter",
        ),
    ],
)
def test_without_a_minor_hook_the_other_hooks_are_in_force(run, module, change, work, lacks, contexts):
    ran = run(changed(module, change, work))
    assert ran.contexts == contexts
    assert any(line.endswith(f"lacks functions that autogpu hooks into: {lacks}") for line in ran.said)
    assert len(ran.said) == (2 if contexts == [3] else 1)


WRAPPED_LATER = """
import functools
import tensorflow as tf
from tensorflow.python.eager import context
v1 = tf.compat.v1
for turn in range(2):
    with tf.Graph().as_default(), v1.Session():
        pass
    if not turn:
        original = context.device
        context.device = mine = functools.wraps(original)(lambda *a, **k: original(*a, **k))
print(context.device is mine)
"""


def test_wrapper_that_a_script_puts_around_a_hook_later_stays(run):
    assert run(WRAPPED_LATER).stdout == "True\n"


def test_gpus_of_a_tensorflow_plug_in_are_left_alone(run):
    # The new function returns what TensorFlow's own function returns if a plug-in has registered the GPUs.
    change = "module.pywrap_tfe = type('T', (), {'__getattr__': lambda s, n: getattr(w, n), **names})()"
    names = "{'TF_ListPluggablePhysicalDevices': lambda s: [b'/physical_device:GPU:%d' % n for n in range(4)]}"
    script = changed("eager.context", f"w = module.pywrap_tfe; names = {names}; {change}", EAGER)
    ran = run(script, AUTOGPU_COUNT="1")
    assert ran.said == [
        "autogpu: settings are not applied: this TensorFlow gets its GPUs from a plug-in, and autogpu supports "
        "NVIDIA GPUs only; "
        "TensorFlow continues with its defaults"
    ]
    assert ran.contexts == [0, 1, 2, 3]


def test_tensorflow_built_for_rocm_is_left_alone(run):
    ran = run(
        changed("platform.build_info", "module.build_info['is_rocm_build'] = True", EAGER)
        + "import os; assert 'CUDA_VISIBLE_DEVICES' not in os.environ\n"
    )
    assert ran.said == [
        "autogpu: settings are not applied: this TensorFlow is built for ROCm, and autogpu supports NVIDIA GPUs only; "
        "TensorFlow continues with its defaults"
    ]
    assert max(ran.allocated.values()) > GIB


def test_session_after_an_internal_error_is_as_without_autogpu(run):
    # The function fails when autogpu calls it to list the GPUs. TensorFlow's session doesn't call it.
    change = "module.Context._initialize_physical_devices = lambda *arguments: 1 / 0"
    ran = run(changed("eager.context", change, SESSION))
    assert ran.contexts == [0, 1, 2, 3]
    assert len(ran.said) == 1
    assert "internal error (ZeroDivisionError" in ran.said[0]


ANOTHER_LIBRARY = """
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
device, context = ctypes.c_int(), ctypes.c_void_p()
assert cuda.cuInit(0) == 0
assert cuda.cuDeviceGet(ctypes.byref(device), {ordinal}) == 0
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) == 0
import json, os, pathlib
import tensorflow as tf
assert "CUDA_VISIBLE_DEVICES" not in os.environ
tf.random.uniform((256, 256))
for file in pathlib.Path(os.environ["AUTOGPU_LEASE_DIR"]).glob("job.*"):
    print(*json.loads(file.read_text())["gpus"])
"""


@pytest.mark.parametrize(("ordinal", "gpu"), [(0, 1), (2, 0)], ids=["idle", "busy"])
def test_gpu_with_a_context_of_another_library_is_kept_and_leased(run, server, ordinal, gpu):
    ran = run(ANOTHER_LIBRARY.format(ordinal=ordinal))
    assert (ran.contexts, ran.stdout.split()) == ([gpu], [server.gpus[gpu].uuid])
    assert "because another library in this process already uses it" in ran.said[0]
