"""``CUDA_VISIBLE_DEVICES`` of this process: what it was, what we wrote there, and what the script wrote since."""

from __future__ import annotations

import enum
import os
import sys
from typing import Dict, Mapping, MutableMapping, Optional, Sequence

from autogpu.devices.enumeration import cards, has_instances, hides_all, named_uuids, shows_several
from autogpu.devices.model import Device, Inventory, by_uuid
from autogpu.frozen import Value, replace
from autogpu.policy.model import Policy
from autogpu.process import copy_of
from autogpu.selection.grants import Grant, settled
from autogpu.selection.model import Cause, Decision, Ranking, VisibleSpec
from autogpu.selection.ranking import ranking_of
from autogpu.selection.ranks import LONE_RANK, WORKERS
from autogpu.selection.visible_devices import (
    best_kind_first,
    device_order,
    environment_for,
    initial_visibility,
    pool_in_order,
    restore,
    visible_spec,
)
from autogpu.variables import (
    CUDA_DEVICE_ORDER,
    CUDA_VISIBLE_DEVICES,
    ORIGINAL_VISIBLE_DEVICES,
    WRITTEN_VISIBLE_DEVICES,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from autogpu.devices.model import CudaDriver

# Unlike any value of CUDA_VISIBLE_DEVICES, which can't hold a NUL.
_NOT_YET = "\0"

_Variables = Dict[str, Optional[str]]


class Order(enum.Enum):
    """Whose order it is in which CUDA counts the GPUs."""

    OURS = "idlest first: a number that the script names is a place"
    PARENTS = "that of the process that started this one: a number is a place there"
    WORKERS = "one for the workers of a program, whose numbers are not known"
    GIVEN = "that of a list which autogpu did not write, CUDA's own, or one for all ranks of a job"


class Listed(Value):
    """The GPUs that ``CUDA_VISIBLE_DEVICES`` is to list.

    Attributes:
        pool: UUIDs of the process's GPUs in the order in which they are listed; empty where they are not known.
        order: Whose order that is.
        candidates: UUIDs of those among which it has to claim before CUDA starts, since CUDA does not show it all of
            them: MIG instances are among them. Empty where it does.
        hidden: UUIDs of the pool, where the policy allows none of its GPUs and all of them are hidden.
        may_have_gpus: False where the environment is known to hide all of them.
    """

    pool: tuple[str, ...] = ()
    order: Order = Order.GIVEN
    candidates: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()
    may_have_gpus: bool = True


class VisibleDevices:
    """The pool in the environment, idlest first, until CUDA has read it.

    Attributes:
        spec: Who says which GPUs may be used, by the last value that CUDA could read.
        listed: What was made of it.
        ignored_value: What the script wrote after CUDA had read the variable: without effect, as without us.
        grant: What an engine granted so far; Ray does it for each of its tasks.
        lists_chosen: The environment alone has to make the choice, so that only the idlest GPUs are listed.
        is_written: The list was made once.
        initial: The variable when the interpreter started.
    """

    def __init__(
        self,
        policy: Policy,
        environ: MutableMapping[str, str],
        started_with: str | None,
        cuda: CudaDriver,
        grant: Grant,
    ) -> None:
        self.grant = grant
        self.spec = VisibleSpec()
        self.listed = Listed()
        self.ignored_value: str | None = None
        self.lists_chosen = False
        self.is_written = False
        self._is_worker = False
        self._pid = os.getpid()
        self._policy = policy
        self._environ = environ
        self._cuda = cuda
        self.initial = initial_visibility(environ, started_with)
        # What we wrote, and what stood there before.
        self._written: str | None = _NOT_YET
        self._replaced: str | None = started_with
        self._seen: str | None = _NOT_YET

    @property
    def hides_others(self) -> bool:
        """GPUs that the process has not claimed are to be hidden from every library."""
        return self._policy.visible == "chosen" and not self.lists_chosen and self.grant.rank is None

    # What is written

    def write(self, inventory: Inventory | None) -> None:
        """List the pool, where there are readings and CUDA has not read the variable."""
        self.is_written = True
        environ = self.environ_without_ours()
        self.spec = visible_spec(environ, self.initial, self._policy.script, self.grant)
        self.grant = settled(self.grant, inventory)
        # A process that wants no GPU keeps them listed: a script that asserts there is one, or names it, still runs.
        if self._policy.count != 0 and inventory is not None and self._cuda.visible_uuids() is None:
            self._write(*self._pool(inventory, environ))
        else:
            before = environ.get(CUDA_VISIBLE_DEVICES)
            self._write(replace(self.listed, pool=(), order=Order.GIVEN, candidates=()), {CUDA_VISIBLE_DEVICES: before})
            self._written = _NOT_YET  # and nothing of that is ours

    def _write(self, listed: Listed, variables: _Variables) -> None:
        """The one place that writes the list: ``None`` for a variable that is not to be set."""
        environ = self._environ
        before = self._replaced if self._is_ours else environ.get(CUDA_VISIBLE_DEVICES)
        for name, value in variables.items():
            restore(environ, value, name)
        self.listed, self._seen = listed, environ.get(CUDA_VISIBLE_DEVICES)
        # What the script wrote and we left as it is stays the script's.
        if not self.spec.is_scripts or self._seen != before:
            self._written = self._seen
            self._replaced = before if self.spec.overridden is None else self.initial.value

    def refresh(self, inventory: Inventory | None, grant: Grant) -> bool:
        """Follow what the script or its engine, with its grant of now, has written; whether there is a new pool."""
        now = self._environ.get(CUDA_VISIBLE_DEVICES)
        grant = settled(grant, inventory)
        if self._is_ours and grant == self.grant:
            return False
        self.grant = grant
        if self._cuda.visible_uuids() is None:
            self.write(inventory)
            return True
        if now != self._seen:
            self.ignored_value = "" if now is None else now
        return False

    def keep_order(self, inventory: Inventory | None) -> None:
        """For one of several workers that use numbers which are not known: list the GPUs as the others do."""
        is_alone = self.grant.rank is None and self._policy.visible == "pool" and not self.lists_chosen
        if is_alone and not self._is_worker:
            self._is_worker, self.listed = True, replace(self.listed, order=Order.WORKERS)
            # A fork counts what its parent had listed.
            if self._pid == os.getpid():
                self.write(inventory)

    def show(
        self, inventory: Inventory, decision: Decision, named: Sequence[int], *, is_parents: bool
    ) -> tuple[int, ...]:
        """List what the process has claimed: alone, or before its other GPUs; or at these places, which are returned.

        Args:
            decision: To take these.
            named: The GPUs that the script is about to use, as it counts them; none where that is unknown.
            is_parents: They are of the process that started this one.
        """
        pool = self._shown_after_claim(inventory, decision)
        claimed = decision.of_ranks or tuple(device.uuid for device in decision.devices)
        first = [uuid for uuid in dict.fromkeys(claimed) if uuid in pool]
        at = self._places_of(first, named, pool)
        if at and is_parents:
            there = [pool[place] for place in at]
            first, at = (there, at) if set(there) == set(first) else (first, ())  # as the parent has put them
        others = self._as_they_rank(decision.ranking, [uuid for uuid in pool if uuid not in first])
        for place, uuid in sorted(zip(at or range(len(first)), first)):
            others.insert(place, uuid)
        self._list_in_order(inventory, tuple(others))
        return () if at == tuple(range(len(at))) else at

    def _places_of(self, first: Sequence[str], named: Sequence[int], pool: Sequence[str]) -> tuple[int, ...]:
        # A number that the script names is a position, and that of its siblings another one.
        is_place = self.grant.rank is None and 0 < len(first) <= len(named) and max(named) < len(pool)
        return tuple(named[: len(first)]) if is_place else ()

    def _as_they_rank(self, ranking: Ranking, uuids: list[str]) -> list[str]:
        """By now, best first; if autogpu did not write the list, its order stays."""
        if self.listed.order is not Order.OURS or self.spec.is_scripts:
            return uuids
        rank = {candidate.device.uuid: rank for rank, candidate in enumerate(ranking.candidates)}
        return sorted(uuids, key=lambda uuid: rank.get(uuid, len(rank)))

    def _shown_after_claim(self, inventory: Inventory, decision: Decision) -> tuple[str, ...]:
        """The pool; the claimed GPUs where others are hidden, and a MIG instance where CUDA shows none beside it."""
        candidates = self.listed.candidates
        if self.hides_others or (candidates and has_instances(decision.devices)):
            return tuple(device.uuid for device in decision.devices)
        known = by_uuid(inventory.devices)
        whole = cards(known[uuid] for uuid in candidates if uuid in known)
        return tuple(device.uuid for device in whole) if candidates else self.listed.pool

    def _list_in_order(self, inventory: Inventory, pool: tuple[str, ...]) -> None:
        before = self.listed.pool
        if pool == before:
            return
        if self.spec.is_scripts and set(pool) == set(before):
            # In the script's own words, which it may read again; what CUDA does not read of them stays where it is.
            entries = self._environ.get(CUDA_VISIBLE_DEVICES, "").split(",")
            in_order = [entries[before.index(uuid)] for uuid in pool]
            variables: _Variables = {CUDA_VISIBLE_DEVICES: ",".join(in_order + entries[len(pool) :])}
        else:
            known = by_uuid(inventory.devices)
            variables = self._variables([known[uuid] for uuid in pool], inventory)
        self._write(replace(self.listed, pool=pool), variables)

    def hide_all(self) -> None:
        """List no GPU, unless CUDA has counted them already."""
        if self._cuda.visible_uuids() is None:
            self._write(replace(self.listed, pool=(), hidden=self.listed.pool), self._variables(()))

    # What the pool is

    def _pool(self, inventory: Inventory, environ: Mapping[str, str]) -> tuple[Listed, _Variables]:
        """The pool as CUDA is to count it, and the variables that say so."""
        spec, order = self.spec, device_order(environ, self.spec, self.grant)
        pool = named_uuids(spec.value, inventory, order)
        rewritten: _Variables = {}
        if not pool:
            # CUDA may have GPUs that NVML can't read.
            listed = Listed(may_have_gpus=pool is None or bool(inventory.unreadable and not inventory.devices))
        elif self.grant.is_none and not spec.is_scripts:
            listed, rewritten = Listed(hidden=pool), self._variables(())
        else:
            # Processes that count the pool's GPUs among themselves have one order, which is that of their parent.
            parents = named_uuids(self.initial.value, inventory, order) or () if self.initial.is_written else ()
            listed, rewritten = self._idlest_first(pool, parents, inventory)
        value = environ.get(CUDA_VISIBLE_DEVICES) if spec.overridden is None else spec.value
        kept: _Variables = {CUDA_VISIBLE_DEVICES: value}
        if spec.value is not None:
            kept[CUDA_DEVICE_ORDER] = order
        return listed, {**kept, **rewritten}

    def _idlest_first(
        self, pool: tuple[str, ...], parents: tuple[str, ...], inventory: Inventory
    ) -> tuple[Listed, _Variables]:
        known = by_uuid(inventory.devices)
        ranking = ranking_of([known[uuid] for uuid in pool], self._policy, self.spec, os.getpid())
        devices, candidates = self._shown(self._in_order(pool, ranking, parents), inventory)
        if self.spec.is_scripts and len(devices) == len(pool):
            # Leave the script's own value, which it may read back: the framework is told the choice.
            return Listed(pool, candidates=candidates), {}
        uuids, hidden = tuple(device.uuid for device in devices), () if devices else pool
        listed = Listed(uuids, self._order_of(devices), candidates, hidden)
        is_to_say = devices or any(rejection.cause is Cause.EXCLUDED_BY_POLICY for rejection in ranking.rejected)
        return listed, self._variables(devices, inventory) if is_to_say else {}

    def _in_order(self, pool: tuple[str, ...], ranking: Ranking, parents: tuple[str, ...]) -> tuple[Device, ...]:
        rank = self.grant.rank
        if rank is None and not self._is_worker:
            is_all = has_instances(each.device for each in ranking.candidates)
            return pool_in_order(ranking, count=None if is_all else self._listed_count, kept_order=parents)
        # Those of one job count alike: as the parent does, which may have listed only what it claimed. If this process
        # is a rank among its own children, it counts as they do.
        before = self.listed.pool if rank is not None and rank.launcher in (LONE_RANK, WORKERS) else ()
        listed = pool_in_order(ranking, kept_order=parents or before or pool)
        return tuple(device for device in listed if device.uuid in parents) if parents else listed

    def _shown(self, devices: tuple[Device, ...], inventory: Inventory) -> tuple[tuple[Device, ...], tuple[str, ...]]:
        """Of these what CUDA shows a process, and the UUIDs of those among which it has to claim before."""
        devices = tuple(device for device in devices if not device.mig_enabled)
        if len(devices) < 2 or not has_instances(devices):
            return devices, ()
        if shows_several(inventory):
            return best_kind_first(devices), ()
        # Before R570 CUDA shows cards, or one instance.
        shown = cards(devices) if devices[0].parent is None else devices[:1]
        return shown[: self._listed_count], tuple(device.uuid for device in devices)

    @property
    def _listed_count(self) -> int | None:
        """How many GPUs are listed at most; ``None`` where that is all of the pool."""
        count = self._policy.count
        return None if not self.lists_chosen else sys.maxsize if count == "all" else count

    def _order_of(self, devices: Sequence[Device]) -> Order:
        if not devices or self.grant.rank is not None:
            return Order.GIVEN
        if self._is_worker:
            return Order.WORKERS
        return Order.PARENTS if self.initial.is_written else Order.OURS

    def _variables(self, devices: Sequence[Device], inventory: Inventory | None = None) -> _Variables:
        written = environment_for(devices, self.spec, inventory, self._policy.identifier)
        return {ORIGINAL_VISIBLE_DEVICES: None, **written}

    # What the variable says

    @property
    def _is_ours(self) -> bool:
        return self._environ.get(CUDA_VISIBLE_DEVICES) == self._written

    def environ_without_ours(self) -> dict[str, str]:
        """The environment without our own order of the GPUs.

        Whose process this is shows in what it was started with, and in what its engine or script has set since.
        """
        environ = copy_of(self._environ)
        if self._is_ours:
            restore(environ, self._replaced)
            if self._replaced == self.initial.value is not None and self.initial.is_written:
                # As the one that wrote it did.
                environ[WRITTEN_VISIBLE_DEVICES] = self.initial.value
                restore(environ, self.initial.inherited, ORIGINAL_VISIBLE_DEVICES)
        return environ

    def named(self, grant: Grant) -> str | None:
        """The value of the variable without what we wrote."""
        return visible_spec(self.environ_without_ours(), self.initial, self._policy.script, grant).value

    def counts_places(self, named: Sequence[int]) -> bool:
        """These numbers of a script are places in an order that is autogpu's.

        A rank's are places among the GPUs of its job, unless there is a list for all of them.
        """
        is_ranks = self.spec.value is None and bool(self.grant.dividing_job)
        return bool(named) and (self.listed.order in (Order.OURS, Order.PARENTS) or is_ranks)

    @property
    def names_none(self) -> bool:
        """The variable has a value that means to name GPUs, and names none of this machine."""
        return not self.listed.may_have_gpus and self.spec.value is not None and not hides_all(self.spec.value)
