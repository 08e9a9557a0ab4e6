"""``CUDA_VISIBLE_DEVICES`` of this process: what it was, what we wrote there, and what the script has said since."""

from __future__ import annotations

import os

from autogpu import decision, pool, selection
from autogpu.devices import driver

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import MutableMapping

    from autogpu.devices.model import Inventory
    from autogpu.policy import Policy

# Unlike any value of CUDA_VISIBLE_DEVICES, which can't hold a NUL.
_NOT_YET = "\0"


class Arrangement:
    """The pool in the environment, idlest first, for as long as CUDA has not read it.

    Attributes:
        frame: Who says which GPUs may be used, by the last word that CUDA could hear.
        may_have_gpus: False once the environment is known to hide all of them.
        unheard: What the script wrote after CUDA had read the variable: without effect, as without us.
    """

    def __init__(self, policy: Policy, environ: MutableMapping[str, str], started_with: str | None) -> None:
        self.frame = pool.Frame(None, "nobody")
        self.may_have_gpus = True
        self.unheard: str | None = None
        self._policy = policy
        self._environ = environ
        self._start = pool.start(environ, started_with)
        self._written: str | None = _NOT_YET
        self._heard: str | None = _NOT_YET

    def make(self, inventory: Inventory | None, *, visible: str, keeps_order: bool) -> None:
        """Write the pool, where that still can be done.

        Args:
            inventory: ``None`` if there are no readings yet.
            visible: ``select.visible``: the whole ``"pool"`` or only the ``"chosen"``.
            keeps_order: For ranks, which count the pool's GPUs among themselves.
        """
        self.frame = pool.frame(self._environ, self._start, self._policy.script)
        # A process that wants no GPU keeps them listed: a script that asserts there is one, or names it, still runs.
        if self._policy.count != 0 and inventory is not None and driver.visible_uuids() is None:
            self._write(inventory, visible, keeps_order)
            self._written = self._environ.get(pool.VISIBLE)
        self._heard = self._environ.get(pool.VISIBLE)

    def hear(self, inventory: Inventory | None, *, keeps_order: bool) -> None:
        """Follow what the script has written since; see ``unheard``."""
        now = self._environ.get(pool.VISIBLE)
        if now == self._written:
            return
        if driver.visible_uuids() is None:
            self.make(inventory, visible=self._policy.visible, keeps_order=keeps_order)
        elif now != self._heard:
            self.unheard = "" if now is None else now

    def as_started(self) -> dict[str, str]:
        """The environment without our own order of the GPUs: whether this process belongs to its parent's job shows in
        what it was started with, and in what the script has set since.
        """
        environ = dict(self._environ)
        if environ.get(pool.VISIBLE) == self._written:
            pool.restore(environ, self._start.value)
        return environ

    def _write(self, inventory: Inventory, visible: str, keeps_order: bool) -> None:
        if self.frame.overridden is not None:
            pool.restore(self._environ, self.frame.value)
        members = pool.members(self.frame.value, inventory, self._environ.get(pool.ORDER))
        self.may_have_gpus = members != ()
        if not members or any(device.mig_enabled for device in inventory.devices):
            return
        known = selection.by_uuid(inventory.devices)
        rules = decision.rules(self._policy, self.frame, os.getpid())
        plan = pool.plan_environment(
            selection.rank([known[uuid] for uuid in members], rules),
            self.frame,
            count=len(members) if self._policy.count == "all" else self._policy.count,
            visible=visible,
            identifier=self._policy.identifier,
            index_is_certain=not inventory.unreadable,
            order=members if keeps_order else (),
        )
        self._environ.update(plan)
