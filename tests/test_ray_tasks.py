"""The GPUs of a Ray task, as its worker process and the programs that the task starts read them."""

import os
import sys
import types
from functools import partial
from typing import Any

import pytest

from autogpu.engines import ray_tasks
from autogpu.engines.ray_tasks import RayTask, before_each_task, current_task, pass_on
from autogpu.variables import CUDA_VISIBLE_DEVICES, RAY_TASK, RAY_WORKER
from tests.support.values import gpu

WORKER = {RAY_WORKER: "7"}
ONE = gpu(1)


@pytest.fixture(autouse=True)
def in_a_worker(monkeypatch):
    """Make this process a worker of Ray that has not asked Ray for anything yet."""
    monkeypatch.setenv(RAY_WORKER, "7")
    monkeypatch.delenv(RAY_TASK, raising=False)
    monkeypatch.setattr(ray_tasks, "_watchers", [])
    monkeypatch.setattr(ray_tasks, "_cluster_has_gpus", None)


@pytest.fixture
def utils(monkeypatch):
    """Import a fake of the module of Ray whose function Ray calls before each task."""
    made: Any = types.ModuleType("ray._private.utils")
    made.set_visible_accelerator_ids = lambda: "assigned"
    monkeypatch.setitem(sys.modules, "ray._private.utils", made)
    return made


def ray_with(monkeypatch, gpus, ids, cluster_gpus=4, name="train"):
    """Import a fake ``ray`` that runs a task with these GPUs."""
    context = types.SimpleNamespace(
        get_assigned_resources=lambda: {"GPU": gpus} if gpus else {},
        get_accelerator_ids=lambda: {"GPU": ids},
        get_actor_name=lambda: None,
        get_task_name=lambda: name,
    )
    ray: Any = types.ModuleType("ray")
    ray.get_runtime_context = lambda: context
    ray.cluster_resources = lambda: {"GPU": cluster_gpus} if cluster_gpus else {}
    monkeypatch.setitem(sys.modules, "ray", ray)


@pytest.mark.parametrize(
    ("gpus", "ids", "cluster_gpus", "name"),
    [
        pytest.param(0.5, ["2"], 4, "train", id="half-a-gpu"),
        pytest.param(2, ["1", "GPU-5d0f"], 4, "Actor.compute", id="two-gpus"),
        pytest.param(0, [], 4, "a task with spaces", id="no-gpu"),
        pytest.param(0, [], 0, "", id="cluster-without-gpus"),
    ],
)
def test_program_of_a_task_reads_the_gpus_of_the_task(monkeypatch, gpus, ids, cluster_gpus, name):
    ray_with(monkeypatch, gpus, ids, cluster_gpus, name)
    task = current_task(WORKER)
    assert task is not None
    pass_on()
    monkeypatch.delitem(sys.modules, "ray")
    assert current_task(os.environ) == task
    assert (task.gpus, list(task.ids), task.manages_gpus) == (gpus, ids, cluster_gpus > 0)


@pytest.mark.parametrize(
    ("environ", "text"),
    [
        pytest.param({}, "7 41 0.5 1 2 train", id="outside-of-ray"),
        pytest.param({RAY_WORKER: "8"}, "7 41 0.5 1 2 train", id="another-ray"),
        pytest.param(WORKER, "", id="empty-variable"),
        pytest.param(WORKER, "7 41 half 1 2 train", id="gpu-count-is-a-word"),
        pytest.param(WORKER, "7 41 1.2.3 1 2 train", id="gpu-count-with-two-points"),
    ],
)
def test_variable_of_another_ray_or_malformed_variable_is_ignored(environ, text):
    assert current_task({**environ, RAY_TASK: text}) is None


def test_old_variable_is_removed_if_ray_does_not_answer(monkeypatch):
    monkeypatch.setenv(RAY_TASK, "7 41 0.5 1 2 train")
    pass_on()
    assert RAY_TASK not in os.environ


def test_task_goes_on_if_a_script_has_removed_the_variable_of_ray(monkeypatch):
    ray_with(monkeypatch, 1, ["0"])
    monkeypatch.delenv(RAY_WORKER)
    pass_on()
    monkeypatch.delitem(sys.modules, "ray")
    assert current_task(WORKER) is None


def test_each_watcher_is_called_once_before_each_task(utils):
    told: list[str] = []
    first, second = partial(told.append, "first"), partial(told.append, "second")
    for watcher in (first, second, first):
        before_each_task(watcher)
    assert (utils.set_visible_accelerator_ids(), told) == ("assigned", ["first", "second"])


@pytest.mark.parametrize(
    ("gpus", "visible", "options", "expected"),
    [
        pytest.param(1, "1", {}, None, id="same-gpu"),
        pytest.param(1, "0", {}, "GPU 0", id="another-gpu"),
        pytest.param(0.5, "1", {}, "50 % of GPU 1", id="half-of-the-same-gpu"),
        pytest.param(2, "GPU-5d0f,0", {}, "GPU-5d0f and GPU 0", id="uuid"),
        pytest.param(0, "", {}, "no GPU", id="no-gpu"),
        pytest.param(1, "0", {"AUTOGPU_LEVEL": "quiet"}, None, id="quiet"),
    ],
)
def test_line_tells_a_task_that_its_process_keeps_the_gpus_of_an_earlier_task(
    monkeypatch, utils, started, gpus, visible, options, expected
):
    ray_with(monkeypatch, 1, ["1"])
    process = started(gpu(0), ONE, counted=[ONE], **WORKER, **options, **{CUDA_VISIBLE_DEVICES: "1"})
    process.framework.take()
    del process.lines[:]

    ray_with(monkeypatch, gpus, visible.split(",") if visible else [])
    process.environ[CUDA_VISIBLE_DEVICES] = visible
    utils.set_visible_accelerator_ids()
    kept = f"Ray granted {expected} to train, but its process keeps GPU 1 of an earlier task"
    assert process.lines == ([f"{kept}; to avoid that: @ray.remote(max_calls=1)"] if expected else [])


def test_task_name_is_shortened_to_one_line(monkeypatch):
    ray_with(monkeypatch, 1, ["0"], name="a\nb" * 99)
    task = current_task(WORKER)
    assert isinstance(task, RayTask)
    assert "\n" not in task.name
    assert len(task.name) <= 64
