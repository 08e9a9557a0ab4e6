"""What ``pick`` and ``run --hold`` share: the policy's keys as flags, and a question for the decision."""

from __future__ import annotations

import os

import click

from autogpu import pool, ranks
from autogpu.decision import Question
from autogpu.devices import probe
from autogpu.devices.model import Inventory
from autogpu.errors import AutoGpuError
from autogpu.policy import KEYS
from autogpu.policy.model import COMMAND_LINE
from autogpu.stderr import say, shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Mapping, Sequence

    from autogpu.policy import Resolved

# sysexits.h: nothing is wrong, only not now.
EXIT_LATER = 75


def policy_flags(*sections: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a command an option for each key of ``sections``; they come as one mapping, ``flags``."""
    keys = [key for key in KEYS if key.section in sections and not key.system_only]

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        def command(*arguments: Any, **options: Any) -> Any:
            given = {key.name: options.pop(f"policy_{key.name}") for key in keys}
            flags = {name: text for name, text in given.items() if text is not None}
            return function(*arguments, flags=flags, **options)

        command.__name__, command.__doc__ = function.__name__, function.__doc__
        command.__click_params__ = getattr(function, "__click_params__", [])  # type: ignore[attr-defined]
        for key in reversed(keys):
            about = f"{key.dotted}: {' '.join(key.about.split())}"
            words = getattr(key.kind, "words", ())
            command = click.option(
                key.flag, f"policy_{key.name}", metavar="VALUE", help=about, shell_complete=_completed(words)
            )(command)
        return command

    return add


def _completed(words: Sequence[str]) -> Callable[..., list[str]]:
    # Not click.Choice: what is wrong in a policy is said in one way, wherever it stands.
    return lambda ctx, param, incomplete: [word for word in words if word.startswith(incomplete)]


def check(resolved: Resolved) -> None:
    """Say what is wrong in the policy; a flag that can't be followed is an error of usage.

    Raises:
        UsageError: A flag is wrong.
    """
    for problem in resolved.problems:
        if problem.origin.layer == COMMAND_LINE:
            raise click.UsageError(problem.what, click.get_current_context())
        say(str(problem))


def read() -> Inventory:
    """The GPUs.

    Raises:
        AutoGpuError: There are none, or the driver does not tell.
    """
    inventory = probe.finish(probe.start(os.environ))
    if inventory.is_driverless:
        raise AutoGpuError("no NVIDIA driver on this machine", remedy="start the program without autogpu")
    if inventory.failure:
        raise AutoGpuError(shown(inventory.failure), remedy="see what `nvidia-smi` says")
    return inventory


def question(resolved: Resolved, inventory: Inventory, environ: Mapping[str, str], own_pid: int | None) -> Question:
    """What a process would ask that could see all GPUs of the pool, in the pool's order.

    Raises:
        AutoGpuError: The pool is empty, or only the CUDA driver can tell what is in it.
    """
    frame = pool.frame(environ, pool.start(environ, environ.get(pool.VISIBLE)), resolved.policy.script)
    uuids = pool.members(frame.value, inventory, environ.get(pool.ORDER))
    value = shown(str(frame.value))
    if uuids is None:
        what = f"which GPUs CUDA_VISIBLE_DEVICES={value} means only the CUDA driver can tell"
        raise AutoGpuError(what, remedy="name them by UUID, or set CUDA_DEVICE_ORDER=PCI_BUS_ID")
    if not uuids:
        raise AutoGpuError(f"CUDA_VISIBLE_DEVICES={value} hides every GPU", remedy="unset it")
    rank = ranks.local_rank(environ)
    return Question(resolved.policy, frame, inventory, uuids, len(uuids), None, own_pid, os.getuid(), rank)
