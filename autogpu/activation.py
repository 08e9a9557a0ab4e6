"""The conductor: calls the rooms in order, at the three moments of a process that imports TensorFlow.

``before_import`` and ``after_import`` are called by the start-up hook around TensorFlow's body; ``prepare``,
``grant`` and ``took`` by the framework when it makes its context. This is the only place that decides to go on or to
give up, and the only one that speaks.
"""

from __future__ import annotations

import os
import sys
import traceback
from contextlib import contextmanager
from pathlib import Path

from autogpu import decision, pool, report, selection
from autogpu import policy as policies
from autogpu.devices import driver, probe
from autogpu.devices.model import Inventory
from autogpu.frameworks import tensorflow
from autogpu.frameworks.model import Grant, Usage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Iterator, MutableMapping

    from autogpu.devices.probe import Probe

# Counted from the probe's start. An import takes about as long, so nobody waits here for a driver that hangs.
IMPORT_DEADLINE_S = 5.0

# When the context is made a reading is worth waiting for: without persistence mode NVML's start takes seconds.
CONTEXT_DEADLINE_S = 10.0

# Unlike any value of CUDA_VISIBLE_DEVICES, which can't hold a NUL.
_NOT_YET = "\0"

_activation: Activation | None = None


def before_import(framework: str, started_with: str | None) -> None:
    """Read the policy and start the probe, which reads the driver while the framework is imported.

    Args:
        framework: The top-level package that is about to run.
        started_with: ``CUDA_VISIBLE_DEVICES`` when the interpreter started, ``None`` if it was not set.
    """
    global _activation
    if not sys.platform.startswith("linux"):
        return  # no TensorFlow has CUDA there, WSL2 counts as Linux
    with _guard():
        resolved = policies.resolve(os.environ, script=_script(), working_directory=Path.cwd())
        for problem in resolved.problems:
            report.say(str(problem))
        if resolved.policy.enabled:
            _activation = Activation(resolved, os.environ, started_with)


def after_import(framework: str, module: ModuleType) -> None:
    """Order the visible GPUs, idlest first, and put the seams into the framework. Nothing is claimed."""
    with _guard():
        if _activation:
            _activation.imported()


class Activation:
    """One process on its way from an import to a GPU: a :class:`autogpu.frameworks.model.Granter`."""

    def __init__(
        self, resolved: policies.Resolved, environ: MutableMapping[str, str], started_with: str | None
    ) -> None:
        self.granted: Grant | None = None
        self._resolved = resolved
        self._policy = resolved.policy
        self._environ = environ
        self._start = pool.start(environ, started_with)
        self._frame = pool.Frame(None, "nobody")
        self._arranged_for: str | None = _NOT_YET
        self._may_have_gpus = True
        self._inventory: Inventory | None = None
        self._decision: decision.Decision | None = None
        self._is_reported = False
        self._probe: Probe | None = probe.start(environ)

    def imported(self) -> None:
        """The framework's modules are there and CUDA is untouched: the last quiet moment."""
        if tensorflow.put_seams(self):
            visible = self._policy.visible
        else:
            visible = "chosen"
            self._environ.update(tensorflow.fallback(self._environ, self._policy.growth))
        self._read(IMPORT_DEADLINE_S)
        self._arrange(visible)

    def prepare(self) -> None:
        """Hear the script's last word on ``CUDA_VISIBLE_DEVICES``, and begin to read the driver afresh."""
        if self.granted is not None:
            return
        is_fresh = self._probe is not None
        self._read(CONTEXT_DEADLINE_S)
        if self._environ.get(pool.VISIBLE) != self._arranged_for:
            self._arrange(self._policy.visible)
        if self._may_have_gpus and not is_fresh:
            self._probe = probe.start(self._environ)

    def grant(self, gpu_count: int, chosen: tuple[int, ...] | None) -> Grant:
        """Choose among the GPUs that this process has, on fresh readings."""
        if self.granted is None:
            self._read(CONTEXT_DEADLINE_S)
            self._decision = decision.decide(
                self._policy,
                self._frame,
                self._inventory,
                driver.visible_uuids(),
                gpu_count,
                chosen,
                os.getpid(),
            )
            self.granted = Grant(self._decision.ordinals, growth=True if self._policy.growth else None)
        return self.granted

    def took(self, usage: Usage) -> None:
        """Say which GPUs the framework takes, and why; the first time only."""
        if self._is_reported:
            return
        self._is_reported = True
        self._read(CONTEXT_DEADLINE_S)
        for line in report.outcome(self._decision, usage, self._resolved, self._inventory):
            report.say(line)

    @contextmanager
    def guard(self) -> Iterator[None]:
        """Around every step that a framework calls."""
        with _guard():
            yield

    def _read(self, deadline_s: float) -> None:
        if self._probe:
            inventory = self._probe.result(deadline_s)
            if inventory is not None:
                self._inventory, self._probe = inventory, None

    def _arrange(self, visible: str) -> None:
        """Write the pool into the environment, idlest first, while CUDA has not read it yet."""
        self._frame = pool.frame(self._environ, self._start, self._policy.script)
        inventory = self._inventory
        if inventory is None or driver.visible_uuids() is not None:
            return
        if self._frame.overridden is not None:
            pool.restore(self._environ, self._frame.value)
        members = pool.members(self._frame.value, inventory, self._environ.get(pool.ORDER))
        self._may_have_gpus = members != ()
        if members and not any(device.mig_enabled for device in inventory.devices):
            known = selection.by_uuid(inventory.devices)
            rules = decision.rules(self._policy, self._frame, os.getpid())
            plan = pool.plan_environment(
                selection.rank([known[uuid] for uuid in members], rules),
                self._frame,
                count=len(members) if self._policy.count == "all" else self._policy.count,
                visible=visible,
                identifier=self._policy.identifier,
                index_is_certain=not inventory.unreadable,
            )
            self._environ.update(plan)
        self._arranged_for = self._environ.get(pool.VISIBLE)


@contextmanager
def _guard() -> Iterator[None]:
    """Let TensorFlow go on whatever becomes of us: its import and its context are worth more than our choice."""
    try:
        yield
    except Exception as error:  # the one place: anything may break in a process that is not ours
        frame = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(frame.filename).name}:{frame.lineno}"
        report.say(
            f"a fault of its own ({type(error).__name__} at {where}: {report.shown(str(error))}); "
            "TensorFlow goes on as without autogpu; AUTOGPU=0 turns autogpu off"
        )


def _script() -> Path | None:
    """The file of the running script; ``None`` in a REPL, with ``-c`` and where there is no such file."""
    name = sys.argv[0] if sys.argv else ""
    return Path(name).resolve() if name and Path(name).is_file() else None
