"""A real Ray on one simulated server: the GPUs of its tasks, checked by the driver's log."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path

import pytest

from tests.engines.engine_jobs import (
    JOBS,
    Script,
    end_all,
    first_lines,
    gpus_of,
    lines_of_autogpu,
    python_with,
    taken_by,
)
from tests.gpusim import Gpu, Server
from tests.support import framework_environments
from tests.support.framework_environments import TORCHES, TURNS
from tests.support.live_jobs import claims

pytestmark = [pytest.mark.engine, pytest.mark.tensorflow, pytest.mark.timeout(900)]

# Ray assigns the lowest numbers first. autogpu itself chooses GPU 3 first, and never GPU 1, which is busy.
GPUS = (Gpu(), Gpu(processes={5004242: "10GiB"}, utilization=60), Gpu(), Gpu())
HALF = "11.50 GiB"


class Ray:
    """A script that has started Ray, and the reports of its tasks."""

    def __init__(self, server: Server, script: Script, logs: Path) -> None:
        self.server, self.script, self._logs = server, script, logs

    def reports(self):
        """Return the next report. The actors still hold their GPUs then."""
        return self.script.reports()

    def on(self, *told):
        """Return, for each task, the GPUs with a context, and the GPUs that Ray assigned.

        Ray's ids are numbers in PCI order, or UUIDs if Ray was started with a list of UUIDs.
        """
        uuids = [gpu.uuid for gpu in self.server.gpus]
        assigned = [[uuids.index(each) if each in uuids else int(each) for each in task["ids"]] for task in told]
        return [gpus_of(self.server, task["pid"]) for task in told], [sorted(each) for each in assigned]

    def said(self, *told):
        """Return autogpu's lines of each task, from Ray's log of its stderr."""
        logs = [list(self._logs.glob(f"worker-*-{task['pid']}.err")) for task in told]
        return [[line for file in files for line in lines_of_autogpu(file.read_text())] for files in logs]


@pytest.fixture
def start(tmp_path, lease_folder, monkeypatch):
    for name in [name for name in os.environ if name.startswith("RAY_")]:
        monkeypatch.delenv(name)
    # Ray makes sockets in this folder, and a socket's path has at most 107 characters.
    own = Path(tempfile.mkdtemp(prefix="ray-"))
    environ = {
        "FOLDER_OF_RAY": str(own),
        # By default Ray writes a token into the home folder, sends statistics, and listens beyond the loopback
        # interface.
        "RAY_AUTH_MODE": "disabled",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    made: list[Script] = []

    def start(*arguments, base=None):
        python = python_with("ray[train]", base=base)
        server = Server(GPUS, folder=tmp_path).__enter__()
        command = [str(python), str(JOBS / "on_ray.py"), *arguments]
        made.append(Script(server, command, tmp_path, environ))
        return Ray(server, made[-1], own / "session_latest" / "logs")

    yield start
    for script in made:
        # Ray ends its own processes, even if the test has failed.
        script.close()
        script.server.__exit__(None, None, None)
        left = end_all(script.server)
        shutil.rmtree(own)
        fails = "out_of_memory" in script.command
        assert (script.process.returncode, left) == (int(fails), []), script.stderr()


def test_ray_tasks_use_their_assigned_gpus(start, tmp_path):
    ray = start("managed")

    of_one = ray.reports()
    assert ray.on(*of_one) == ([[0], [1]], [[0], [1]])
    for gpu, lines in enumerate(ray.said(*of_one)):
        assert len(first_lines(lines)) == 1
        assert lines[0].startswith(f"autogpu: GPU {gpu} ")
        assert " for Actor.compute: the only one granted by Ray" in lines[0]

    halves = ray.reports()
    assert [each["ids"] for each in halves] == [["0"], ["0"]]
    assert [taken_by(each["pid"], ray.server).gpus for each in halves] == [{0: HALF}, {0: HALF}]
    claimed = claims(tmp_path / "leases", ray.server)
    scripts = [json.loads(file.read_text())["script"] for file in (tmp_path / "leases").glob("job.*")]
    assert scripts == ["Actor.compute"] * 2
    assert [claimed[each["pid"]] for each in halves] == [{0: 12.0}, {0: 12.0}]
    ray.script.process.stdin.write(b"\n")

    without_variable = ray.reports()
    assert ray.on(*without_variable) == ([[0], [1]], [[0], [1]])

    without_gpu = ray.reports()
    assert [each["gpus"] for each in without_gpu] == [0, 0]
    assert ray.on(*without_gpu) == ([[], []], [[], []])
    for lines in ray.said(*without_gpu):
        assert len(first_lines(lines)) == 1
        assert "Ray" in lines[0]

    of_two = ray.reports()
    assert of_two["gpus"] == 2
    assert ray.on(of_two) == ([[0, 1]], [[0, 1]])

    # Ray reuses a worker of TensorFlow for a task with another GPU. As without autogpu, it stays on its first GPU.
    first, second = ray.reports()
    assert (first["ids"], second["ids"], second["pid"]) == (["1"], ["0"], first["pid"])
    assert (first["gpus"], second["gpus"], gpus_of(ray.server, first["pid"])) == (1, 1, [1])
    (lines,) = ray.said(first)
    assert len(first_lines(lines)) == 1, lines
    kept = "Ray granted 50 % of GPU 0 to compute, but its process keeps GPU 1 of an earlier task"
    assert lines[-1] == f"autogpu: {kept}; to avoid that: @ray.remote(max_calls=1)"


def test_program_started_by_a_task_uses_the_gpus_of_the_task(start):
    ray = start("subprocesses")
    (of_none,) = ray.reports()
    assert of_none["gpus"] == 0
    assert "Ray granted no GPU to this task" in of_none["said"]

    halves = ray.reports()
    assert [gpus_of(ray.server, each["pid"]) for each in halves] == [[0], [0]]
    taken = [taken_by(each["pid"], ray.server).gpus[0] for each in halves]
    assert taken[0] == HALF
    assert float(taken[1].split()[0]) <= 1.0, "the first has all of the half"
    assert all("the only one granted by Ray, 50 % of the GPU" in each["said"] for each in halves)

    of_two = ray.reports()
    assert sorted(gpus_of(ray.server, each["pid"]) for each in of_two) == [[0], [1]]


def test_tasks_choose_the_idlest_gpus_if_ray_manages_none(start):
    ray = start("unmanaged")
    on, _ = ray.on(*ray.reports())
    assert on == [[3], [2]]


@pytest.mark.parametrize("count", ["told", "counted"])
@pytest.mark.parametrize("use", ["imports", "computes"])
def test_driver_that_imports_a_framework_can_start_ray_with_all_gpus(start, use, count):
    ray = start("driver", use, count)
    gpus, told = ray.reports()
    assert gpus == 4
    on, assigned = ray.on(*told)
    assert on == assigned
    assert on[0] != on[1]


def test_out_of_memory_error_of_an_actor_is_not_reported_by_its_driver(start):
    ray = start("out_of_memory")
    told = ray.reports()
    ray.script.close()
    assert "OutOfMemoryError: no " in ray.script.stderr()
    assert "out of memory on GPU" not in ray.script.stderr()
    assert [len(first_lines(lines)) for lines in ray.said(*told)] == [1]


@pytest.mark.parametrize(
    ("workers", "gpus", "framework"), [("2", "1", "tensorflow"), ("4", "1", "toyflow"), ("2", "2", "toyflow")]
)
def test_trainer_workers_have_all_of_their_assigned_gpus(start, workers, gpus, framework):
    ray = start("train", workers, gpus, framework)
    told = ray.reports()
    on, assigned = ray.on(*told)
    assert on == assigned
    assert [len(each) for each in on] == [int(gpus)] * int(workers)
    if framework == "toyflow":
        taken = [taken_by(each["pid"], ray.server).gpus for each in told]
        # An unmanaged process computes on GPU 1, so a worker there gets only the free memory.
        assert taken == [{gpu: "13.50 GiB" if gpu == 1 else "whole" for gpu in each} for each in on]
    # Only the first worker prints a line.
    assert [len(first_lines(lines)) for lines in ray.said(*told)] == [1] + [0] * (int(workers) - 1)
    assert " for RayTrainWorker: " in ray.said(*told)[0][0]


# The release on the Python that Ray's other environments use. Its test has the turn in which tests/frameworks installs
# this release.
OLDER_TORCH = next(place for place, release in enumerate(TORCHES) if release.python == "3.11")


@pytest.mark.turns(TURNS, OLDER_TORCH)
@pytest.mark.parametrize(("workers", "gpus"), [("2", "1"), ("2", "2")])
def test_pytorch_devices_named_by_ray_are_the_assigned_gpus(start, workers, gpus):
    ray = start("torch", workers, gpus, base=framework_environments.torch(TORCHES[OLDER_TORCH]))
    told = ray.reports()
    on, assigned = ray.on(*told)
    assert on == assigned
    assert [len(each["devices"]) for each in told] == [int(gpus)] * int(workers)
    # Ray looks up its numbers in the list that it set, so the list must stay as it is.
    listed = ",".join(number for each in told for number in each["ids"])
    assert [each["visible"] for each in told] == [[listed, listed]] * int(workers)
