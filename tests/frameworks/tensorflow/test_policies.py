"""Each memory policy on real TensorFlow, judged by the driver's log and the lease folder."""

import ast
from typing import Any

import pytest

from tests.gpusim import Gpu, Server
from tests.support.tensorflow_runner import GIB, LAB, LEASED, MIB, Runner

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(900)]

HEAD = (
    LEASED
    + """
gpus = tf.config.list_physical_devices("GPU")

def fill(gib):
    # On each logical GPU a tensor larger than half of what it may have: its allocator then goes to its limit.
    for gpu in tf.config.list_logical_devices("GPU"):
        with tf.device(gpu.name):
            tf.raw_ops.Empty(shape=[int(gib * 1024), 1 << 18], dtype=tf.float32)
"""
)


@pytest.fixture
def start(installed, tmp_path, lease_folder, forks):
    (tmp_path / "server").mkdir()

    def run(text, *gpus, context="256MiB", **environ):
        with Server(gpus or LAB, folder=tmp_path / "server", context=context) as server:
            runner = Runner(installed, server, tmp_path / "project", forks)
            ran: Any = runner(HEAD + text + "\n", TF_CPP_MIN_LOG_LEVEL="3", **environ)
            ran.uuids = [gpu.uuid for gpu in server.gpus]
            return ran

    return run


def claims(ran):
    """Return the claims in the last line that the script printed: GiB, keyed by GPU index."""
    return {ran.uuids.index(uuid): size for uuid, size in ast.literal_eval(ran.stdout.splitlines()[-1]).items()}


@pytest.mark.parametrize("context", [256, 700], ids=["context-smaller-than-estimated", "context-larger-than-estimated"])
def test_limit_on_the_process_includes_its_context(start, context):
    policy = {"AUTOGPU_LIMIT": "3GiB", "AUTOGPU_LIMIT_INCLUDES": "process"}
    ran = start("fill(1.6); print(leased())", context=f"{context}MiB", **policy)
    assert 1.5 * GIB < ran.allocated[3] + context * MIB <= 3 * GIB
    assert claims(ran) == {3: 3.0}


def test_context_that_nvml_does_not_show_is_estimated(start):
    policy = {"AUTOGPU_LIMIT": "3GiB", "AUTOGPU_LIMIT_INCLUDES": "process"}
    ran = start("fill(1.6)", Gpu(hide_processes=True), **policy)
    assert 2 * GIB < ran.allocated[0] <= 2.5 * GIB


@pytest.mark.parametrize(
    ("policy", "filled", "limits", "claimed"),
    [
        pytest.param({"AUTOGPU_LIMIT": "2GiB"}, 1.5, [2 * GIB] * 2, {3: 4.5}, id="limit"),
        pytest.param({"AUTOGPU_LIMIT": "25%"}, 4.5, [6 * GIB] * 2, {3: 12.5}, id="limit-in-percent"),
        # The two logical GPUs get equal parts of what TensorFlow would take of a free GPU.
        pytest.param({}, 8.5, [11.1 * GIB] * 2, {3: 24.0}, id="no-limit"),
        pytest.param(
            {"AUTOGPU_LIMIT": "2GiB", "AUTOGPU_COUNT": "2"}, 1.5, [2 * GIB] * 4, {1: 4.5, 3: 4.5}, id="two-gpus"
        ),
    ],
)
def test_each_virtual_gpu_is_a_replica(start, policy, filled, limits, claimed):
    replicas = "print(tf.distribute.MirroredStrategy().num_replicas_in_sync)\n"
    ran = start(f"{replicas}fill({filled}); print(leased())", AUTOGPU_VIRTUAL_GPUS="2", **policy)
    assert ran.stdout.splitlines()[0] == str(len(limits))
    assert claims(ran) == claimed
    for gpu in claimed:
        most = sum(limits) // len(claimed)
        assert 0.9 * most < ran.allocated[gpu] <= most


STRATEGIES = """
strategies = [tf.distribute.MirroredStrategy({}) for _ in range(2)]
print([strategy.num_replicas_in_sync for strategy in strategies])
"""


@pytest.mark.parametrize(
    ("devices", "policy", "told"),
    [
        ("", {}, "1 replica, on 1 of 4 GPUs; for more GPUs: AUTOGPU_COUNT=2"),
        ("", {"COUNT": "2", "VIRTUAL_GPUS": "2"}, "4 replicas, on 2 of 4 GPUs; for more GPUs: AUTOGPU_COUNT=3"),
        ("['/gpu:0']", {}, None),
        ("", {"COUNT": "all", "WAIT": "0"}, None),
        ("", {"COUNT": "0"}, None),
        ("", {"LEVEL": "quiet"}, None),
    ],
    ids=["one-gpu", "split-gpus", "named-gpu", "all-gpus", "cpu-only", "quiet"],
)
def test_strategy_with_fewer_replicas_than_gpus_prints_one_line(start, devices, policy, told):
    ran = start(STRATEGIES.format(devices), **{f"AUTOGPU_{name}": value for name, value in policy.items()})
    said = [each for each in ran.said if "replica" in each]
    assert said == ([f"autogpu: MirroredStrategy has {told}"] if told else [])


def test_message_shows_that_the_allocator_does_not_enforce_the_limit(start):
    ran = start("fill(3)", AUTOGPU_LIMIT="1GiB", TF_GPU_ALLOCATOR="cuda_malloc_async")
    assert ran.allocated[3] > 2 * GIB
    memory = "memory limited to 1024 MiB, allocated as needed (not enforced by TF_GPU_ALLOCATOR=cuda_malloc_async)"
    assert ran.said[1] == f"autogpu: {memory}"
