"""Real Dask clusters on one simulated server. Each worker must have a different GPU in the driver's log."""

import pytest

from tests.engines.engine_jobs import JOBS, Script, end_all, gpus_of, python_with, taken_by
from tests.gpusim import Gpu, Server
from tests.support.live_jobs import claims

pytestmark = [pytest.mark.engine, pytest.mark.tensorflow, pytest.mark.timeout(900)]


@pytest.fixture
def start(tmp_path, lease_folder):
    """Yield a function that starts a cluster whose workers use GPUs; it returns the script and their reports."""
    started = []

    def start(*requirements, cluster, gpus=3, framework="toyflow", launcher="", **environ):
        server = Server([Gpu()] * gpus, folder=tmp_path).__enter__()
        command = [str(python_with(*requirements)), str(JOBS / "on_dask.py"), cluster, framework, launcher]
        started.append(Script(server, command, tmp_path, {"TF_CPP_MIN_LOG_LEVEL": "3", **environ}))
        return started[-1], started[-1].reports()

    yield start
    for script in started:
        script.close()
        script.server.__exit__(None, None, None)
        assert (script.process.returncode, end_all(script.server)) == (0, []), script.stderr()


def test_workers_of_a_local_cluster_choose_different_gpus(start, lease_folder):
    script, ran = start("distributed", cluster="local", framework="tensorflow")
    on = {each["pid"]: gpus_of(script.server, each["pid"]) for each in ran}
    assert sorted(on.values()) == [[0], [1], [2]]
    assert claims(lease_folder, script.server) == {pid: {gpus[0]: 24.0} for pid, gpus in on.items()}
    assert len(script.said()) == 3
    for worker in range(3):
        assert sum(f" for Dask worker {worker}: the idlest of 3" in line for line in script.said()) == 1, script.said()


@pytest.mark.parametrize(
    ("launcher", "framework"), [("TF_CONFIG", "tensorflow"), ("TF_CONFIG", "toyflow"), ("Horovod", "toyflow")]
)
def test_rank_variables_do_not_divide_the_gpu_of_a_dask_worker(start, launcher, framework):
    script, ran = start("distributed", cluster="one_each", framework=framework, launcher=launcher)
    on = {each["given"]: taken_by(each["pid"], script.server).gpus for each in ran}
    assert on == {str(gpu): {gpu: "whole"} for gpu in range(3)}


def test_dask_worker_with_two_listed_gpus_has_all_of_both(start):
    script, ran = start("distributed", cluster="two_each", gpus=4, launcher="TF_CONFIG", AUTOGPU_COUNT="all")
    on = {each["given"]: taken_by(each["pid"], script.server).gpus for each in ran}
    assert on == {"0,1": {0: "whole", 1: "whole"}, "2,3": {2: "whole", 3: "whole"}}


@pytest.mark.parametrize("launcher", ["", "TF_CONFIG"])
def test_dask_workers_with_rotated_lists_have_different_gpus(start, launcher):
    script, ran = start("distributed", cluster="rotated", launcher=launcher)
    assert sorted(each["given"] for each in ran) == ["0,1,2", "1,2,0", "2,0,1"]
    assert sorted(gpus_of(script.server, each["pid"]) for each in ran) == [[0], [1], [2]]


def test_dask_cuda_workers_stay_on_their_assigned_gpus(start):
    script, ran = start("dask-cuda", "cuda-python", cluster="dask_cuda")
    # dask-cuda has made a context on the first GPU of each list.
    on = {each["given"]: gpus_of(script.server, each["pid"]) for each in ran}
    assert on == {"0,1,2": [0], "1,2,0": [1], "2,0,1": [2]}
