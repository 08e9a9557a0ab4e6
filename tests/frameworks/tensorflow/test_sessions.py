"""Sessions, device listings and workers of TensorFlow, checked by the driver's log and the lease folder."""

import ast

import pytest

from tests.support.tensorflow_runner import SESSIONS, Runner

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(900)]

IDLEST = 3


@pytest.fixture
def run(run, lease_folder):
    return lambda text, **environ: run(SESSIONS + text + "\n", TF_CPP_MIN_LOG_LEVEL="3", **environ)


def shown(ran):
    return ran.stdout.splitlines()


PROTO = "v1.ConfigProto(gpu_options=Options(per_process_gpu_memory_fraction=0.5, visible_device_list='1'))"


@pytest.mark.parametrize(
    ("proto", "listed"),
    [
        pytest.param(PROTO, [("/device:GPU:0", 12288)], id="proto-with-fraction"),
        pytest.param("v1.ConfigProto(device_count={'GPU': 0})", [], id="proto-without-gpus"),
    ],
)
def test_listing_follows_the_proto_and_claims_nothing(run, proto, listed):
    gpus = f"[each for each in device_lib.list_local_devices({proto}) if each.device_type == 'GPU']"
    ran = run(f"print([(each.name, each.memory_limit >> 20) for each in {gpus}], leased())", AUTOGPU_LIMIT="2GiB")
    assert ran.stdout == f"{listed} None\n"
    assert (ran.contexts, ran.said) == ([], [])


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


def test_multi_worker_strategy_gets_the_limit_and_the_lease(run, server):
    ran = run(WORKER, AUTOGPU_LIMIT="2GiB", AUTOGPU_COUNT="2")
    leased = {server.gpus[gpu].uuid: 2.5 for gpu in (1, IDLEST)}
    replicas, _, claims = shown(ran)[0].partition(" ")
    assert (replicas, ast.literal_eval(claims)) == ("2", leased)
    assert (ran.contexts, shown(ran)[1]) == ([1, IDLEST], "2")


@pytest.mark.parametrize("steps", ["session(visible_device_list='0')", "session(); eager()"])
def test_sessions_and_eager_code_use_one_gpu_if_cuda_starts_early(installed, server, tmp_path, forks, steps):
    runner = Runner(installed, server, tmp_path / "project", forks)
    # Once CUDA is initialised, environment variables no longer change the order of the GPUs.
    first = "import ctypes\nassert ctypes.CDLL('libcuda.so.1').cuInit(0) == 0\n"
    ran = runner(first + SESSIONS + "eager(); " + steps)
    assert ran.contexts == [IDLEST]


def test_choice_through_tf_config_applies_to_sessions(run):
    ran = run("tf.config.set_visible_devices(gpus[2], 'GPU'); session(); session(allow_growth=True); eager()")
    # The third GPU in autogpu's order is busy, so autogpu puts the idlest GPU there.
    assert ran.contexts == [IDLEST]


@pytest.mark.thorough
def test_session_on_a_server_in_another_process_claims_no_gpu(run):
    server = """
import subprocess, sys
serve = "import tensorflow as tf; s = tf.distribute.Server.create_local_server(); print(s.target, flush=True); input()"
with subprocess.Popen([sys.executable, "-c", serve], stdin=-1, stdout=-1, text=True) as other:
    target = other.stdout.readline().strip()
    with tf.Graph().as_default():
        show(v1.Session(target).list_devices())
        show(v1.Session(target, config=v1.ConfigProto()).list_devices())
    print(leased())
    other.communicate("\\n")
"""
    ran = run(server)
    assert shown(ran)[-1] == "None"
    assert len({call.pid for call in ran.calls if call.call == "context"}) == 1


def test_wrong_config_argument_raises_tensorflows_own_error(run):
    ran = run("""
try:
    v1.Session(config="no proto")
except TypeError as error:
    print(error)
""")
    assert "`config` must be a tf.ConfigProto" in ran.stdout
    assert (ran.contexts, ran.said) == ([], [])


def test_session_that_the_policy_refuses_raises_one_error(run):
    refused = """
for config in (None, v1.ConfigProto()):
    try:
        with tf.Graph().as_default():
            v1.Session(config=config)
    except Exception as error:
        print(type(error).__name__)
"""
    # The script runs in a fresh process, because a fresh process, unlike a fork, destroys every object when it ends.
    ran = run(refused, fresh=True, AUTOGPU_BUSY="error", AUTOGPU_DEVICES="0")
    assert (ran.stdout, ran.contexts) == ("NoEligibleDevice\n" * 2, [])
    assert "Exception ignored" not in ran.stderr
