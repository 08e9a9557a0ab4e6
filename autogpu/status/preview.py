"""Preview for a process that would be started now: its request, and the decision given the present jobs and queue."""

from __future__ import annotations

from typing import Mapping

from autogpu.devices.enumeration import hides_all, named_uuids
from autogpu.devices.model import Inventory
from autogpu.engines.model import Grant, settled
from autogpu.lease import LeaseSnapshot, Processes
from autogpu.policy.model import Resolved
from autogpu.selection.decide import why_none
from autogpu.selection.decision import Decision, Reason, Verdict
from autogpu.selection.members import Family, decide_as_member, decide_beside
from autogpu.selection.model import SelectionRequest, VisibleSpec, wanted_gpus
from autogpu.selection.visible_devices import device_order
from autogpu.variables import CUDA_DEVICE_ORDER, CUDA_VISIBLE_DEVICES


def request_for_new_process(
    resolved: Resolved,
    environ: Mapping[str, str],
    inventory: Inventory,
    grant: Grant,
    *,
    own_uid: int,
    own_pid: int | None = None,
) -> SelectionRequest:
    """Return the request of a process that is started with ``environ``.

    The process sees the GPUs of ``CUDA_VISIBLE_DEVICES`` in the order of that variable.

    Args:
        environ: The environment as it would be without autogpu.
    """
    policy = resolved.policy
    grant = settled(grant, inventory)
    spec = VisibleSpec(environ.get(CUDA_VISIBLE_DEVICES, grant.visible))
    uuids = named_uuids(spec.value, inventory, device_order(environ.get(CUDA_DEVICE_ORDER), spec, grant))
    return SelectionRequest(
        policy=policy,
        visible_spec=spec,
        inventory=inventory,
        uuids=uuids,
        gpu_count=len(uuids or ()),
        own_uid=own_uid,
        own_pid=own_pid,
        wanted=wanted_gpus(policy.count, is_set=resolved.settings["select.count"].is_set),
        busy=policy.busy,
        wait_s=policy.wait_s,
        per_user=policy.per_user,
        grant=grant,
    )


def preview(
    request: SelectionRequest, leases: LeaseSnapshot, processes: Processes, now_s: float, family: Family | None = None
) -> Decision:
    """Return the decision on ``request``, given the present jobs and queue.

    Args:
        family: The job that would start the process; ``None`` if no job would.
    """
    given = _decision_without_choice(request)
    if given:
        return given
    as_member = decide_as_member(request, family, processes) if family else None
    return as_member or decide_beside(request, leases.holders, leases.queue, processes, now_s, family=family)[0]


def _decision_without_choice(request: SelectionRequest) -> Decision | None:
    """Return the decision if it needs no choice among GPUs; else ``None``."""
    inventory = request.inventory
    # No GPU is readable. The framework takes the GPUs that CUDA still has, or fails.
    is_lost = inventory.unreadable and not (inventory.devices or hides_all(request.visible_spec.value))
    none = why_none(request)
    if none is None and request.uuids == () and not is_lost:
        none = Reason.NO_DEVICE
    if none:
        return Decision(Verdict.CPU, none, request)
    if is_lost:
        return Decision(Verdict.CANNOT_CHOOSE, Reason.NO_DEVICE, request)
    if request.uuids is None and not inventory.failure:
        return Decision(Verdict.CANNOT_CHOOSE, Reason.ONLY_CUDA_KNOWS, request)
    return None
