"""A process that was started by one that has a lease shares what that one holds. Pure."""

from __future__ import annotations

from autogpu.frozen import replace
from autogpu.selection import explain
from autogpu.selection.decide import decide
from autogpu.selection.memory import best_effort_share
from autogpu.selection.model import Verdict

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Mapping, Sequence

    from autogpu.lease import Holder
    from autogpu.selection.model import Decision, SelectionRequest


def _is_parents(request: SelectionRequest, parent: Holder) -> bool:
    """Whether what the script has chosen, if anything, is its parent's: ``gpus[0]`` in a worker of the same script."""
    if not request.positions:
        return request.chosen is None
    uuids = request.uuids or ()
    return all(position < len(uuids) and uuids[position] in parent.claims for position in request.positions)


def decide_as_member(request: SelectionRequest, parent: Holder) -> Decision | None:
    """The GPUs of the process that started this one, if it can see them: a job's children belong to the job.

    ``None`` for one that chooses for itself.
    """
    # Ranks have their own GPUs, also where a process that has one started their launcher.
    if request.grant.rank is not None or not _is_parents(request, parent):
        return None
    alone = decide(request)
    parents = tuple(position for position, uuid in enumerate(request.uuids or ()) if uuid in parent.claims)
    ordinals = request.positions or parents
    if not alone.is_ours or not ordinals:
        return None
    shares = _shares_as_member(alone, ordinals, parent)
    return replace(
        alone,
        verdict=Verdict.TAKE,
        why=explain.inherited(parent.script, parent.pid),
        ordinals=ordinals,
        moved={},
        claims=dict(parent.claims),
        shares=shares,
        cap=explain.BEST_EFFORT if shares else "",
        granted={o: parent.caps[d.uuid] for o, d in enumerate(alone.visible) if d and d.uuid in parent.caps},
        attainable=0,
    )


def _shares_as_member(decision: Decision, ordinals: Sequence[int], parent: Holder) -> Mapping[int, int]:
    """A job to which nothing is promised on a GPU is capped there in each of its processes."""
    devices = ((o, decision.visible[o]) for o in ordinals)
    shares = {o: best_effort_share(d, None) for o, d in devices if d is not None and not parent.claims.get(d.uuid)}
    return {ordinal: share for ordinal, share in shares.items() if share is not None}
