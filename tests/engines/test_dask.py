"""Real Dask clusters on one simulated server: each worker has another GPU, judged by the driver's log."""

from __future__ import annotations

import pytest

from tests.engines.engine_jobs import Script, end_all, gpus_of, python_with
from tests.gpusim import Gpu, Server
from tests.support.live_jobs import claims

pytestmark = [pytest.mark.engine, pytest.mark.tensorflow, pytest.mark.timeout(900)]

SCRIPT = """
import json, os, sys

import distributed

ROTATED = ["0,1,2", "1,2,0", "2,0,1"]

def local():
    return distributed.LocalCluster(n_workers=3, threads_per_worker=1, dashboard_address=None)

def nannies():
    place = {"nthreads": 1, "host": "127.0.0.1"}
    workers = {
        number: {"cls": distributed.Nanny, "options": {**place, "env": {"CUDA_VISIBLE_DEVICES": gpus}}}
        for number, gpus in enumerate(ROTATED)
    }
    scheduler = {"cls": distributed.Scheduler, "options": {"dashboard": False, "host": "127.0.0.1"}}
    return distributed.SpecCluster(workers=workers, scheduler=scheduler)

def dask_cuda():
    import dask_cuda
    return dask_cuda.LocalCUDACluster(dashboard_address=None)

def compute():
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    import tensorflow as tf
    return {"pid": os.getpid(), "given": given, "on": tf.random.uniform((256, 256)).device[-5:]}

# Workers are started by "spawn" and import this file.
if __name__ == "__main__":
    with globals()[sys.argv[1]]() as cluster, distributed.Client(cluster) as client:
        client.wait_for_workers(3, timeout=120)
        # By each worker; a task would be done by any.
        print(json.dumps(list(client.run(compute).values())), flush=True)
        # The workers keep their GPUs until the test has seen what it wants to see.
        sys.stdin.read()
"""


@pytest.fixture
def start(tmp_path, lease_folder):
    """Start a cluster of three workers, which compute, on three GPUs."""
    started = []

    def start(python, cluster):
        place = tmp_path / "server"
        place.mkdir()
        server = Server([Gpu()] * 3, folder=place).__enter__()
        (place / "cluster.py").write_text(SCRIPT)
        environ = {"TF_CPP_MIN_LOG_LEVEL": "3"}
        started.append(Script(server, [str(python), "cluster.py", cluster], place, environ))
        return started[-1]

    yield start
    left = []
    for script in started:
        script.close()
        script.server.__exit__(None, None, None)
        left += end_all(script.server)
    assert not left


@pytest.fixture(scope="module")
def python():
    return python_with("distributed")


def test_workers_of_a_local_cluster_choose_different_gpus(start, python, lease_folder):
    script = start(python, "local")
    ran = script.reports()
    on = {each["pid"]: gpus_of(script.server, each["pid"]) for each in ran}
    assert sorted(on.values()) == [[0], [1], [2]]
    assert claims(lease_folder, script.server) == {pid: {gpus[0]: 24.0} for pid, gpus in on.items()}
    assert len(script.said()) == 3
    assert script.end() == 0, script.stderr()


def test_workers_with_rotated_lists_have_different_gpus(start, python):
    script = start(python, "nannies")
    ran = script.reports()
    assert sorted(each["given"] for each in ran) == ["0,1,2", "1,2,0", "2,0,1"]
    on = [gpus_of(script.server, each["pid"]) for each in ran]
    assert sorted(on) == [[0], [1], [2]]
    assert script.end() == 0, script.stderr()


def test_workers_of_dask_cuda_stay_on_the_gpus_that_it_gave_them(start):
    script = start(python_with("dask-cuda", "cuda-python"), "dask_cuda")
    ran = script.reports()
    # It has made a context on the first of each list.
    on = {each["given"]: gpus_of(script.server, each["pid"]) for each in ran}
    assert on == {"0,1,2": [0], "1,2,0": [1], "2,0,1": [2]}
    assert script.end() == 0, script.stderr()
