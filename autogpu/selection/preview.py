"""The decision on a process that would be started now. Nothing is claimed. Pure."""

from __future__ import annotations

from typing import Mapping

from autogpu.devices.model import Inventory
from autogpu.frozen import replace
from autogpu.policy.model import Policy
from autogpu.selection import explain
from autogpu.selection.decide import decide, why_none
from autogpu.selection.grants import Grant, settled
from autogpu.selection.instances import takeable
from autogpu.selection.jobs import claims_by_gpu, is_awaited_by, jobs_of
from autogpu.selection.members import Family, decide_as_member, rivals
from autogpu.selection.model import Decision, SelectionRequest, Verdict
from autogpu.selection.visible_devices import device_order, initial_visibility, named_uuids, visible_spec
from autogpu.variables import CUDA_VISIBLE_DEVICES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from autogpu.lease import LeaseSnapshot, Processes


def request_for_new_process(
    policy: Policy,
    environ: Mapping[str, str],
    inventory: Inventory,
    grant: Grant,
    *,
    own_uid: int,
    own_pid: int | None = None,
    count_is_set: bool = False,
) -> SelectionRequest:
    """Ask as a process would that is started with ``environ`` and sees the pool in ``CUDA_VISIBLE_DEVICES``' order."""
    grant = settled(grant, len(takeable(inventory.devices)))
    spec = visible_spec(environ, initial_visibility(environ, environ.get(CUDA_VISIBLE_DEVICES)), policy.script, grant)
    uuids = named_uuids(spec.value, inventory, device_order(environ, spec, grant))
    asked = SelectionRequest(policy, spec, inventory, uuids, len(uuids or ()), own_uid, own_pid)
    return replace(asked, count_is_set=count_is_set, grant=grant)


def preview(
    request: SelectionRequest, leases: LeaseSnapshot, processes: Processes, now_s: float, family: Family | None = None
) -> Decision:
    """The decision on ``request``, of a process that ``family`` would start, beside the jobs and the queue of now."""
    inventory = request.inventory
    none = why_none(request) or (_why_empty(inventory) if request.uuids == () else "")
    if none:
        return Decision(Verdict.CPU, none)
    if request.uuids is None and inventory is not None and not inventory.failure:
        return Decision(Verdict.CANNOT_CHOOSE, explain.ONLY_CUDA_CAN_TELL)
    shared = decide_as_member(request, family) if family is not None else None
    if shared is not None:
        return shared
    if family is not None:
        request = replace(request, policy=replace(request.policy, wait_s=0.0))
    claims_on = claims_by_gpu(jobs_of(rivals(leases.holders, family), processes, inventory, now_s))
    return decide(request, claims_on, is_awaited_by(leases.queue, claims_on))


def _why_empty(inventory: Inventory | None) -> str:
    is_hidden = inventory is not None and inventory.devices
    return "CUDA_VISIBLE_DEVICES hides every GPU" if is_hidden else explain.no_device(inventory)
