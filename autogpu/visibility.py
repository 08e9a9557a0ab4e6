"""The list of a process's GPUs in its environment. Only this module writes ``CUDA_VISIBLE_DEVICES``."""

from __future__ import annotations

import os
import sys
from typing import Callable, MutableMapping, Sequence

from autogpu.devices.model import Inventory
from autogpu.engines.model import Grant, is_engine_worker, settled
from autogpu.frozen import replace
from autogpu.policy.model import Policy
from autogpu.process import copy_of
from autogpu.selection.decision import Decision
from autogpu.selection.model import VisibleSpec
from autogpu.selection.visible_devices import (
    InitialVisibility,
    Order,
    VisibleDevices,
    list_claimed,
    list_gpus,
    restore,
    visible_spec,
    with_claim,
    without_gpus,
)
from autogpu.variables import CUDA_DEVICE_ORDER, CUDA_VISIBLE_DEVICES, ORIGINAL_HOST

TYPE_CHECKING = False
if TYPE_CHECKING:
    from autogpu.devices.model import CudaDriver


def write_for_cuda(value: str | None) -> None:
    """Set ``CUDA_VISIBLE_DEVICES`` in the environment of C, which CUDA reads and child processes inherit."""
    if value is None:
        os.unsetenv(CUDA_VISIBLE_DEVICES)
    else:
        os.putenv(CUDA_VISIBLE_DEVICES, value)


class GpuList:
    """The list of this process's GPUs in its environment. It can change until CUDA has read it.

    Attributes:
        visible: The list that was written last.
        grant: The latest grant of an engine; Ray makes a grant for each of its tasks.
        lists_chosen: True if the list alone makes the choice, so that it has only the idlest GPUs.
        initial: ``CUDA_VISIBLE_DEVICES`` when the process started.
    """

    def __init__(
        self,
        policy: Policy,
        environ: MutableMapping[str, str],
        initial: InitialVisibility,
        cuda: CudaDriver,
        grant: Grant,
        write_for_cuda: Callable[[str | None], None] = write_for_cuda,
    ) -> None:
        self.grant = grant
        self.initial = initial
        self.lists_chosen = False
        self._policy = policy
        self._environ = environ
        self._cuda = cuda
        self._write_for_cuda = write_for_cuda
        self.visible = VisibleDevices(
            found=initial.value,
            found_order=initial.order,
            written=initial.parents_list or None,
            shown=initial.shown,
        )

    @property
    def hides_others(self) -> bool:
        """True if every library must see only the GPUs that the process has claimed."""
        return self._policy.visible == "chosen" and not self.lists_chosen and self.grant.rank is None

    def list_gpus(self, inventory: Inventory | None, *, is_choice: bool = False) -> None:
        """List the pool, if there is a reading and CUDA has not read the variable.

        Args:
            is_choice: True to set :attr:`lists_chosen`, for this list and all later ones.
        """
        self.lists_chosen |= is_choice
        self.grant = settled(self.grant, inventory)
        self._list(inventory, is_worker=self.visible.order is Order.WORKERS)

    def _list(self, inventory: Inventory | None, *, is_worker: bool) -> None:
        found, order = self.visible.found_now(self._environ)
        visible = VisibleDevices(
            found=found,
            found_order=order,
            spec=self.spec_with(self.grant),
            order=Order.WORKERS if is_worker else Order.FOREIGN,
            is_listed=True,
            pid=os.getpid(),
        )
        # With a count of 0 the GPUs stay listed: a script that asserts that a GPU exists, or names one, still runs.
        if self._policy.count == 0 or inventory is None or self._cuda.visible_uuids() is not None:
            # Without a reading, ``is_listed`` stays False, so that a later call tries again.
            has_driver = inventory is None or not inventory.has_no_driver
            visible = replace(visible, is_listed=inventory is not None, may_have_gpus=has_driver)
            if found == self.initial.value:
                visible = replace(visible, written=self.initial.parents_list or None, shown=self.initial.shown)
            self._write(visible)
            return
        count = sys.maxsize if self._policy.count == "all" else self._policy.count
        visible = list_gpus(
            visible,
            inventory,
            self._policy,
            self.grant,
            parents_list=self.initial.parents_list,
            before=self.visible.pool,
            count=count if self.lists_chosen else None,
        )
        self._write(visible)

    def _write(self, visible: VisibleDevices) -> None:
        before = self.visible
        environ = self._environ
        # Write CUDA_DEVICE_ORDER first, because the meaning of the numbers depends on it.
        for name, found in ((CUDA_DEVICE_ORDER, before.found_order), (CUDA_VISIBLE_DEVICES, before.found)):
            if name in visible.shown:
                restore(environ, visible.shown[name], name)
            elif name in before.shown and environ.get(name) == before.shown[name]:
                restore(environ, found, name)
        for name, value in visible.for_children.items():
            restore(environ, value, name)
        # Record the host: a child may run on another one, as with `sbatch`, for which the list is meaningless.
        restore(environ, None if visible.written is None else os.uname().nodename, ORIGINAL_HOST)
        self._write_for_cuda(environ.get(CUDA_VISIBLE_DEVICES) if visible.written is None else visible.written)
        self.visible = visible

    def follow(self, inventory: Inventory | None, grant: Grant) -> bool:
        """List the GPUs again, and return True, if the script or engine has changed the variables or the grant."""
        grant = settled(grant, inventory)
        is_new = self._is_changed or grant != self.grant or not self.visible.is_listed
        self.grant = grant
        if self._cuda.visible_uuids() is not None:
            return False
        if is_new:
            self.list_gpus(inventory)
        elif self.visible.written is not None:
            # Write for CUDA again: the script may have changed the variable and restored it.
            self._write_for_cuda(self.visible.written)
        return is_new

    @property
    def has_changed(self) -> bool:
        """True if the script or its engine has changed the variable since the list was written."""
        return self.visible.found_now(self._environ)[0] != self.visible.found

    @property
    def _is_changed(self) -> bool:
        """True if somebody has changed one of the two variables since the list was written."""
        return self.visible.found_now(self._environ) != (self.visible.found, self.visible.found_order)

    def keep_order(self, inventory: Inventory | None) -> None:
        """List the GPUs in an order that all workers of a program share, because their GPU numbers are not known."""
        visible = self.visible
        is_alone = self.grant.rank is None and self._policy.visible == "pool" and not self.lists_chosen
        if not is_alone or visible.order is Order.WORKERS:
            return
        # A forked child keeps the list of its parent.
        if visible.pid == os.getpid():
            self._list(inventory, is_worker=True)
        else:
            self.visible = replace(visible, order=Order.WORKERS)

    def list_claimed(
        self, inventory: Inventory, decision: Decision, indices: Sequence[int], *, is_parents: bool
    ) -> tuple[int, ...]:
        """List the claimed GPUs first, or at ``indices``. Return these indices; ``()`` if the GPUs are first.

        For the rules see :func:`autogpu.selection.visible_devices.list_claimed`.
        """
        # Ray sets one list for all workers of a trainer, and passes to each worker indices in this list.
        if self.grant.engine == "Ray" and self.grant.dividing_rank is not None and not self.visible.candidates:
            return ()
        visible, at = list_claimed(
            self.visible,
            inventory,
            decision,
            indices,
            hides_others=self.hides_others,
            is_rank=self.grant.rank is not None,
            is_parents=is_parents,
        )
        self._write(visible)
        return at

    def show_claimed(self, inventory: Inventory | None) -> None:
        """Show the script the list that CUDA reads, as GPU numbers, unless the variable was set without autogpu."""
        if inventory is not None and not self._is_changed:
            self._write(with_claim(self.visible, inventory))

    def list_for_children(self, uuids: Sequence[str]) -> None:
        """List the same GPUs in the order of ``uuids``, for processes that start from now on."""
        visible = self.visible
        is_ours = visible.order in (Order.OURS, Order.PARENTS) and visible.written is not None
        if is_ours and set(uuids) == set(visible.pool) and not self._is_changed:
            self._write(replace(visible, written=",".join(uuids)))

    def hide_all(self) -> None:
        if self._cuda.visible_uuids() is None:
            self._write(without_gpus(self.visible))

    def environ_without_autogpu(self) -> dict[str, str]:
        """Return the environment as it would be without autogpu.

        Ranks and engines are detected from it, also by variables that an engine or the script has set later.
        """
        environ = copy_of(self._environ)
        found, order = self.visible.found_now(self._environ)
        restore(environ, found)
        restore(environ, order, CUDA_DEVICE_ORDER)
        return environ

    def environ_of_cuda(self) -> dict[str, str]:
        environ = copy_of(self._environ)
        if self.visible.written is not None:
            environ[CUDA_VISIBLE_DEVICES] = self.visible.written
        return environ

    def spec_with(self, grant: Grant) -> VisibleSpec:
        found = self.visible.found_now(self._environ)[0]
        is_engines = is_engine_worker(self._environ)
        return visible_spec(found, self.initial, self._policy.script, grant, is_engine_worker=is_engines)
