"""A real Ray on one simulated server: which GPU its tasks compute on, judged by the driver's log."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import pytest

from tests.engines.engine_jobs import Script, end_all, gib_of, gpus_of, lines_of_autogpu, python_with
from tests.gpusim import Gpu, Server
from tests.support.live_jobs import claims

pytestmark = [pytest.mark.engine, pytest.mark.tensorflow, pytest.mark.timeout(900)]

# Ray assigns the lowest numbers first; whoever chooses by itself takes GPU 3.
BUSY = Gpu(processes={5004242: "2GiB"}, utilization=60)
GPUS = (BUSY, BUSY, Gpu(), Gpu())
HALF = 24 / 2

SCRIPT = """
import json, os, sys, time
import ray

def begin(**options):
    temporary = os.environ["FOLDER_OF_RAY"]
    ray.init(num_cpus=2, include_dashboard=False, object_store_memory=100 << 20, _temp_dir=temporary, **options)

def compute(gib=0):
    import tensorflow as tf
    gpus = tf.config.list_logical_devices("GPU")
    try:
        on = tf.raw_ops.Empty(shape=(gib, 1 << 14, 1 << 14), dtype=tf.float32).device[-5:]
    except tf.errors.ResourceExhaustedError:
        on = "refused"
    ids = ray.get_runtime_context().get_accelerator_ids()["GPU"]
    return {"pid": os.getpid(), "ids": ids, "gpus": len(gpus), "on": on}

@ray.remote
class Actor:
    def compute(self, gib=0):
        return compute(gib)

def report(value):
    print(json.dumps(value), flush=True)

"""
# The actors keep their GPUs until the test has seen what it wants to see.
HOLD = """
sys.stdin.read()
ray.shutdown()
"""


@pytest.fixture(scope="module")
def python():
    return python_with("ray")


class Cluster:
    """A script that starts Ray, and the folders of both."""

    def __init__(self, python: Path, server: Server, folder: Path, own: Path, text: str, environ: dict[str, str]):
        (folder / "driver.py").write_text(SCRIPT + text + HOLD)
        self.server, self._own = server, own
        everything = {
            "FOLDER_OF_RAY": str(own),
            # Ray would write a token into the home folder, send statistics, and listen beyond the loopback interface.
            "RAY_AUTH_MODE": "disabled",
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
            "TF_CPP_MIN_LOG_LEVEL": "3",
            **environ,
        }
        self.script = Script(server, [str(python), "driver.py"], folder, everything)

    def reports(self):
        """What the script reports; Ray still runs, and its actors have what they have."""
        return self.script.reports()

    def end(self) -> None:
        assert self.script.end() == 0, self.script.stderr()

    def said_by(self, pid: int) -> list[str]:
        """What autogpu printed in a worker, from Ray's file of its stderr."""
        files = (self._own / "session_latest" / "logs").glob(f"worker-*-{pid}.err")
        return [line for file in files for line in lines_of_autogpu(file.read_text())]


@pytest.fixture
def cluster(tmp_path, lease_folder, python, monkeypatch):
    """Start Ray on a server of four GPUs by a script that goes on as ``text`` says."""
    for name in [name for name in os.environ if name.startswith("RAY_")]:
        monkeypatch.delenv(name)
    # Ray makes sockets below it, whose paths may have 107 characters.
    own = Path(tempfile.mkdtemp(prefix="ray-"))
    made: list[Cluster] = []

    def start(text, gpus=GPUS, **environ):
        folder = tmp_path / f"server{len(made)}"
        folder.mkdir()
        server = Server(gpus, folder=folder).__enter__()
        made.append(Cluster(python, server, folder, own / str(len(made)), text, environ))
        return made[-1]

    yield start
    left = []
    for each in made:
        # Ray ends its processes itself, also where the test has failed.
        each.script.close()
        each.server.__exit__(None, None, None)
        left += end_all(each.server)
    shutil.rmtree(own)
    assert not left


def assigned(server: Server, ids: list[str]) -> list[int]:
    """The GPUs that Ray's ids mean: numbers in PCI order, or UUIDs where Ray was started with a list of these."""
    uuids = [gpu.uuid for gpu in server.gpus]
    return sorted(uuids.index(each) if each in uuids else int(each) for each in ids)


def test_a_task_of_one_gpu_computes_on_the_gpu_that_ray_assigned(cluster):
    ray = cluster(
        """
begin(num_gpus=4)
actors = [Actor.options(num_gpus=1).remote() for _ in range(2)]
report(ray.get([actor.compute.remote() for actor in actors]))
"""
    )
    ran = ray.reports()
    assert sorted(each["ids"] for each in ran) == [["0"], ["1"]]
    for each in ran:
        assert (each["on"], gpus_of(ray.server, each["pid"])) == ("GPU:0", assigned(ray.server, each["ids"]))
        lines = ray.said_by(each["pid"])
        assert len(lines) == 1
        assert lines[0].startswith(f"autogpu: GPU {each['ids'][0]} ")
    ray.end()


def test_a_task_of_two_gpus_may_use_both(cluster):
    ray = cluster(
        """
begin(num_gpus=4)
report(ray.get(ray.remote(num_gpus=2)(compute).remote()))
""",
        AUTOGPU_COUNT="all",
    )
    ran = ray.reports()
    assert ran["gpus"] == 2
    assert gpus_of(ray.server, ran["pid"]) == assigned(ray.server, ran["ids"]) == [0, 1]
    ray.end()


def test_tasks_of_half_a_gpu_get_half_of_its_memory_each(cluster, tmp_path):
    # An allocator that grows asks the driver for powers of two, cut off at its limit: 9 GiB are 16, or the limit.
    ray = cluster(
        """
begin(num_gpus=4)
actors = [Actor.options(num_gpus=0.5).remote() for _ in range(2)]
report([ray.get(actor.compute.remote(9)) for actor in actors])
""",
        gpus=[Gpu()] * 4,
    )
    ran = ray.reports()
    assert [each["ids"] for each in ran] == [["0"], ["0"]]
    pids = [each["pid"] for each in ran]
    assert [gpus_of(ray.server, pid) for pid in pids] == [[0], [0]]
    assert [HALF - 1 <= gib_of(ray.server, pid) <= HALF for pid in pids] == [True, True], [
        gib_of(ray.server, pid) for pid in pids
    ]
    claimed = claims(tmp_path / "leases", ray.server)
    assert [HALF - 1 <= claimed[pid][0] <= HALF for pid in pids] == [True, True], claimed
    ray.end()


def test_a_task_without_a_gpu_takes_none_where_ray_manages_them(cluster):
    ray = cluster(
        """
begin(num_gpus=4)
report(ray.get([ray.remote(compute).remote(), Actor.remote().compute.remote()]))
"""
    )
    for each in ray.reports():
        assert (each["on"], each["gpus"], gpus_of(ray.server, each["pid"])) == ("CPU:0", 0, [])
        lines = ray.said_by(each["pid"])
        assert len(lines) == 1
        assert "Ray" in lines[0]
    ray.end()


def test_a_task_chooses_as_on_a_workstation_where_ray_manages_no_gpus(cluster):
    ray = cluster(
        """
begin(num_gpus=0)
actors = [Actor.remote() for _ in range(2)]
report(ray.get([actor.compute.remote() for actor in actors]))
"""
    )
    pids = [each["pid"] for each in ray.reports()]
    assert sorted(gpus_of(ray.server, pid) for pid in pids) == [[2], [3]]
    ray.end()


def test_a_task_that_ray_sets_no_variable_for_uses_the_assigned_gpu_only(cluster):
    ray = cluster(
        """
begin(num_gpus=4)
noset = {"env_vars": {"RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "1"}}
actors = [Actor.options(num_gpus=1, runtime_env=noset).remote() for _ in range(2)]
report(ray.get([actor.compute.remote() for actor in actors]))
"""
    )
    ran = ray.reports()
    assert sorted(each["ids"] for each in ran) == [["0"], ["1"]]
    for each in ran:
        assert (each["on"], gpus_of(ray.server, each["pid"])) == ("GPU:0", assigned(ray.server, each["ids"]))
    ray.end()


# A task made by ``options`` leaves its worker to the next one. The first task has GPU 1, because an actor has GPU 0.
REUSE = """
begin(num_gpus=4)
task = ray.remote(compute)
actor = Actor.options(num_gpus=1).remote()
# A call that imports no TensorFlow: when it is answered, the actor has its GPU.
ray.get(actor.__ray_ready__.remote())
first = ray.get(task.options(num_gpus=1).remote())
ray.kill(actor)
deadline = time.monotonic() + 60
while ray.available_resources().get("GPU") != 4 and time.monotonic() < deadline:
    time.sleep(0.05)
report([first, ray.get(task.options(num_gpus=1).remote())])
"""


def test_a_worker_that_is_used_again_for_another_gpu_is_as_without_autogpu(cluster):
    seen = []
    for switch in ("0", "1"):
        ray = cluster(REUSE, AUTOGPU=switch)
        first, second = ray.reports()
        assert (first["ids"], second["ids"], second["pid"]) == (["1"], ["0"], first["pid"])
        seen.append([first["on"], second["on"], second["gpus"], gpus_of(ray.server, first["pid"])])
        ray.end()
    assert seen[0] == seen[1] == ["GPU:0", "GPU:0", 1, [1]]


@pytest.mark.parametrize("gpus", ["num_gpus=4", ""], ids=["told", "counted-by-ray"])
@pytest.mark.parametrize("driver", ["import tensorflow", "compute()"], ids=["imports", "computes"])
def test_a_driver_with_tensorflow_can_start_ray_with_all_gpus(cluster, driver, gpus):
    ray = cluster(
        f"""
def compute_here():
    import tensorflow as tf
    tf.random.uniform((2, 2))
{driver.replace("compute()", "compute_here()")}
begin({gpus})
actors = [Actor.options(num_gpus=1).remote() for _ in range(2)]
report([ray.cluster_resources()["GPU"], ray.get([actor.compute.remote() for actor in actors])])
"""
    )
    count, ran = ray.reports()
    assert count == 4
    on = [gpus_of(ray.server, each["pid"]) for each in ran]
    assert on == [assigned(ray.server, each["ids"]) for each in ran]
    assert on[0] != on[1]
    ray.end()
