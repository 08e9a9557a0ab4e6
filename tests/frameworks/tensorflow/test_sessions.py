"""Every way to a GPU with a ConfigProto of the script's own, judged by the driver's log and the lease folder."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.gpusim import Server
from tests.support import environments
from tests.support.tensorflow_runner import CONTEXT, GIB, LAB, MIB, Runner

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(900)]

IDLEST = 3

HEAD = """
import json, os, pathlib
import tensorflow as tf
v1 = tf.compat.v1
Options = v1.GPUOptions
Virtual = Options.Experimental.VirtualDevices
gpus = tf.config.list_physical_devices("GPU")

def leased():
    for file in pathlib.Path(os.environ["AUTOGPU_LEASE_DIR"]).glob("job.*"):
        fields = json.loads(file.read_text())
        if fields["pid"] == os.getpid():
            return {uuid: size / 2**30 for uuid, size in fields["gpus"].items()}

def show(session):
    print([device.memory_limit_bytes >> 20 for device in session.list_devices() if ":GPU:" in device.name])

def session(*, device_count=None, **options):
    with tf.Graph().as_default():
        config = v1.ConfigProto(gpu_options=Options(**options), device_count=device_count)
        before = config.SerializeToString()
        made = v1.Session(config=config)
        assert config.SerializeToString() == before, "the script's own proto is left alone"
        show(made)
        with tf.device("/GPU:0" if "GPU:0" in str(made.list_devices()) else "/CPU:0"):
            result = tf.random.uniform((1024, 1024)) + 1.0
        made.run(result.op)

def eager():
    x = tf.random.uniform((1024, 1024))
    print(x.device[-5:], len(tf.config.list_logical_devices("GPU")))
"""


@pytest.fixture(scope="module")
def python() -> Path:
    return environments.tensorflow_with_autogpu()


@pytest.fixture
def server(tmp_path):
    (tmp_path / "server").mkdir()
    with Server(LAB, folder=tmp_path / "server", context=CONTEXT) as running:
        yield running


@pytest.fixture
def run(python, server, tmp_path, lease_folder, forks):
    """Runs what comes after ``HEAD``."""
    runner = Runner(python, server, tmp_path / "project", forks)
    return lambda text, **environ: runner(HEAD + text + "\n", TF_CPP_MIN_LOG_LEVEL="3", **environ)


def shown(ran):
    return ran.stdout.splitlines()


ENTRY_POINTS = {
    "session": "session()",
    "session-without-a-proto": "with tf.Graph().as_default(): show(v1.Session())",
    "interactive": "v1.disable_eager_execution(); show(v1.InteractiveSession(config=v1.ConfigProto()))",
    "server": "server = tf.distribute.Server.create_local_server()\nshow(v1.Session(server.target))",
    "server-with-a-proto": "server = v1.train.Server.create_local_server(config=v1.ConfigProto())\n"
    "show(v1.Session(server.target, config=v1.ConfigProto()))",
    "server-def": "first = tf.distribute.Server.create_local_server(start=False).server_def\n"
    "del first.default_session_config.gpu_options.experimental.virtual_devices[:]\n"
    "again = tf.distribute.Server(first, config=v1.ConfigProto())\nshow(v1.Session(again.target))",
    "eager": "eager(); print([2048])",
}


@pytest.mark.parametrize("entry_point", ENTRY_POINTS)
def test_each_entry_point_takes_the_lease_and_fills_what_the_script_left_unset(run, server, entry_point):
    ran = run(ENTRY_POINTS[entry_point] + "\nprint(leased())", AUTOGPU_LIMIT="2GiB")
    *_, limits, leased = shown(ran)
    assert limits == "[2048]"
    assert ran.contexts == [IDLEST]
    # What the driver shows of the process's context is in it: the claim is made before, and corrected after.
    assert ast.literal_eval(leased) == {server.gpus[IDLEST].uuid: 2.25}
    assert len(ran.said) == 1
    assert "memory limited to 2048 MiB, allocated as needed" in ran.said[0]


LISTINGS = {
    "list-local-devices": "from tensorflow.python.client import device_lib\n"
    "print([d.name for d in device_lib.list_local_devices() if d.device_type == 'GPU'])",
    "of-a-proto": "from tensorflow.python.client import device_lib\n"
    "proto = v1.ConfigProto(gpu_options=v1.GPUOptions(per_process_gpu_memory_fraction=0.5, visible_device_list='1'))\n"
    "print([(d.name, d.memory_limit >> 20) for d in device_lib.list_local_devices(proto) if d.device_type == 'GPU'])",
    "none-of-a-proto": "from tensorflow.python.client import device_lib\n"
    "print([d.device_type for d in device_lib.list_local_devices(v1.ConfigProto(device_count={'GPU': 0}))])",
    "gpu-device-name": "print(tf.test.gpu_device_name())",
    "is-gpu-available": "print([tf.test.is_gpu_available(min_cuda_compute_capability=v) for v in (None, (9, 0))])",
}
LISTED = {
    "list-local-devices": "['/device:GPU:0', '/device:GPU:1', '/device:GPU:2', '/device:GPU:3']",
    "of-a-proto": "[('/device:GPU:0', 12288)]",
    "none-of-a-proto": "['CPU']",
    "gpu-device-name": "/device:GPU:0",
    "is-gpu-available": "[True, False]",
}


@pytest.mark.parametrize("listing", LISTINGS)
def test_a_listing_shows_the_pool_and_takes_nothing(run, listing):
    ran = run(LISTINGS[listing] + "\nprint(leased())", AUTOGPU_LIMIT="2GiB")
    *_, listed, leased = shown(ran)
    assert (listed, ast.literal_eval(leased)) == (LISTED[listing], None)
    assert (ran.contexts, ran.said) == ([], [])


def test_after_a_listing_a_gpu_is_taken_as_without_one(run, server):
    ran = run(LISTINGS["list-local-devices"] + "\neager()\n" + LISTINGS["gpu-device-name"] + "\nprint(leased())")
    assert list(ast.literal_eval(shown(ran)[-1])) == [server.gpus[IDLEST].uuid]
    assert (ran.contexts, shown(ran)[-2]) == ([IDLEST], "/device:GPU:0")


WORKER = """
import socket
with socket.socket() as free:
    free.bind(("localhost", 0))
    address = "localhost:%d" % free.getsockname()[1]
os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": [address]}, "task": {"type": "worker", "index": 0}})
strategy = tf.distribute.MultiWorkerMirroredStrategy()
print(strategy.num_replicas_in_sync, leased())
eager()
"""


def test_a_worker_of_several_gets_the_limit_and_the_lease(run, server):
    ran = run(WORKER, AUTOGPU_LIMIT="2GiB", AUTOGPU_COUNT="2")
    leased = {server.gpus[gpu].uuid: 2.25 for gpu in (1, IDLEST)}
    replicas, _, claims = shown(ran)[0].partition(" ")
    assert (replicas, ast.literal_eval(claims)) == ("2", leased)
    assert (ran.contexts, shown(ran)[1]) == ([1, IDLEST], "GPU:0 2")


@pytest.mark.parametrize(
    ("options", "environ", "gpus", "least", "most"),
    [
        pytest.param("", {}, [3], 1, 64 * MIB, id="growth-by-policy"),
        pytest.param("", {"AUTOGPU_GROWTH": "0"}, [3], 20 * GIB, 24 * GIB, id="everything-by-policy"),
        pytest.param("allow_growth=True", {"AUTOGPU_GROWTH": "0"}, [3], 1, 64 * MIB, id="growth"),
        pytest.param(
            "per_process_gpu_memory_fraction=0.25",
            {"AUTOGPU_GROWTH": "0", "AUTOGPU_LIMIT": "1GiB"},
            [3],
            6 * GIB,
            6 * GIB,
            id="fraction",
        ),
        pytest.param(
            "experimental=Options.Experimental(virtual_devices=[Virtual(memory_limit_mb=[512])])",
            {"AUTOGPU_GROWTH": "0", "AUTOGPU_LIMIT": "1GiB"},
            [3],
            512 * MIB,
            512 * MIB,
            id="virtual-devices",
        ),
        pytest.param("visible_device_list='2'", {"AUTOGPU_LIMIT": "1GiB"}, [3], 1, GIB, id="visible-device-list"),
        # The order is CUDA's own then: without a choice there is nothing to order.
        pytest.param("visible_device_list='2'", {"AUTOGPU_COUNT": "0"}, [0], 1, 64 * MIB, id="named-beats-cpu-only"),
        pytest.param("device_count={'GPU': 1}", {"AUTOGPU_COUNT": "2"}, [3], 1, 64 * MIB, id="one-of-two"),
        pytest.param("device_count={'GPU': 0}", {}, [], 0, 0, id="no-gpu"),
        pytest.param("", {"AUTOGPU_COUNT": "0"}, [], 0, 0, id="cpu-only"),
        pytest.param("device_count={'GPU': 1}", {"AUTOGPU_COUNT": "0"}, [], 0, 0, id="cpu-only-beats-at-most-one"),
    ],
)
def test_what_a_proto_says_holds_and_the_rest_is_the_policys(run, options, environ, gpus, least, most):
    ran = run(f"session({options})", **environ)
    assert ran.contexts == gpus
    assert least <= sum(ran.allocated.values()) <= most


@pytest.mark.parametrize(
    "steps",
    [
        pytest.param("eager(); session(); session(visible_device_list='0')", id="eager-then-sessions"),
        pytest.param("session(per_process_gpu_memory_fraction=0.3); eager(); session()", id="fraction-then-eager"),
        pytest.param("session(); tf.config.set_visible_devices(gpus, 'GPU'); eager()", id="all-visible-between"),
        pytest.param("session(device_count={'GPU': 1}); eager(); session()", id="one-then-all"),
        pytest.param("session(device_count={'GPU': 0}); eager(); session()", id="none-then-all"),
        pytest.param(
            "tf.config.set_logical_device_configuration(gpus[0], [tf.config.LogicalDeviceConfiguration(1024)] * 2)\n"
            "session(allow_growth=True); eager()",
            id="logical-gpus-then-session",
        ),
    ],
)
@pytest.mark.parametrize(
    "environ",
    [{"AUTOGPU_COUNT": "2"}, {"AUTOGPU_COUNT": "2", "AUTOGPU_VIRTUAL_GPUS": "2", "AUTOGPU_LIMIT": "2GiB"}],
    ids=["two-gpus", "two-split-gpus"],
)
def test_eager_and_sessions_of_one_process_see_the_same_gpus(run, steps, environ):
    ran = run(steps, **environ)
    assert {1, IDLEST} <= set(ran.contexts)


@pytest.mark.parametrize("steps", ["session(visible_device_list='0')", "session(); eager()"])
def test_the_map_is_kept_where_the_idlest_is_not_cudas_first(python, server, tmp_path, steps):
    runner = Runner(python, server, tmp_path / "project")
    # Once CUDA is initialised the environment orders nothing any more.
    first = "import ctypes\nassert ctypes.CDLL('libcuda.so.1').cuInit(0) == 0\n"
    ran = runner(first + HEAD + "eager(); " + steps)
    assert ran.contexts == [IDLEST]


def test_a_choice_by_tf_config_counts_for_sessions(run):
    ran = run("tf.config.set_visible_devices(gpus[2], 'GPU'); session(); session(allow_growth=True); eager()")
    # The third in autogpu's order is at work for others.
    assert ran.contexts == [IDLEST]


def test_a_client_of_a_server_elsewhere_takes_no_gpu(run):
    server = """
import subprocess, sys
serve = "import tensorflow as tf; s = tf.distribute.Server.create_local_server(); print(s.target, flush=True); input()"
with subprocess.Popen([sys.executable, "-c", serve], stdin=-1, stdout=-1, text=True) as other:
    target = other.stdout.readline().strip()
    with tf.Graph().as_default():
        show(v1.Session(target))
        show(v1.Session(target, config=v1.ConfigProto()))
    print(leased())
    other.communicate("\\n")
"""
    ran = run(server)
    assert shown(ran)[-1] == "None"
    assert len({call.pid for call in ran.calls if call.call == "context"}) == 1


def test_a_wrong_argument_is_tensorflows_error(run):
    ran = run("""
try:
    v1.Session(config="no proto")
except TypeError as error:
    print(error)
""")
    assert "`config` must be a tf.ConfigProto" in ran.stdout
    assert (ran.contexts, ran.said) == ([], [])


@pytest.mark.parametrize("config", ["None", "v1.ConfigProto()"], ids=["without-a-proto", "with-one"])
def test_a_session_that_the_policy_refuses_is_one_error(python, server, tmp_path, config):
    # Not forked: at its end every object is taken apart.
    ran = Runner(python, server, tmp_path / "project")(
        f"""
import tensorflow as tf
v1 = tf.compat.v1
try:
    with tf.Graph().as_default():
        v1.Session(config={config})
except Exception as error:
    print(type(error).__name__)
""",
        AUTOGPU_BUSY="error",
        AUTOGPU_DEVICES="0",
        TF_CPP_MIN_LOG_LEVEL="3",
    )
    assert (ran.stdout, ran.contexts) == ("NoEligibleDevice\n", [])
    assert "Exception ignored" not in ran.stderr
