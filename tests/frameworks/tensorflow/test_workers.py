"""Two workers of one MultiWorkerMirroredStrategy on one host: each takes a GPU of its own."""

from __future__ import annotations

import json
import socket
import subprocess
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.gpusim import Server
from tests.support import environments
from tests.support.tensorflow_runner import CONTEXT, LAB

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(900)]

# The ring needs no NCCL, which the simulated server does not have.
WORKER = """
import tensorflow as tf
options = tf.distribute.experimental.CommunicationOptions(
    implementation=tf.distribute.experimental.CommunicationImplementation.RING)
strategy = tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
with strategy.scope():
    variable = tf.Variable(1.0)
print(strategy.num_replicas_in_sync, variable.device[-5:], flush=True)
# Simulated kernels compute nothing: that the workers come through it together is what counts.
strategy.reduce("SUM", strategy.run(lambda: tf.constant(2.0)), axis=None)
print("reduced", flush=True)
"""


@pytest.fixture(scope="module")
def python() -> Path:
    return environments.tensorflow_with_autogpu()


def test_two_workers_of_one_host_take_two_gpus(python, tmp_path):
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(2)]
        for free in sockets:
            free.bind(("localhost", 0))
        addresses = [f"localhost:{free.getsockname()[1]}" for free in sockets]
    with Server(LAB, folder=tmp_path, context=CONTEXT) as server:
        workers = []
        for index in range(2):
            place = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
            environ = {"TF_CONFIG": json.dumps(place), "TF_CPP_MIN_LOG_LEVEL": "3"}
            pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
            workers.append(server.popen([str(python), "-c", WORKER], environ=environ, **pipes))
        ended = [(*worker.communicate(timeout=300), worker.returncode) for worker in workers]
        contexts = {worker.pid: {c.gpu for c in server.calls(worker.pid, "context")} for worker in workers}
    assert [(out, status) for out, _, status in ended] == [("2 GPU:0\nreduced\n", 0)] * 2, ended
    assert sorted(contexts.values(), key=min) == [{1}, {3}]
