"""Computes the two values of a process's ``CUDA_VISIBLE_DEVICES``: CUDA reads one, the script reads the other.

CUDA reads the C environment, and a script reads ``os.environ``. Until the process has its GPUs, the script finds the
value that it would find without autogpu. autogpu chooses only among the GPUs in this value. They are called the
*pool*. All functions are pure.
"""

from __future__ import annotations

import enum
from types import MappingProxyType
from typing import Mapping, MutableMapping, Optional, Sequence

from autogpu.devices.enumeration import cards, has_instances, hides_all, named_uuids, shows_several
from autogpu.devices.model import Device, Inventory, by_uuid
from autogpu.engines.model import LONE_RANK, NO_ENGINE, WORKERS, Grant
from autogpu.frozen import Value, replace
from autogpu.policy.model import Policy
from autogpu.selection.decision import Decision
from autogpu.selection.model import Cause, Ranking, VisibleSpec
from autogpu.selection.ranking import ranking_of
from autogpu.variables import (
    CUDA_DEVICE_ORDER,
    CUDA_VISIBLE_DEVICES,
    ORIGINAL_DEVICE_ORDER,
    ORIGINAL_PREFIX,
    ORIGINAL_VISIBLE_DEVICES,
    PCI_ORDER,
    SHOWN_VISIBLE_DEVICES,
    WRITTEN_VISIBLE_DEVICES,
)

Variables = Mapping[str, Optional[str]]

_NOTHING: Variables = MappingProxyType({})
_HIDES_ALL = "-1"


class InitialVisibility(Value):
    """``CUDA_VISIBLE_DEVICES`` when a process started.

    Attributes:
        value: ``CUDA_VISIBLE_DEVICES`` as it would be without autogpu; ``None`` if it would not be set.
        parents_list: The list that autogpu wrote for CUDA in the parent process; ``""`` if it wrote none there.
            ``None`` if the parent did not use autogpu, or if ``CUDA_VISIBLE_DEVICES`` was changed afterwards.
        order: ``CUDA_DEVICE_ORDER`` as it would be without autogpu.
        shown: ``CUDA_VISIBLE_DEVICES`` and ``CUDA_DEVICE_ORDER`` as the script finds them, keyed by name. It lacks a
            variable whose value would be the same without autogpu.
    """

    value: str | None
    parents_list: str | None = None
    order: str | None = None
    shown: Variables = _NOTHING


def initial_visibility(environ: Mapping[str, str], started_with: str | None) -> InitialVisibility:
    """Return the GPU variables as they would be without autogpu, and the list that autogpu wrote in an ancestor.

    Args:
        started_with: ``CUDA_VISIBLE_DEVICES`` when the process started.
    """
    written = environ.get(WRITTEN_VISIBLE_DEVICES)
    original = environ.get(ORIGINAL_VISIBLE_DEVICES)
    shown = environ.get(SHOWN_VISIBLE_DEVICES, original)
    order = environ.get(CUDA_DEVICE_ORDER)
    if written is None or started_with not in (written or shown, shown):
        return InitialVisibility(started_with, order=order)
    found_order = environ.get(ORIGINAL_DEVICE_ORDER, order or "") or None
    values = {CUDA_VISIBLE_DEVICES: (shown, original), CUDA_DEVICE_ORDER: (order, found_order)}
    shown_here = {name: now for name, (now, found) in values.items() if now != found}
    return InitialVisibility(original, written, found_order, shown_here)


def original_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """Return a copy of a new process's environment with ``CUDA_VISIBLE_DEVICES`` as it would be without autogpu."""
    plain = {name: value for name, value in environ.items() if not name.startswith(ORIGINAL_PREFIX)}
    initial = initial_visibility(environ, environ.get(CUDA_VISIBLE_DEVICES))
    restore(plain, initial.value)
    restore(plain, initial.order, CUDA_DEVICE_ORDER)
    return plain


def visible_spec(
    found: str | None,
    initial: InitialVisibility,
    script: str = "respect",
    grant: Grant = NO_ENGINE,
    *,
    is_engine_worker: bool = False,
) -> VisibleSpec:
    """Return the list of GPUs that limits autogpu's choice, and whether the script set that list or inherited it.

    Args:
        found: ``CUDA_VISIBLE_DEVICES`` as it would be now without autogpu.
        script: The policy's ``select.script``.
        is_engine_worker: True if the engine, not the script, may have set ``CUDA_VISIBLE_DEVICES`` after the start
            of the interpreter.
    """
    if is_engine_worker or found == initial.value:
        return VisibleSpec(grant.visible if found is None else found)
    # A script that hides every GPU wants none. So ``select.script`` does not override it.
    if script == "override" and not hides_all(found):
        return VisibleSpec(initial.value, overridden="(unset)" if found is None else found)
    return VisibleSpec(found, is_scripts=found is not None)


def device_order(found_order: str | None, spec: VisibleSpec, grant: Grant) -> str | None:
    return PCI_ORDER if grant.counts_by_bus and not spec.is_scripts else found_order


def restore(environ: MutableMapping[str, str], value: str | None, name: str = CUDA_VISIBLE_DEVICES) -> None:
    if value is None:
        environ.pop(name, None)
    else:
        environ[name] = value


def numbered_list(uuids: Sequence[str], inventory: Inventory, found_order: str | None = None) -> Mapping[str, str]:
    """Return variables that list the GPUs by ``nvidia-smi``'s indices; empty if CUDA could use other indices.

    With ``CUDA_DEVICE_ORDER=PCI_BUS_ID``, CUDA has the indices of NVML, unless a GPU is lost or a card is in MIG mode.
    If a user or a script has set another ``CUDA_DEVICE_ORDER``, autogpu keeps it.
    """
    known = by_uuid(inventory.devices)
    is_uncertain = inventory.unreadable or inventory.denied or any(device.mig_enabled for device in inventory.devices)
    if is_uncertain or not uuids or not known.keys() >= set(uuids) or found_order not in (None, PCI_ORDER):
        return {}
    return {CUDA_DEVICE_ORDER: PCI_ORDER, CUDA_VISIBLE_DEVICES: ",".join(str(known[uuid].index) for uuid in uuids)}


class Order(enum.Enum):
    """Who determined the order in which CUDA counts a process's GPUs."""

    OURS = enum.auto()  # idlest first
    PARENTS = enum.auto()  # the parent process's order: the script's number is an index in the parent's list
    WORKERS = enum.auto()  # one order for all workers of a program, because their GPU numbers are not known
    FOREIGN = enum.auto()  # CUDA's own order, or the order of a list that autogpu did not write for this process


class VisibleDevices(Value):
    """The GPUs of a process in CUDA's order, and the variables that define them.

    Attributes:
        found: ``CUDA_VISIBLE_DEVICES`` as it would be without autogpu.
        found_order: ``CUDA_DEVICE_ORDER`` as it would be without autogpu.
        spec: The list of GPUs that limits the pool, and whether the script set that list.
        pool: UUIDs of the process's GPUs in CUDA's order; empty if they are not known.
        order: Who determined the order of ``pool``.
        candidates: UUIDs of the GPUs among which the process must claim before CUDA starts. There are MIG instances
            among them, so CUDA shows only some of these GPUs. Empty if CUDA shows all.
        hidden: UUIDs of the pool, if the policy or the engine allows none of its GPUs; else empty.
        may_have_gpus: False if the environment is known to hide all GPUs.
        written: The list that autogpu wrote for CUDA; ``None`` if CUDA reads the same list as the script.
        shown: As ``shown`` of :class:`InitialVisibility`.
        is_listed: False if autogpu has not read the GPUs yet, and so has made no list.
        pid: Pid of the process for which autogpu made the list.
    """

    found: str | None = None
    found_order: str | None = None
    spec: VisibleSpec = VisibleSpec()
    pool: tuple[str, ...] = ()
    order: Order = Order.FOREIGN
    candidates: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()
    may_have_gpus: bool = True
    written: str | None = None
    shown: Variables = _NOTHING
    is_listed: bool = False
    pid: int = 0

    def found_now(self, environ: Mapping[str, str]) -> tuple[str | None, str | None]:
        """Return ``CUDA_VISIBLE_DEVICES`` and ``CUDA_DEVICE_ORDER`` as they would be now without autogpu.

        Args:
            environ: The process's current environment.
        """
        now = environ.get(CUDA_VISIBLE_DEVICES)
        order = environ.get(CUDA_DEVICE_ORDER)
        is_left = now == self.shown.get(CUDA_VISIBLE_DEVICES, self.found)
        # `os.reload_environ` copies the list that autogpu wrote for CUDA into the script's `os.environ`.
        is_left |= now is not None and now == self.written
        is_order_left = order == self.shown.get(CUDA_DEVICE_ORDER, self.found_order)
        return self.found if is_left else now, self.found_order if is_order_left else order

    @property
    def for_children(self) -> Variables:
        """The variables that tell autogpu in a child process that autogpu, not the user, wrote the inherited list."""
        is_told = self.written is not None or (self.pool and not self.spec.is_scripts)
        return {
            WRITTEN_VISIBLE_DEVICES: (self.written or "") if is_told else None,
            ORIGINAL_VISIBLE_DEVICES: self.spec.value if is_told else None,
            SHOWN_VISIBLE_DEVICES: self.shown.get(CUDA_VISIBLE_DEVICES) if is_told else None,
            ORIGINAL_DEVICE_ORDER: (self.found_order or "") if is_told and CUDA_DEVICE_ORDER in self.shown else None,
        }

    def counts_indices(self, numbers: Sequence[int], grant: Grant) -> bool:
        """True if autogpu chooses which GPUs a script's GPU ``numbers`` stand for.

        If ``CUDA_VISIBLE_DEVICES`` is not set, a rank's numbers are indices into the GPUs of its job.
        """
        is_alone = grant.rank is None and self.order is not Order.WORKERS
        is_ranks = self.spec.value is None and bool(grant.dividing_job)
        return bool(numbers) and (is_alone or is_ranks)


class NoGpu(enum.Enum):
    """Why a framework sees no GPU although autogpu hides none from it."""

    NO_DRIVER = enum.auto()
    NOT_WANTED = enum.auto()  # select.count is 0, or the list hides every GPU on any machine
    DRIVER_FAILURE = enum.auto()
    NAMES_NONE = enum.auto()  # the list names only GPUs that the machine does not have
    UNKNOWN = enum.auto()


def why_no_gpu(visible: VisibleDevices, inventory: Inventory | None, policy: Policy) -> NoGpu:
    """Return why a framework sees no GPU; ``inventory`` is ``None`` if the driver has not answered."""
    if inventory is not None and inventory.has_no_driver:
        return NoGpu.NO_DRIVER
    if policy.count == 0 or hides_all(visible.spec.value):
        return NoGpu.NOT_WANTED
    if inventory is None or inventory.failure:
        return NoGpu.DRIVER_FAILURE
    names_none = visible.spec.value is not None and not visible.may_have_gpus and bool(inventory.devices)
    return NoGpu.NAMES_NONE if names_none else NoGpu.UNKNOWN


def list_gpus(
    visible: VisibleDevices,
    inventory: Inventory,
    policy: Policy,
    grant: Grant,
    *,
    parents_list: str | None = None,
    before: Sequence[str] = (),
    count: int | None = None,
) -> VisibleDevices:
    """Return ``visible`` with the pool listed, idlest GPU first, or in the order on which several processes rely.

    Args:
        visible: The variables that the process finds, and their origin. Its order is ``Order.WORKERS`` if the process
            is one of several workers.
        before: The pool in the order of the present list.
        count: The largest number of GPUs to list; ``None`` to list all of the pool.
    """
    spec = visible.spec
    order = device_order(visible.found_order, visible.spec, grant)
    pool = named_uuids(spec.value, inventory, order)
    visible = replace(visible, shown=_shown_for_spec(visible, order))
    if not pool:
        return replace(visible, may_have_gpus=pool is None or _has_only_unreadable(inventory))
    if grant.is_none and not spec.is_scripts:
        return without_gpus(replace(visible, pool=pool))
    known = by_uuid(inventory.devices)
    ranking = ranking_of([known[uuid] for uuid in pool], policy, spec, visible.pid)
    # Processes that use indices into the same pool all keep the order of their parent's list.
    parents = _parents_pool(parents_list, inventory, order)
    if _chooses_alone(visible, grant):
        devices = _in_order_of_process(ranking, count, parents)
    else:
        devices = _in_order_of_job(ranking, grant, parents, before, pool)
    devices, candidates = _as_shown(devices, inventory, count)
    if spec.is_scripts and len(devices) == len(pool):
        # The script's code uses indices into its own list. So autogpu keeps that list, and tells the framework which
        # GPUs it chose.
        return replace(visible, pool=pool, candidates=candidates, order=Order.FOREIGN)
    if not devices:
        return _none_suitable(visible, pool, ranking)
    visible = replace(visible, candidates=candidates, order=_order_of(visible, grant, parents_list))
    return _with_pool(visible, tuple(device.uuid for device in devices), inventory)


def _has_only_unreadable(inventory: Inventory) -> bool:
    # CUDA may have GPUs that NVML can't read.
    return bool(inventory.unreadable) and not inventory.devices


def _parents_pool(parents_list: str | None, inventory: Inventory, order: str | None) -> tuple[str, ...]:
    return (named_uuids(parents_list, inventory, order) or ()) if parents_list else ()


def _chooses_alone(visible: VisibleDevices, grant: Grant) -> bool:
    return grant.rank is None and visible.order is not Order.WORKERS


def _in_order_of_process(ranking: Ranking, count: int | None, parents: Sequence[str]) -> tuple[Device, ...]:
    """Return at most ``count`` GPUs, the idlest first; if there are MIG instances among the GPUs, return them all."""
    has_any_instance = has_instances(each.device for each in ranking.candidates)
    return pool_in_order(ranking, count=None if has_any_instance else count, kept_order=parents)


def _shown_for_spec(visible: VisibleDevices, order: str | None) -> Variables:
    """Return the variables whose values autogpu changes for the script.

    They are ``CUDA_VISIBLE_DEVICES`` if the policy overrides the script's list, and ``CUDA_DEVICE_ORDER`` if the engine
    counts GPUs in another order.
    """
    shown = {} if visible.spec.overridden is None else {CUDA_VISIBLE_DEVICES: visible.spec.value}
    if visible.spec.value is not None and order != visible.found_order:
        shown[CUDA_DEVICE_ORDER] = order
    return shown


def _order_of(visible: VisibleDevices, grant: Grant, parents_list: str | None) -> Order:
    if grant.rank is not None:
        return Order.FOREIGN
    if visible.order is Order.WORKERS:
        return Order.WORKERS
    return Order.OURS if parents_list is None else Order.PARENTS


def _none_suitable(visible: VisibleDevices, pool: tuple[str, ...], ranking: Ranking) -> VisibleDevices:
    if any(rejection.cause is Cause.EXCLUDED_BY_POLICY for rejection in ranking.rejected):
        return without_gpus(replace(visible, pool=pool))
    return replace(visible, hidden=pool)


def _in_order_of_job(
    ranking: Ranking, grant: Grant, parents: Sequence[str], before: Sequence[str], pool: Sequence[str]
) -> tuple[Device, ...]:
    # If this process started the other ranks of its job, those ranks rely on the order of its list at that time.
    own = before if grant.rank is not None and grant.rank.launcher in (LONE_RANK, WORKERS) else ()
    devices = pool_in_order(ranking, kept_order=parents or own or pool)
    # If the parent listed only the GPUs that it claimed, list no others.
    return tuple(device for device in devices if not parents or device.uuid in parents)


def _with_pool(visible: VisibleDevices, pool: tuple[str, ...], inventory: Inventory) -> VisibleDevices:
    """Return ``visible`` with ``pool`` listed for CUDA; also for the script if it would otherwise see other GPUs."""
    order = visible.shown.get(CUDA_DEVICE_ORDER, visible.found_order)
    counted = named_uuids(visible.found, inventory, order)
    if counted == pool and len(pool) == 1:
        return replace(visible, pool=pool, written=None)
    written = ",".join(pool)
    shown = visible.shown
    if counted is None or not set(counted) <= set(pool):
        is_by_uuid = (visible.found or "")[:4].upper() in ("GPU-", "MIG-")
        numbers = {} if is_by_uuid else numbered_list(pool, inventory, order)
        shown = {**shown, **(numbers or {CUDA_VISIBLE_DEVICES: written})}
    return replace(visible, pool=pool, written=written, shown=shown)


def without_gpus(visible: VisibleDevices) -> VisibleDevices:
    shown = {CUDA_VISIBLE_DEVICES: _HIDES_ALL}
    visible = replace(visible, pool=(), hidden=visible.pool, candidates=(), order=Order.FOREIGN)
    return replace(visible, written=_HIDES_ALL, shown=shown)


def with_claim(visible: VisibleDevices, inventory: Inventory) -> VisibleDevices:
    """Return ``visible`` with CUDA's GPUs listed by number for the script, if the script found no list of its own."""
    if visible.written is None or visible.found is not None or not visible.pool:
        return visible
    numbers = numbered_list(visible.written.split(","), inventory, visible.found_order)
    return replace(visible, shown={**visible.shown, **numbers})


def pool_in_order(ranking: Ranking, *, count: int | None = None, kept_order: Sequence[str] = ()) -> tuple[Device, ...]:
    """Return the pool's GPUs that the policy does not exclude, in the order to list for CUDA: idlest first.

    Args:
        kept_order: UUIDs in the order to use instead, if several processes use indices into the pool.
    """
    devices = [candidate.device for candidate in ranking.candidates]
    if count is not None:
        return tuple(devices[:count])
    # Without autogpu the script would see GPUs that it can't take now. So keep them in the list.
    devices += [r.device for r in ranking.rejected if r.cause is not Cause.EXCLUDED_BY_POLICY]
    number = {uuid: number for number, uuid in enumerate(kept_order)}
    # Frameworks skip the GPUs that are too small. They number the others as CUDA does only if no small GPU precedes
    # them. So list the small GPUs last.
    small = [r.device for r in ranking.rejected if r.cause is Cause.TOO_SMALL]
    return tuple(sorted(devices, key=lambda device: (device in small, number.get(device.uuid, len(number)))))


def _as_shown(
    devices: tuple[Device, ...], inventory: Inventory, count: int | None
) -> tuple[tuple[Device, ...], tuple[str, ...]]:
    """Return the GPUs that CUDA shows; if it does not show all, also the UUIDs to claim from before CUDA starts."""
    devices = tuple(device for device in devices if not device.mig_enabled)
    if len(devices) < 2 or not has_instances(devices):
        return devices, ()
    if shows_several(inventory):
        return best_kind_first(devices), ()
    # Before driver R570, CUDA shows either cards or one instance.
    shown = cards(devices) if devices[0].parent is None else devices[:1]
    return shown[:count], tuple(device.uuid for device in devices)


def best_kind_first(devices: Sequence[Device]) -> tuple[Device, ...]:
    """Return the GPUs, with those of the first GPU's kind (card or MIG instance) before the others.

    CUDA reads only the GPUs of that kind.
    """
    return tuple(sorted(devices, key=lambda device: (device.parent is None) != (devices[0].parent is None)))


def list_claimed(
    visible: VisibleDevices,
    inventory: Inventory,
    decision: Decision,
    indices: Sequence[int],
    *,
    hides_others: bool,
    is_rank: bool,
    is_parents: bool,
) -> tuple[VisibleDevices, tuple[int, ...]]:
    """Put the claimed GPUs at the front of the list, or at the script's ``indices``.

    Return the new list, and the indices of the claimed GPUs; ``()`` if they are at the front.

    Args:
        indices: The GPU numbers that the script is about to use; empty if they are unknown.
        hides_others: True if the list is to contain only the claimed GPUs.
        is_parents: True if the process uses its parent's claim.
    """
    # A script that uses number 2 needs a list of three GPUs.
    hides_others = hides_others and max(indices, default=0) < len(decision.devices)
    pool = _pool_after_claim(visible, inventory, decision, hides_others=hides_others)
    first = _claimed_in(pool, decision)
    at: tuple[int, ...] = ()
    if not is_rank:
        first, at = _at_indices(pool, first, indices, is_parents=is_parents)
    listed = _others_in_order(visible, decision.ranking, [uuid for uuid in pool if uuid not in first])
    for index, uuid in sorted(zip(at or range(len(first)), first)):
        listed.insert(index, uuid)
    if tuple(listed) != visible.pool:
        visible = _with_pool(visible, tuple(listed), inventory)
    return visible, () if at == tuple(range(len(at))) else at


def _claimed_in(pool: Sequence[str], decision: Decision) -> list[str]:
    claimed = decision.of_ranks or [device.uuid for device in decision.devices]
    return [uuid for uuid in dict.fromkeys(claimed) if uuid in pool]


def _at_indices(
    pool: Sequence[str], first: list[str], indices: Sequence[int], *, is_parents: bool
) -> tuple[list[str], tuple[int, ...]]:
    """Return the claimed GPUs ``first`` in the order to list them, and the script's index for each of them.

    Return no indices if the script uses fewer indices than it has claimed GPUs, or an index beyond the list; and for a
    parent's claim, if other GPUs are at these indices.
    """
    if not 0 < len(first) <= len(indices) or max(indices) >= len(pool):
        return first, ()
    at = tuple(indices[: len(first)])
    if not is_parents:
        return first, at
    there = [pool[index] for index in at]
    return (there, at) if set(there) == set(first) else (first, ())


def _others_in_order(visible: VisibleDevices, ranking: Ranking, uuids: list[str]) -> list[str]:
    """Return the unclaimed GPUs, idlest first; in their present order if that order is not autogpu's."""
    if visible.order is not Order.OURS or visible.spec.is_scripts:
        return uuids
    rank = {candidate.device.uuid: rank for rank, candidate in enumerate(ranking.candidates)}
    return sorted(uuids, key=lambda uuid: rank.get(uuid, len(rank)))


def _pool_after_claim(
    visible: VisibleDevices, inventory: Inventory, decision: Decision, *, hides_others: bool
) -> tuple[str, ...]:
    """Return the GPUs to list after a claim: only the claimed ones if the list must hide others.

    Also return only the claimed GPUs if CUDA shows only the claimed MIG instance. Otherwise return the cards among the
    candidates; without candidates, return the pool.
    """
    if hides_others or (visible.candidates and has_instances(decision.devices)):
        return tuple(device.uuid for device in decision.devices)
    known = by_uuid(inventory.devices)
    whole = cards(known[uuid] for uuid in visible.candidates if uuid in known)
    return tuple(device.uuid for device in whole) if visible.candidates else visible.pool
