"""The conductor: calls the rooms in order, from TensorFlow's import to the GPU that it gets."""

from __future__ import annotations

import os
import sys

from autogpu import claiming, decision, lease, ranks
from autogpu.arrangement import Arrangement
from autogpu.devices import driver, inside
from autogpu.frameworks import tensorflow
from autogpu.frameworks.model import Grant
from autogpu.stderr import say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, ContextManager, Iterable, Mapping, MutableMapping, Sequence

    from autogpu.devices.model import Inventory
    from autogpu.devices.probe import Probe
    from autogpu.frameworks.model import Usage
    from autogpu.lease import Lease
    from autogpu.policy import Resolved

# Counted from the probe's start. An import takes about as long, so nobody waits here for a driver that hangs.
IMPORT_DEADLINE_S = 5.0

# When the context is made a reading is worth waiting for: without persistence mode NVML's start takes seconds.
CONTEXT_DEADLINE_S = 10.0


class Conductor:
    """One process on its way from an import to a GPU: a :class:`autogpu.frameworks.model.Granter`."""

    def __init__(
        self,
        resolved: Resolved,
        environ: MutableMapping[str, str],
        started_with: str | None,
        reading: Probe,
        guard: Callable[[], ContextManager[None]],
    ) -> None:
        self.granted: Grant | None = None
        self.guard = guard
        self._resolved = resolved
        self._policy = resolved.policy
        self._environ = environ
        self._arrangement = Arrangement(resolved.policy, environ, started_with)
        self._rank = ranks.local_rank(environ)
        self._inventory: Inventory | None = None
        self._decision: decision.Decision | None = None
        self._lease: Lease | None = None
        self._is_reported = False
        self._set_aside: Mapping[int, int] = {}
        self._contexts: tuple[int, ...] = ()
        self._probe: Probe | None = reading

    def imported(self) -> None:
        """The framework's modules are there and CUDA is untouched: the last quiet moment."""
        seams = tensorflow.put_seams(self)
        if seams.obstacle:
            self.stood_aside(seams.obstacle)
            if self._probe:
                self._probe.close()
            return
        visible = self._policy.visible
        if not seams.essential:
            visible = "chosen"
            self._environ.update(tensorflow.fallback(self._environ, self._policy.growth))
        self._read(IMPORT_DEADLINE_S)
        self._arrangement.make(self._inventory, visible=visible, keeps_order=self._rank is not None)
        if seams.missing and self._arrangement.may_have_gpus and self._inventory and self._inventory.devices:
            from autogpu import report

            self._say(report.missing(seams, self._resolved))

    def prepare(self) -> None:
        """Hear the script's last word on ``CUDA_VISIBLE_DEVICES``, and begin to read the driver afresh."""
        if self.granted is not None:
            return
        is_fresh = self._probe is not None
        self._read(CONTEXT_DEADLINE_S)
        self._arrangement.hear(self._inventory, keeps_order=self._rank is not None)
        if self._arrangement.may_have_gpus and not is_fresh:
            self._probe = inside.again(self._environ, self._inventory)

    def grant(self, gpu_count: int, chosen: tuple[int, ...] | None) -> Grant:
        """Choose and claim among the GPUs that this process has, on fresh readings."""
        # A script that names GPUs after it was told to go without has the last word.
        if self.granted is None or (self.granted.ordinals == () and chosen):
            self._read(CONTEXT_DEADLINE_S)
            question = decision.Question(
                self._policy,
                self._arrangement.frame,
                self._inventory,
                driver.visible_uuids(),
                gpu_count,
                chosen,
                own_pid=os.getpid(),
                own_uid=os.getuid(),
                rank=self._rank,
                in_use=driver.ordinals_in_use(),
            )
            self._decision, self._lease = claiming.settle(
                question, self._arrangement.as_started(), claiming.script_name(sys.argv), self._read_afresh
            )
            if self._lease:
                self._environ[lease.MARKER] = self._lease.marker(self._environ)
            is_left = self._decision.verdict is decision.Verdict.LEAVE
            ordinals = (chosen or ()) if is_left else self._decision.ordinals
            self.granted = Grant(
                ordinals=None if is_left else ordinals,
                growth=True if self._policy.growth else None,
                caps=self._caps(ordinals),
                logical_gpus=self._policy.virtual_gpus,
            )
        return self.granted

    def _caps(self, ordinals: tuple[int, ...]) -> Mapping[int, int]:
        assert self._decision is not None
        caps = decision.limits(self._policy, self._decision)
        if self._policy.limit is None or self._policy.limit_includes != "process" or not ordinals:
            return caps
        from autogpu import overhead

        spent = overhead.measure(ordinals, driver.visible_uuids() or (), self._read_afresh)
        self._set_aside = {ordinal: decision.set_aside(spent.get(ordinal)) for ordinal in ordinals}
        return decision.within_process(self._policy, caps, self._set_aside)

    def took(self, usage: Usage) -> None:
        """Say which GPUs the framework takes, and why; the first time only. The lease names those."""
        if self._is_reported:
            return
        from autogpu import report

        self._is_reported = True
        self._read(CONTEXT_DEADLINE_S)
        if self._lease and not usage.ordinals:
            self._lease.release()
        self._say(report.outcome(self._decision, usage, self._resolved, self._inventory))
        if self._arrangement.unheard is not None and self._policy.level != "quiet":
            self._say(report.unheard(self._arrangement.unheard))

    def made_context(self) -> None:
        """Let the lease name the GPUs that the driver says the process has, with what a context really costs."""
        held, uuids, in_use = self._lease, driver.visible_uuids(), driver.ordinals_in_use()
        if not uuids or in_use == self._contexts:
            return
        is_first, self._contexts = not self._contexts, in_use
        if held is not None:
            claims = {uuids[ordinal]: held.claims.get(uuids[ordinal], 0) for ordinal in in_use}
            if set(claims) != set(held.claims):
                held.update(claims)
        if is_first:
            self._weigh_context(uuids)

    def _weigh_context(self, uuids: Sequence[str]) -> None:
        """Correct the claim by what the context takes, and say it where that was asked or breaks a promise.

        Now or never: once the script allocates, its own memory and the context's can't be told apart.
        """
        held = self._lease
        is_estimated = held is not None and decision.claimed_size(self._policy).context_bytes > 0
        is_asked = self._policy.level == "explain"
        if not (is_estimated or is_asked or self._set_aside) or not self._decision or not self.granted:
            return
        from autogpu import overhead, report

        spent = overhead.of_process(self._read_afresh(), uuids, os.getpid())
        if held is not None and is_estimated:
            # Never more than was claimed: that much was found free, and use beyond it shows in the readings.
            spared = {uuids[ordinal]: max(0, decision.CONTEXT_BYTES - size) for ordinal, size in spent.items()}
            if any(spared.values()):
                held.update({uuid: max(0, size - spared.get(uuid, 0)) for uuid, size in held.claims.items()})
        if is_asked or self._set_aside:
            self._say(report.contexts(self._decision, self.granted, spent, self._set_aside, is_asked))

    def replicated(self, strategy: str, replicas: int) -> None:
        """Say how to get more replicas, where the policy is why there are so few."""
        if self._decision and self._decision.verdict is decision.Verdict.TAKE and self._policy.level != "quiet":
            from autogpu import report

            self._say(report.few_replicas(strategy, replicas, self._decision))

    def stood_aside(self, why: str) -> None:
        """Say what is not in force, and why; the framework goes on as without us."""
        self._say([f"nothing of the policy is in force: {why}; TensorFlow goes on as without it"])

    def _say(self, lines: Iterable[str]) -> None:
        if self._rank is None or self._rank.rank == 0:
            for line in lines:
                say(line)

    def _read_afresh(self) -> Inventory | None:
        return inside.again(self._environ, self._inventory).result(CONTEXT_DEADLINE_S)

    def _read(self, deadline_s: float) -> None:
        if self._probe:
            inventory = self._probe.result(deadline_s)
            if inventory is not None:
                self._inventory, self._probe = inventory, None
