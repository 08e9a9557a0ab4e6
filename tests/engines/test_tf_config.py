"""Clusters that TF_CONFIG describes, all tasks on one simulated server, judged by the driver's log."""

from __future__ import annotations

import json
import socket

import pytest

from tests.engines.engine_jobs import Script, end_all, gpus_of, until
from tests.gpusim import Gpu, Server
from tests.support import environments
from tests.support.live_jobs import claims

pytestmark = [pytest.mark.engine, pytest.mark.tensorflow, pytest.mark.timeout(900)]

# Three TensorFlows that start together on a small machine are slow; what waits for ever is not waited for longer.
STARTED_S, ENDED_S = 120, 20

# Keeps its GPU until its input ends, as in a training that goes on.
WORKER = """
import json, os, sys
import tensorflow as tf
strategy = tf.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    counter = tf.Variable(0.0)

@tf.function
def step():
    strategy.run(lambda: counter.assign_add(1.0))
    return counter.value()

seen = {"pid": os.getpid(), "replicas": strategy.num_replicas_in_sync, "on": step().device[-5:]}
print(json.dumps(seen), flush=True)
sys.stdin.read()
"""

PARAMETER_SERVER = """
import json, os, sys
import tensorflow as tf
resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
seen = {"pid": os.getpid()}
if resolver.task_type == "chief":
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        variable = tf.Variable(1.0)

    @tf.function
    def step():
        return tf.reduce_sum(tf.random.uniform((64, 64))) * 0 + variable

    done = [coordinator.schedule(step) for _ in range(4)]
    coordinator.join()
    seen["sum"] = sum(float(each.fetch()) for each in done)
else:
    spec = resolver.cluster_spec()
    server = tf.distribute.Server(spec, job_name=resolver.task_type, task_index=resolver.task_id, protocol="grpc")
print(json.dumps(seen), flush=True)
sys.stdin.read()
# A server has no end, and a chief waits at its own for answers of servers that may be gone.
os._exit(0)
"""

LAUNCHER = """
import json, os, subprocess, sys
tasks = json.loads(sys.argv[1])
workers = [subprocess.Popen([sys.executable, "task.py"], env={**os.environ, "TF_CONFIG": task}) for task in tasks]
sys.exit(max(worker.wait() for worker in workers))
"""


@pytest.fixture(scope="module")
def python():
    return environments.tensorflow_with_autogpu()


class Host:
    """A server on which the tasks of clusters start, each with a stderr of its own."""

    def __init__(self, python, place, gpus):
        place.mkdir()
        self.python, self.place, self.tasks = python, place, []
        self.server = Server(gpus, folder=place).__enter__()

    def start(self, script, *command, **environ) -> Script:
        own = self.place / f"task{len(self.tasks)}"
        own.mkdir()
        (own / "task.py").write_text(script)
        (own / "launcher.py").write_text(LAUNCHER)
        everything = {"TF_CPP_MIN_LOG_LEVEL": "3", **environ}
        self.tasks.append(Script(self.server, [str(self.python), *(command or ["task.py"])], own, everything))
        return self.tasks[-1]

    def gpus_of(self, *tasks):
        return [gpus_of(self.server, task.process.pid) for task in tasks]

    def close(self) -> list[str]:
        # Tasks leave a cluster together: one waits for the others.
        for task in self.tasks:
            task.process.stdin.close()
        until(lambda: all(task.process.poll() is not None for task in self.tasks), ENDED_S)
        self.server.__exit__(None, None, None)
        return end_all(self.server)


@pytest.fixture
def host(tmp_path, python, lease_folder):
    hosts = []

    def host(*gpus):
        hosts.append(Host(python, tmp_path / f"server{len(hosts)}", gpus))
        return hosts[-1]

    yield host
    assert not [left for each in hosts for left in each.close()]


def configurations(*kinds):
    """TF_CONFIG for each task of a cluster, in the order of ``kinds``."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in kinds]
    cluster = {kind: [] for kind in kinds}
    tasks = []
    for kind, each in zip(kinds, sockets):
        tasks.append({"type": kind, "index": len(cluster[kind])})
        cluster[kind].append(f"127.0.0.1:{each.getsockname()[1]}")
    # Together, after the last has been opened: no port is given twice.
    for each in sockets:
        each.close()
    return [json.dumps({"cluster": cluster, "task": task}) for task in tasks]


def test_each_worker_of_one_host_has_its_own_gpu_in_the_order_of_their_indices(host, lease_folder):
    lab = host(Gpu(), Gpu())
    workers = [lab.start(WORKER, TF_CONFIG=task) for task in configurations("worker", "worker")]
    assert [worker.reports()["replicas"] for worker in workers] == [2, 2]
    assert lab.gpus_of(*workers) == [[0], [1]]
    assert [len(worker.said()) for worker in workers] == [1, 0], [worker.said() for worker in workers]
    claimed = claims(lease_folder, lab.server)
    # The one that came first holds for both.
    assert [claimed[worker.process.pid][gpu] for gpu, worker in enumerate(workers)] == [24.0, 24.0]
    assert set().union(*claimed.values()) == {0, 1}


def is_settled(lease_folder, worker):
    """Whether it has a claim, or waits for one."""
    return worker.process.pid in claims(lease_folder, worker.server) or any("waiting" in line for line in worker.said())


def test_a_job_that_waits_holds_no_gpu_that_another_job_needs(host, lease_folder):
    lab = host(Gpu(), Gpu())
    (first, its_second), (other, others_second) = (configurations("worker", "worker") for _ in range(2))
    one = [lab.start(WORKER, AUTOGPU_BUSY="wait", TF_CONFIG=first)]
    assert until(lambda: is_settled(lease_folder, one[0]), STARTED_S)
    two = [lab.start(WORKER, AUTOGPU_BUSY="wait", TF_CONFIG=other)]
    assert until(lambda: is_settled(lease_folder, two[0]), STARTED_S)
    one.append(lab.start(WORKER, AUTOGPU_BUSY="wait", TF_CONFIG=its_second))
    two.append(lab.start(WORKER, AUTOGPU_BUSY="wait", TF_CONFIG=others_second))
    assert [worker.reports(STARTED_S)["replicas"] for worker in one] == [2, 2]
    assert [lab.gpus_of(*one), lab.gpus_of(*two)] == [[[0], [1]], [[], []]]
    end_together(one)
    assert [worker.reports(STARTED_S)["replicas"] for worker in two] == [2, 2]
    assert lab.gpus_of(*two) == [[0], [1]]


def test_jobs_that_start_in_the_same_instant_run_one_after_the_other(host):
    lab = host(Gpu(), Gpu())
    jobs = [
        [lab.start(WORKER, AUTOGPU_BUSY="wait", TF_CONFIG=task) for task in configurations("worker", "worker")]
        for _ in range(2)
    ]
    assert until(lambda: any(worker.has_reported() for job in jobs for worker in job), STARTED_S), "a deadlock"
    one, two = jobs if any(worker.has_reported() for worker in jobs[0]) else jobs[::-1]
    assert [worker.reports(STARTED_S)["replicas"] for worker in one] == [2, 2]
    assert lab.gpus_of(*two) == [[], []]
    end_together(one)
    assert [worker.reports(STARTED_S)["replicas"] for worker in two] == [2, 2]
    assert lab.gpus_of(*one) == lab.gpus_of(*two) == [[0], [1]]


def end_together(workers):
    for worker in workers:
        worker.process.stdin.close()
    assert [worker.end() for worker in workers] == [0, 0], [worker.stderr() for worker in workers]


def test_workers_under_a_hold_have_one_of_its_gpus_each(host):
    lab = host(Gpu(processes={5004242: "2GiB"}, utilization=60), Gpu(), Gpu())
    tasks = json.dumps(configurations("worker", "worker"))
    hold = ["-m", "autogpu", "run", "--hold", "--count", "2", "--", str(lab.python), "launcher.py", tasks]
    job = lab.start(WORKER, *hold)
    ran = [job.reports(), job.reports()]
    assert [each["replicas"] for each in ran] == [2, 2]
    assert sorted(gpus_of(lab.server, each["pid"]) for each in ran) == [[1], [2]]
    # The hold's own, and the first worker's.
    assert len(job.said()) == 2, job.said()
    assert job.end() == 0, job.stderr()


def test_of_a_parameter_server_cluster_only_the_worker_takes_a_gpu(host):
    lab = host(Gpu(), Gpu(), Gpu())
    tasks = [lab.start(PARAMETER_SERVER, TF_CONFIG=task) for task in configurations("chief", "ps", "worker")]
    assert [task.reports().get("sum") for task in tasks] == [4.0, None, None]
    chief, ps, worker = lab.gpus_of(*tasks)
    assert (chief, ps, len(worker)) == ([], [], 1)
    assert [len(task.said()) for task in tasks] == [1, 1, 1], [task.said() for task in tasks]
