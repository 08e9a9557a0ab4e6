"""The GPUs that Ray assigned to the running task, and the variable that passes them to the task's programs.

Only a worker process can ask Ray. So autogpu writes Ray's answer into a variable before each task. Every worker process
of Ray imports this module, so it imports little.
"""

from __future__ import annotations

import os
import re
import sys

from autogpu.errors import raise_if_from_script
from autogpu.frozen import Value
from autogpu.text import printable
from autogpu.variables import RAY_TASK, RAY_WORKER

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Mapping

_LONGEST_NAME = 64

# Ray calls this function of its own before each task, to set CUDA_VISIBLE_DEVICES.
_UTILS = "ray._private.utils"
_BEFORE_TASK = "set_visible_accelerator_ids"

# An attribute that marks autogpu's replacement of that function.
_WATCHES = "_autogpu_watches"

# Functions to call before each task of this process.
_watchers: list[Callable[[], None]] = []


# True if Ray's cluster has GPUs; None before autogpu has asked Ray. autogpu asks only once in each process, because the
# question takes longer than a short task.
_cluster_has_gpus: bool | None = None


class RayTask(Value):
    """The GPUs that Ray assigned to the running task.

    Attributes:
        gpus: How many GPUs; less than 1 for a part of one GPU.
        ids: Names of the GPUs, as in ``CUDA_VISIBLE_DEVICES``.
        manages_gpus: True if Ray's cluster has GPUs to assign.
        name: Name of the actor, or of the task if there is no actor.
        worker: The pid of the worker process that runs the task.
    """

    gpus: float
    ids: tuple[str, ...]
    manages_gpus: bool
    name: str = ""
    worker: int = 0


def current_task(environ: Mapping[str, str]) -> RayTask | None:
    """Return the task that runs in this process or has started this program; ``None`` if that is unknown."""
    return _ask_ray() or _passed_on(environ)


def _ask_ray() -> RayTask | None:
    ray: Any = sys.modules.get("ray")
    try:
        context = ray.get_runtime_context()
        gpus = float(context.get_assigned_resources().get("GPU", 0))
        ids = tuple(map(str, context.get_accelerator_ids().get("GPU", ())))
        name = str(context.get_actor_name() or context.get_task_name() or _title())
        return RayTask(gpus, ids, bool(gpus) or _manages_gpus(ray), printable(name, _LONGEST_NAME), os.getpid())
    except Exception as error:  # not connected yet, or a version of Ray without these functions
        raise_if_from_script(error)
        return None


def _manages_gpus(ray: Any) -> bool:
    global _cluster_has_gpus
    if _cluster_has_gpus is None:
        _cluster_has_gpus = bool(ray.cluster_resources().get("GPU"))
    return _cluster_has_gpus


def _title() -> str:
    """Return the task's name from the process title. Threads of a task, as in Ray Train, can't get it from Ray."""
    with open("/proc/self/cmdline", errors="replace") as file:  # noqa: PTH123  (a slow import)
        return file.read().partition("\0")[0].partition("ray::")[2]


def _passed_on(environ: Mapping[str, str]) -> RayTask | None:
    # The value begins with the pid of Ray's daemon. If a task starts a Ray of its own, that one has another daemon.
    daemon = re.escape(environ.get(RAY_WORKER, ""))
    found = re.fullmatch(rf"{daemon} ([0-9]+) ([0-9.]{{1,20}}) ([01]) (\S*) (.*)", environ.get(RAY_TASK, ""))
    if found is None:
        return None
    worker, gpus, manages_gpus, ids, name = found.groups()
    try:
        return RayTask(float(gpus), tuple(filter(None, ids.split(","))), manages_gpus == "1", name, int(worker))
    except ValueError as error:
        raise_if_from_script(error)
        return None


def pass_on() -> None:
    """Write the GPUs of the task that is about to run into the environment, for the programs that it will start."""
    task = _ask_ray()
    if task is None:
        os.environ.pop(RAY_TASK, None)
        return
    daemon = os.environ.get(RAY_WORKER, "")
    facts = (daemon, task.worker, task.gpus, int(task.manages_gpus), ",".join(task.ids), task.name)
    os.environ[RAY_TASK] = " ".join(map(str, facts))


def before_each_task(call: Callable[[], None]) -> None:
    """Let Ray call ``call`` before each later task that it runs in this process, after it has assigned the task's GPUs.

    Args:
        call: Must not raise, because an exception would end the task.
    """
    utils: Any = sys.modules.get(_UTILS)
    assign = getattr(utils, _BEFORE_TASK, None)
    if not callable(assign):
        return
    if call not in _watchers:
        _watchers.append(call)
    if hasattr(assign, _WATCHES):
        return

    def assign_and_call(*arguments: Any, **options: Any) -> Any:
        assigned = assign(*arguments, **options)
        for watcher in _watchers:
            watcher()
        return assigned

    setattr(assign_and_call, _WATCHES, True)
    setattr(utils, _BEFORE_TASK, assign_and_call)
