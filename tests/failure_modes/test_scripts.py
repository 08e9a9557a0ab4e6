"""Failure modes of scripts that choose GPUs or memory themselves, and of programs that need no GPU."""

import json
from pathlib import Path

import pytest

from autogpu.caps import CONTEXT_BYTES
from tests.gpusim import Gpu
from tests.support import environments
from tests.support.tensorflow_runner import GIB, MIB

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(600)]

BUSY = {5004242: "9GiB"}
SETS = "os.environ['CUDA_VISIBLE_DEVICES'] = '0'\n"
IMPORTS = "import tensorflow as tf\n"
LISTS = "gpus = tf.config.list_physical_devices('GPU')\n"
USES = "tf.random.uniform((2, 2))\n"


@pytest.mark.parametrize(
    ("policy", "hard_coded", "inherited"), [("respect", [0], [0]), ("override", [1], [0])], ids=["respect", "override"]
)
def test_29_policy_can_override_the_list_of_a_script_but_not_of_a_shell(train, policy, hard_coded, inherited):
    run = train(Gpu(processes=BUSY), Gpu())
    assert run("import os\n" + SETS + IMPORTS + USES, AUTOGPU_SCRIPT=policy).contexts == hard_coded
    # autogpu never uses a GPU outside the shell's list.
    assert run(IMPORTS + USES, AUTOGPU_SCRIPT=policy, CUDA_VISIBLE_DEVICES="0").contexts == inherited


GREEN = {
    "gevent": "from gevent import monkey; monkey.patch_all()\n",
    "eventlet": "import eventlet; eventlet.monkey_patch()\n",
}


@pytest.mark.thorough
@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("library", GREEN)
def test_33_job_with_green_threads_gets_the_idlest_gpu_and_a_claim(run_fresh, library, moment):
    python = environments.environment(environments.interpreter("3.11"), [library], name=library)
    packages = environments.site_packages(python)
    lines = [GREEN[library], IMPORTS] if moment == "before" else [IMPORTS, GREEN[library]]
    lines = [f"import sys; sys.path.append({str(packages)!r})\n", *lines]
    script = "".join(lines) + "print(tf.random.uniform((2, 2)).device[-5:])" + CLAIMS
    printed, said, gpus = run_fresh(script, Gpu(processes=BUSY), Gpu(), Gpu())
    device, claims = printed.splitlines()
    assert (device, claims.count("job."), gpus) == ("GPU:0", 1, {2})
    assert sum("autogpu: GPU 2 (" in line for line in said) == 1, said


def test_30_gpu_list_set_after_the_import_counts_until_cuda_reads_it(train):
    run = train(Gpu(processes=BUSY), Gpu())
    in_time = run("import os\n" + IMPORTS + SETS + USES)
    assert in_time.contexts == [0]
    too_late = run("import os\n" + IMPORTS + LISTS + SETS + USES)
    assert too_late.contexts == [1]
    assert "CUDA_VISIBLE_DEVICES=0 has no effect: CUDA had already read it" in too_late.said[-1]


# Collecting tests needs no compiled module, so a pytest that was installed for another Python works.
PYTEST = str(Path(pytest.__file__).parents[1])
CLAIMS = "\nimport os; print([name for name in os.listdir(os.environ['AUTOGPU_LEASE_DIR']) if name[:3] == 'job'])"


@pytest.mark.parametrize(
    "tool",
    [
        "print(len(gpus))",
        "from tensorflow.python.client import device_lib; device_lib.list_local_devices()",
        "tf.test.is_gpu_available()",
        "tf.test.gpu_device_name()",
        # The TensorFlow functions that TensorBoard calls.
        "tf.io.gfile.listdir('.'); tf.compat.v1.Event()",
        f"sys.path.append({PYTEST!r}); import pytest; pytest.main(['--collect-only', '-q', 'test_mine.py'])",
    ],
    ids=["list-gpus", "list-devices", "is-gpu-available", "gpu-device-name", "tensorboard", "pytest-collect"],
)
def test_31_tool_that_computes_nothing_holds_no_gpu(train, tmp_path, tool):
    run = train(Gpu())
    (tmp_path / "project" / "test_mine.py").write_text(IMPORTS + LISTS + "def test_it():\n    " + USES)
    ran = run("import sys\n" + IMPORTS + LISTS + tool + CLAIMS)
    assert ran.stdout.splitlines()[-1] == "[]"
    assert ("1 test collected" in ran.stdout) == ("pytest" in tool)
    assert (ran.contexts, ran.said) == ([], [])


# PyTorch as the backend of Keras makes these calls before the script uses TensorFlow.
OTHER = """
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
context = ctypes.c_void_p()
assert cuda.cuInit(0) == cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
"""


@pytest.mark.parametrize("use", ["", USES], ids=["imports", "uses"])
def test_32_tensorflow_uses_the_gpu_of_a_library_that_started_cuda(train, use):
    run = train(Gpu(), Gpu())
    looks = "import os\nassert 'CUDA_VISIBLE_DEVICES' not in os.environ\nprint('done')" + CLAIMS
    ran = run(OTHER + IMPORTS + use + looks)
    done, claims = ran.stdout.splitlines()
    assert (done, claims == "[]") == ("done", not use)
    # The process already had a context on GPU 0.
    assert ran.contexts == [0]


def test_32_tensorflow_imported_before_the_hook_is_left_as_it_is(own_environment, stand_in):
    script = stand_in("""
        import os, site, sys
        import tensorflow as first
        assert "_autogpu_hook" not in sys.modules
        site.main()
        assert "_autogpu_hook" in sys.modules
        import tensorflow as second
        print(first is second, os.environ.get("CUDA_VISIBLE_DEVICES"), "autogpu" in sys.modules)
    """)
    done = own_environment.run("-S", script)
    assert (done.stdout, done.stderr) == ("True None False\n", "")


def test_37_job_gets_a_gpu_with_its_limit_free_or_is_capped(train):
    run = train(Gpu(), Gpu(processes={5004242: "20GiB"}), Gpu(memory="6GiB"))
    assert run(IMPORTS + USES, AUTOGPU_LIMIT="8GiB").contexts == [0]
    full = train(Gpu(processes={5004242: "20GiB"}))
    ran = full(IMPORTS + USES, AUTOGPU_LIMIT="8GiB", AUTOGPU_GROWTH="0", AUTOGPU_WAIT="0")
    # The other job left 4 GiB free, and the job must not allocate more.
    assert 0 < ran.allocated[0] <= 4 * GIB
    assert ran.said[1].startswith(
        "autogpu: memory limited by other jobs; no memory is reserved: less than 8.0 GiB was left"
    )


@pytest.mark.parametrize("includes", ["arena", "process"])
def test_37_policy_decides_whether_a_limit_includes_the_context(train, includes):
    policy = {"AUTOGPU_LIMIT": "1GiB", "AUTOGPU_LIMIT_INCLUDES": includes, "AUTOGPU_GROWTH": "0"}
    tells = "import os, pathlib\nfor file in pathlib.Path(os.environ['AUTOGPU_LEASE_DIR']).glob('job.*'):\n    "
    tells += "print(file.read_text())\n"
    ran = train(Gpu())(IMPORTS + USES + tells, **policy)
    (claimed,) = json.loads(ran.stdout)["gpus"].values()
    context = 256 * MIB
    if includes == "process":
        assert ran.allocated[0] + context <= GIB == claimed
    else:
        assert (ran.allocated[0], claimed) == (GIB, GIB + CONTEXT_BYTES)


def test_38_memory_growth_set_by_a_script_keeps_the_policys_limit(train):
    growth = "for gpu in gpus:\n    tf.config.experimental.set_memory_growth(gpu, True)\n"
    fill = "for mib in (64, 700):\n    tf.raw_ops.Empty(shape=[mib, 1 << 18], dtype=tf.float32)\n"
    ran = train(Gpu())(IMPORTS + LISTS + growth + fill, AUTOGPU_LIMIT="1GiB", AUTOGPU_GROWTH="0")
    assert 700 * MIB < ran.allocated[0] <= GIB


@pytest.mark.parametrize("busy", ["cpu", "share"])
def test_39_job_without_a_gpu_never_gets_an_empty_gpu_list(train, commands, busy):
    run = train(Gpu(processes={5004242: "23.9GiB"}))
    none = {"AUTOGPU_DEVICES": "*A100*", "AUTOGPU_BUSY": busy}
    ran = run("import os\n" + IMPORTS + USES + "print(os.environ.get('CUDA_VISIBLE_DEVICES', 'unset'))\n", **none)
    assert (ran.contexts, ran.stdout.strip() != "") == ([], True)
    assert "TensorFlow starts on CPU" in ran.said[-2]
    picked = commands(run.server)("pick", **none)
    # With busy = "cpu", the CPU is a valid result of ``autogpu pick``.
    printed = ("export CUDA_VISIBLE_DEVICES=-1\n", 0) if busy == "cpu" else ("(exit 1)\n", 1)
    assert (picked.stdout, picked.returncode) == printed
    assert "not among select.devices" in picked.stderr


def test_39_shell_that_evaluates_a_failed_pick_keeps_its_variable(lab):
    autogpu = lab(Gpu())
    shell = f'eval "$({autogpu.python} -m autogpu pick --exclude 0)"; echo "${{CUDA_VISIBLE_DEVICES-unset}}"'
    assert autogpu.server.run(["sh", "-c", shell]).stdout == "unset\n"
