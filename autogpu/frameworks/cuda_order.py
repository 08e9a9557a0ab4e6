"""The base class of a framework that always uses the GPUs that CUDA counts first."""

from __future__ import annotations

import os
from typing import Sequence

from autogpu.frameworks.base import HookedFramework
from autogpu.frozen import replace
from autogpu.selection.decision import Decision, Reason, Verdict, left_alone
from autogpu.selection.model import ONE_GPU, SelectionRequest
from autogpu.selection.visible_devices import Order


class CudaOrderFramework(HookedFramework):
    """A framework whose claim comes before CUDA's start, so that CUDA counts the claimed GPUs first."""

    WANTS_ORDER = True
    TAKES_FIRST_GPUS = True

    def decide(self, selection: SelectionRequest, places: Sequence[int]) -> Decision:
        """Choose GPUs and claim them. If CUDA has counted others first, claim the GPU that the script is about to use.

        Args:
            places: The script's GPU numbers.
        """
        if self._counts_claimed_first():
            return super().decide(selection, places)
        allocation = self.allocation
        if allocation.decision is not None:
            return allocation.decision
        uuids = selection.uuids or ()
        is_worker = allocation.visible.order is Order.WORKERS
        reason = Reason.WORKERS_NUMBER if is_worker else Reason.COUNTED_BEFORE
        if is_worker or not uuids:
            return left_alone(selection, reason)
        number = _number_of(selection, places)
        decision = allocation.claim(_request_for(selection, number if number < len(uuids) else 0))
        allocation.note_use(self.NAME)
        if decision.verdict is Verdict.TAKE:
            decision = replace(decision, reason=reason).counted_as(uuids)
        elif decision.verdict is not Verdict.CANNOT_CHOOSE:
            decision = left_alone(selection, reason)
        return allocation.set_decision(decision)

    def _counts_claimed_first(self) -> bool:
        """True if CUDA counts the claimed GPUs first, or still can, because it has not started or has only one GPU."""
        allocation = self.allocation
        holding = allocation.holding
        uuids = allocation.cuda.visible_uuids()
        if uuids is None or len(uuids) < 2 or (holding is not None and holding.is_listed):
            return allocation.visible.order is not Order.WORKERS
        ordinals = holding.decision.ordinals if holding else ()
        return bool(ordinals) and ordinals == tuple(range(len(ordinals)))

    def let_workers_choose(self, count: int) -> str:
        """Let ``count`` processes, which one call is about to start, choose a GPU each.

        Returns:
            The name of the job that these workers form, so that autogpu chooses their GPUs together; ``""`` if each
            worker is to choose alone.
        """
        allocation = self.allocation
        with allocation.lock:
            if not self._may_leave_choice_to(count):
                return ""
            if allocation.holding is None:
                self.forget_assignment()
        return f"workers.{os.getpid()}.{os.urandom(8).hex()}"

    def _may_leave_choice_to(self, count: int) -> bool:
        allocation = self.allocation
        holding = allocation.holding
        is_own_choice = allocation.visible.spec.is_scripts or (allocation.gpu_list.hides_others and holding is not None)
        if allocation.grant.rank is not None or is_own_choice or allocation.cuda.ordinals_in_use():
            return False
        if not 2 <= count <= len(allocation.uuids or ()):
            return False
        if holding is None or holding.lease is None:
            return True
        # Release a claim that this process does not use, so that the workers can use its GPUs.
        return not holding.is_parents and allocation.give_back(self)


def _number_of(selection: SelectionRequest, places: Sequence[int]) -> int:
    rank = selection.grant.rank
    if rank is not None:
        return rank.rank % len(selection.uuids or ())
    return next(iter(places), 0)


def _request_for(selection: SelectionRequest, number: int) -> SelectionRequest:
    """Return the request for one GPU.

    The framework will use this GPU even if it is busy, or if the user already holds as many GPUs as the cap allows.
    """
    return replace(
        selection,
        uuids=(selection.uuids or ())[number : number + 1],
        in_use=[0] if number in selection.in_use else [],
        gpu_count=1,
        wanted=ONE_GPU,
        busy="share",
        wait_s=0.0,
        per_user=0,
        grant=replace(selection.grant, rank=None),
    )
