"""Clusters that TF_CONFIG describes, with all tasks on one simulated server, checked by the driver's log."""

from __future__ import annotations

import json

import pytest

from tests.engines.engine_jobs import JOBS, Script, configurations, end_all, first_lines, gpus_of, until
from tests.gpusim import Gpu, Server
from tests.support.live_jobs import claims

pytestmark = [pytest.mark.engine, pytest.mark.tensorflow, pytest.mark.timeout(900)]

# Three TensorFlow processes start slowly together on a small machine. A task may hang when it ends, so the tests wait
# only a short time for its end.
STARTED_S, ENDED_S = 120, 20

TASK = str(JOBS / "task.py")
# This script starts a process for each TF_CONFIG in its first argument, and ends when all of them have ended.
LAUNCHER = """
import json, os, subprocess, sys
tasks = json.loads(sys.argv[1])
workers = [subprocess.Popen([sys.executable, *sys.argv[2:]], env={**os.environ, "TF_CONFIG": task}) for task in tasks]
sys.exit(max(worker.wait() for worker in workers))
"""


class Host:
    """A server for the tasks of clusters. Each task has its own file for stderr."""

    def __init__(self, server, python, place):
        self.server, self.python, self._place, self.tasks = server, str(python), place, []

    def start(self, *arguments, python=None, **environ) -> Script:
        own = self._place / f"task{len(self.tasks)}"
        own.mkdir()
        command = [str(python or self.python), *arguments]
        self.tasks.append(Script(self.server, command, own, {"TF_CPP_MIN_LOG_LEVEL": "3", **environ}))
        return self.tasks[-1]

    def start_waiting(self, *configurations) -> list[Script]:
        return [self.start(TASK, "toyflow", AUTOGPU_BUSY="wait", TF_CONFIG=each) for each in configurations]

    def gpus_of(self, *tasks):
        return [gpus_of(self.server, task.process.pid) for task in tasks]

    def close(self) -> None:
        # Close all inputs first, because the tasks of a cluster wait for each other before they end.
        for task in self.tasks:
            task.process.stdin.close()
        until(lambda: all(task.process.poll() is not None for task in self.tasks), ENDED_S)


@pytest.fixture
def host(tmp_path, small_python, lease_folder):
    """Yield a host with three GPUs; an unmanaged process uses the first."""
    with Server([Gpu(processes={5004242: "2GiB"}, utilization=60), Gpu(), Gpu()], folder=tmp_path) as server:
        made = Host(server, small_python, tmp_path)
        yield made
        made.close()
    assert not end_all(server)


EACH_ITS_OWN = [[1], [2]]


def test_workers_of_one_host_get_gpus_in_the_order_of_their_indices(host, tensorflow_python, lease_folder):
    tasks = configurations("worker", "worker")
    workers = [host.start(TASK, "all_reduce", python=tensorflow_python, TF_CONFIG=task) for task in tasks]
    assert [worker.reports()["replicas"] for worker in workers] == [2, 2]
    assert host.gpus_of(*workers) == EACH_ITS_OWN
    assert [len(worker.said()) for worker in workers] == [1, 0], [worker.said() for worker in workers]
    claimed = claims(lease_folder, host.server)
    # The first worker claims the GPUs of both workers.
    assert [claimed[worker.process.pid][gpu] for gpu, worker in enumerate(workers, 1)] == [24.0, 24.0]
    assert set().union(*claimed.values()) == {1, 2}


def is_settled(lease_folder, worker):
    """True if the worker has a claim, or waits for one."""
    return worker.process.pid in claims(lease_folder, worker.server) or any("waiting" in line for line in worker.said())


def run_one_after_the_other(host, one, two):
    """Check that the second job gets no GPU until the first job ends."""
    assert [worker.reports(STARTED_S)["gpus"] for worker in one] == [1, 1]
    assert [host.gpus_of(*one), host.gpus_of(*two)] == [EACH_ITS_OWN, [[], []]]
    for worker in one:
        worker.process.stdin.close()
    assert [worker.end() for worker in one] == [0, 0], [worker.stderr() for worker in one]
    assert [worker.reports(STARTED_S)["gpus"] for worker in two] == [1, 1]
    assert host.gpus_of(*two) == EACH_ITS_OWN


def test_waiting_job_holds_no_gpu_that_another_job_needs(host, lease_folder):
    (first, its_second), (other, others_second) = (configurations("worker", "worker") for _ in range(2))
    one = host.start_waiting(first)
    assert until(lambda: is_settled(lease_folder, one[0]), STARTED_S)
    two = host.start_waiting(other)
    assert until(lambda: is_settled(lease_folder, two[0]), STARTED_S)
    one += host.start_waiting(its_second)
    two += host.start_waiting(others_second)
    run_one_after_the_other(host, one, two)


def test_jobs_started_at_once_run_one_after_the_other(host):
    jobs = [host.start_waiting(*configurations("worker", "worker")) for _ in range(2)]
    assert until(lambda: any(worker.has_reported() for job in jobs for worker in job), STARTED_S), "a deadlock"
    one, two = jobs if any(worker.has_reported() for worker in jobs[0]) else jobs[::-1]
    run_one_after_the_other(host, one, two)


def test_workers_started_under_run_hold_get_one_of_its_gpus_each(host):
    launcher = [host.python, "-c", LAUNCHER, json.dumps(configurations("worker", "worker")), TASK, "toyflow"]
    job = host.start("-m", "autogpu", "run", "--hold", "--count", "2", "--", *launcher)
    ran = [job.reports(), job.reports()]
    assert sorted(gpus_of(host.server, each["pid"]) for each in ran) == EACH_ITS_OWN
    # One line is that of ``run --hold``, the other that of the first worker.
    assert len(job.said()) == 2, job.said()
    assert job.end() == 0, job.stderr()


def test_only_the_worker_of_a_parameter_server_cluster_uses_a_gpu(host, tensorflow_python):
    configured = configurations("chief", "ps", "worker")
    tasks = [host.start(TASK, "parameter_server", python=tensorflow_python, TF_CONFIG=each) for each in configured]
    assert [task.reports().get("sum") for task in tasks] == [4.0, None, None]
    chief, ps, worker = host.gpus_of(*tasks)
    assert (chief, ps, len(worker)) == ([], [], 1)
    assert [len(first_lines(task.said())) for task in tasks] == [1, 1, 1], [task.said() for task in tasks]
