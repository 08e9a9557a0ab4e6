"""Ranks of one job that share a pool are promised their GPUs together, or none. Pure.

If each waited for its own, two jobs could each hold what the other waits for.
"""

from __future__ import annotations

from autogpu.frozen import replace
from autogpu.selection.ranks import with_scripts_list

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Iterable, Mapping

    from autogpu.lease import Holder
    from autogpu.selection.grants import Grant
    from autogpu.selection.model import SelectionRequest


def job_of_ranks(request: SelectionRequest) -> str:
    """The job whose ranks choose together; ``""`` where the process goes by itself.

    What an engine granted is the job's already, and a script that has chosen certain GPUs takes no other one.
    """
    has_chosen = request.chosen is not None and not request.positions
    return "" if has_chosen else shared_job(request.grant)


def shared_job(grant: Grant) -> str:
    """The job whose ranks divide what they see; ``""`` where this process is no rank of one."""
    rank = grant.rank
    return "" if rank is None or rank.sharers == 1 or grant.engine else rank.job


def by_scripts_list(request: SelectionRequest) -> SelectionRequest:
    """With the rank's place among those whose script lists the same GPUs, where that is the script's doing."""
    rank = request.grant.rank
    if rank is None or request.visible_spec.source != "script" or request.uuids is None:
        return request
    return replace(request, grant=replace(request.grant, rank=with_scripts_list(rank, len(request.uuids))))


def request_of_all(request: SelectionRequest) -> SelectionRequest:
    """What all ranks that see the same GPUs ask for."""
    rank, policy = request.grant.rank, request.policy
    sharers = 1 if rank is None else rank.at_most(len(request.uuids or ()))
    count = policy.count if policy.count == "all" else policy.count * sharers
    grant = replace(request.grant, rank=None)
    # Ranks are counted in limits.per_user, and not refused: a part of them would be of no use.
    policy = replace(policy, count=count, per_user=0)
    request = replace(request, policy=policy, grant=grant, count_is_set=True, processes=sharers)
    return replace(request, chosen=None, chosen_by_position=False) if request.positions else request


def promised_to(ranks: Iterable[Holder], request: SelectionRequest) -> Mapping[str, int]:
    """By UUID, what the job's ranks hold of the GPUs that this one sees: a launcher may have split its ranks' lists."""
    promised: dict[str, int] = {}
    for rank in ranks:
        for uuid, size in rank.claims.items():
            if uuid in (request.uuids or ()):
                promised[uuid] = max(size, promised.get(uuid, 0))
    return promised
