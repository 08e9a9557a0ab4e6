"""From a policy, the pool, the readings and the leases to the GPUs that a process takes, with the reason. Pure."""

from __future__ import annotations

import enum
import sys
from types import MappingProxyType

from autogpu.frozen import frozen, replace
from autogpu.selection import Cause, Claim, Ranking, SelectionRules, Size, Tier, by_uuid, names, rank, room_bytes, tier

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Collection, Mapping, Sequence

    from autogpu.devices.model import Device, Inventory
    from autogpu.policy import Policy
    from autogpu.pool import Frame
    from autogpu.ranks import LocalRank
    from autogpu.selection import Candidate

# What a CUDA context and its libraries take beside TensorFlow's own memory. Source: 300 to 600 MiB in reports on
# compute capability 6 to 9. A lease is corrected by what NVML shows of its process, where NVML shows it.
CONTEXT_BYTES = 512 << 20

# Of that, what comes after the context itself: handles and kernels of cuBLAS, cuDNN and TensorFlow, loaded when first
# used. Nobody can tell beforehand how much a script will load.
LIBRARIES_BYTES = 256 << 20

# In one line of a message; ``autogpu status`` shows each.
_MOST_REASONS = 5

# Of what is free, what TensorFlow leaves to others when it takes a GPU whole: 2 to 7 % in 1.15 to 2.21.
_RESERVE = 0.06


class Verdict(enum.Enum):
    """What becomes of the process."""

    TAKE = "take the GPUs named"
    CPU = "go on without a GPU"
    WAIT = "wait for one"
    REFUSE = "stop"
    LEAVE = "leave the choice to whoever made it"


@frozen
class Question:
    """Everything that a decision rests on, but for the leases, which are read under the host's mutex.

    Attributes:
        policy: What holds for this process.
        frame: Who set ``CUDA_VISIBLE_DEVICES``.
        inventory: Fresh readings; ``None`` if they did not come in time.
        uuids: The process's GPUs by CUDA ordinal, as the loaded driver names them; ``None`` if it does not.
        gpu_count: How many GPUs the framework sees.
        chosen: Ordinals that the script itself made visible; ``None`` if it named none.
        own_pid: This process, whose own memory does not make a GPU busy.
        own_uid: Its user.
        rank: Its place among the ranks of a launcher; ``None`` if it is alone.
        in_use: Ordinals on which another library of this process has a context already.
    """

    policy: Policy
    frame: Frame
    inventory: Inventory | None
    uuids: Sequence[str] | None
    gpu_count: int
    chosen: Sequence[int] | None
    own_pid: int | None
    own_uid: int
    rank: LocalRank | None = None
    in_use: Sequence[int] = ()


@frozen
class Decision:
    """Which GPUs a process takes.

    Attributes:
        ordinals: CUDA ordinals, for ``Verdict.TAKE``.
        why: In words, such as ``the idlest of 4``; where autogpu does not choose, why not.
        claims: Bytes promised to the process, by UUID; a guest is promised 0.
        caps: By CUDA ordinal, the most bytes that each logical GPU may allocate; no entry means no cap.
        ranking: Of the process's GPUs; empty where there was nothing to rank.
        visible: The process's GPUs by ordinal, as far as they could be read.
        attainable: How many GPUs the process would take at most if ``select.count`` asked for more.
    """

    verdict: Verdict
    why: str
    ordinals: tuple[int, ...] = ()
    claims: Mapping[str, int] = MappingProxyType({})
    caps: Mapping[int, int] = MappingProxyType({})
    ranking: Ranking = Ranking()
    visible: tuple[Device | None, ...] = ()
    attainable: int = 0

    @property
    def devices(self) -> tuple[Device, ...]:
        """The GPUs named by ``ordinals``, idlest first."""
        place = {candidate.device.uuid: place for place, candidate in enumerate(self.ranking.candidates)}
        named = (self.visible[ordinal] for ordinal in self.ordinals)
        return tuple(sorted((d for d in named if d), key=lambda device: place.get(device.uuid, len(place))))


def rules(policy: Policy, frame: Frame, own_pid: int | None) -> SelectionRules:
    """What the policy may still say inside ``frame``: the user's list wins over ours unless ours is locked."""

    def holds(key: str) -> bool:
        return frame.value is None or key in policy.locked

    return SelectionRules(
        devices=policy.devices if holds("select.devices") else (),
        exclude=policy.exclude if holds("select.exclude") else (),
        size=claimed_size(policy),
        own_pid=own_pid,
    )


def claimed_size(policy: Policy) -> Size:
    """How much of each GPU the process claims: what it needs, else the limit of all its virtual GPUs, else all."""
    if policy.need_bytes is not None:
        return Size(bytes=policy.need_bytes)
    if policy.limit is not None:
        context_bytes = 0 if policy.limit_includes == "process" else CONTEXT_BYTES
        size, percent = policy.limit.bytes, policy.limit.percent
        return Size(
            None if size is None else size * policy.virtual_gpus,
            None if percent is None else percent * policy.virtual_gpus,
            context_bytes,
            is_limit=True,
        )
    return Size()


def decide(
    question: Question,
    leases: Mapping[str, Sequence[Claim]] | None = None,
    is_awaited: Callable[[str, bool, int | None], bool] = lambda uuid, is_free, room_bytes: False,
) -> Decision:
    """Choose among the GPUs that a process has.

    Args:
        question: What is known.
        leases: By UUID, the live leases of other jobs.
        is_awaited: Whether somebody ahead of this process waits for a GPU and could use this one now, given its UUID,
            whether it is free, and the bytes that are neither used nor promised.
    """
    policy, frame, inventory, uuids = question.policy, question.frame, question.inventory, question.uuids
    if policy.count == 0 and question.chosen is None:
        return Decision(Verdict.CPU, "select.count is 0")
    obstacle = _obstacle(inventory, uuids, question.gpu_count)
    if obstacle or inventory is None or uuids is None:
        return Decision(Verdict.LEAVE, obstacle)
    leases = leases or {}
    known = by_uuid(inventory.devices)
    visible = tuple(known.get(uuid) for uuid in uuids)
    all_rules = rules(policy, frame, question.own_pid)
    ranking = rank([device for device in visible if device], all_rules, leases)
    if question.chosen is not None:
        named = [device for device in (visible[ordinal] for ordinal in question.chosen) if device]
        why = "chosen by the script" + _regret(named, question, leases)
        claims = {device.uuid: _what_is_left(device, all_rules.size, leases) for device in named}
        mine = {o: device for o, device in enumerate(visible) if device and o in question.chosen}
        return Decision(Verdict.LEAVE, why, claims=claims, caps=_caps(policy, mine), ranking=ranking, visible=visible)
    if question.rank is not None:
        return _decide_for_rank(question, question.rank, ranking, visible, leases)
    wanted = len(ranking.candidates) if policy.count == "all" else policy.count
    held_by_me = _held_by(question.own_uid, leases) if policy.per_user else 0
    allowed = min(wanted, policy.per_user - held_by_me) if policy.per_user else wanted
    as_seen = [_as_busy_if_awaited(c, question, is_awaited) for c in ranking.candidates]
    held = {uuids[ordinal] for ordinal in question.in_use}
    # What another library has begun on a GPU stays with it, rather than spreading the process over two.
    in_order = sorted(as_seen, key=lambda c: (c.device.uuid not in held, c.tier))
    usable = [c for c in in_order if _may_take(c, question)]
    taken = usable[: max(allowed, 0)]
    # More than these nobody can wait for: what will do, and what one person may ever have.
    causes = [rejection.cause for rejection in ranking.rejected]
    could_have = min(wanted, len(ranking.candidates) + causes.count(Cause.USE), policy.per_user or wanted)
    if not taken or (policy.busy == "wait" and len(taken) < could_have):
        verdict = {"wait": Verdict.WAIT, "error": Verdict.REFUSE}.get(policy.busy, Verdict.CPU)
        is_hopeless = not ranking.candidates and Cause.USE not in causes
        if is_hopeless and (policy.busy == "wait" or Cause.DEVICE not in causes):
            verdict = Verdict.CPU
        why = _why_none(replace(ranking, candidates=tuple(as_seen)), allowed, policy.per_user)
        return Decision(verdict, why, ranking=ranking, visible=visible)
    why = _why(ranking, taken, frame, held)
    if frame.value is not None or held:
        why += _regret([candidate.device for candidate in taken], question, leases)
    if policy.count != "all" and len(taken) < policy.count:
        reason = f"limits.per_user allows {policy.per_user}" if allowed < wanted else "there are no more"
        why += f"; select.count asks for {policy.count}, {reason}"
    if policy.limit is None and any(candidate.is_guest for candidate in taken):
        why += "; capped at half of what is free, select.need would claim what the job needs"
    ordinal = {uuid: position for position, uuid in enumerate(uuids)}
    # A guest must not take the memory that the job beside it was about to grow into.
    guests = {
        ordinal[candidate.device.uuid]: candidate.device.memory_free_bytes // 2
        for candidate in taken
        if candidate.is_guest and candidate.device.memory_free_bytes is not None
    }
    return Decision(
        Verdict.TAKE,
        why,
        ordinals=tuple(sorted(ordinal[candidate.device.uuid] for candidate in taken)),
        claims={candidate.device.uuid: candidate.claim_bytes for candidate in taken},
        caps=_caps(policy, {ordinal[candidate.device.uuid]: candidate.device for candidate in taken}, guests),
        ranking=ranking,
        visible=visible,
        attainable=min(len(usable), policy.per_user - held_by_me) if policy.per_user else len(usable),
    )


def _decide_for_rank(
    question: Question,
    rank: LocalRank,
    ranking: Ranking,
    visible: tuple[Device | None, ...],
    leases: Mapping[str, Sequence[Claim]],
) -> Decision:
    """Rank r takes slice r of the pool in its own order, whatever else runs there: ranks never steal and never wait."""
    policy = question.policy
    hidden = {rejection.device.uuid for rejection in ranking.rejected if rejection.cause is Cause.POLICY}
    usable = [(ordinal, device) for ordinal, device in enumerate(visible) if device and device.uuid not in hidden]
    if not usable:
        return Decision(Verdict.CPU, _why_none(ranking, 1, 0), ranking=ranking, visible=visible)
    positions, sharers = rank.share(len(usable))
    mine = [usable[position] for position in positions]
    mine = mine if policy.count == "all" else mine[: policy.count]
    size = claimed_size(policy)
    if sharers > 1 and size.is_whole:
        size = Size(percent=100 / sharers)
    why = f"local rank {rank.rank} of {rank.size} ({rank.launcher})"
    shares = {}
    if sharers > 1:
        why += f", {sharers} ranks share each GPU"
        shares = {ordinal: _rest(_at_most_all(size, device)) for ordinal, device in mine}
    return Decision(
        Verdict.TAKE,
        why,
        ordinals=tuple(ordinal for ordinal, _ in mine),
        claims={device.uuid: _what_is_left(device, size, leases) for _, device in mine},
        caps=_caps(policy, dict(mine), shares),
        ranking=ranking,
        visible=visible,
        attainable=len(positions),
    )


def _rest(claim_bytes: int) -> int:
    """What TensorFlow may allocate within a claim that has to hold the CUDA context as well."""
    return max(claim_bytes - CONTEXT_BYTES, claim_bytes // 2)


def limits(policy: Policy, decision: Decision) -> Mapping[int, int]:
    """The caps of ``decision``, and those that the policy puts on the process's other GPUs: a script may name them
    later, and a job that another one started has no decision of its own.
    """
    visible = {ordinal: device for ordinal, device in enumerate(decision.visible) if device}
    return {**_caps(policy, visible), **decision.caps}


def set_aside(spent_bytes: int | None) -> int:
    """What of a limit on the whole process is kept free for what TensorFlow does not allocate itself.

    Args:
        spent_bytes: What the process takes with nothing but a context; ``None`` if that could not be measured.
    """
    return CONTEXT_BYTES if spent_bytes is None else max(CONTEXT_BYTES, spent_bytes + LIBRARIES_BYTES)


def within_process(policy: Policy, caps: Mapping[int, int], aside: Mapping[int, int]) -> Mapping[int, int]:
    """``caps``, in which ``CONTEXT_BYTES`` are set aside on each GPU, with ``aside`` in place of that."""
    more = {ordinal: (size - CONTEXT_BYTES) // policy.virtual_gpus for ordinal, size in aside.items()}
    return {ordinal: max(0, cap - more.get(ordinal, 0)) for ordinal, cap in caps.items()}


def _caps(
    policy: Policy, mine: Mapping[int, Device], shares: Mapping[int, int] = MappingProxyType({})
) -> dict[int, int]:
    """By CUDA ordinal, the most that each logical GPU may allocate.

    Args:
        policy: Its limit, where it has one.
        mine: The GPUs of the process.
        shares: Else what it may take of a GPU that is not its own alone.
    """
    parts = policy.virtual_gpus
    caps = {}
    for ordinal, device in mine.items():
        most = _limit(policy, device)
        if most is None:
            most = shares.get(ordinal)
        free_bytes = device.memory_free_bytes
        if most is None and parts > 1 and free_bytes is not None:
            # In equal parts what TensorFlow would take whole.
            most = int(max(free_bytes - CONTEXT_BYTES, free_bytes // 2) * (1 - _RESERVE))
        if most is not None:
            caps[ordinal] = most // parts
    return caps


def _limit(policy: Policy, device: Device) -> int | None:
    """The most that TensorFlow may allocate on a GPU, in all its virtual GPUs together."""
    if policy.limit is None or (policy.limit.percent is not None and device.memory_total_bytes is None):
        return None
    total_bytes = device.memory_total_bytes or 1 << 62
    limit = min(policy.limit.of(total_bytes) * policy.virtual_gpus, total_bytes)
    return max(0, limit - CONTEXT_BYTES) if policy.limit_includes == "process" else limit


def _obstacle(inventory: Inventory | None, uuids: Sequence[str] | None, gpu_count: int) -> str:
    if inventory is None:
        return "the driver has not answered in time"
    if inventory.failure:
        return inventory.failure
    if uuids is None or len(uuids) != gpu_count:
        return "the CUDA driver and the framework count different GPUs"
    if any(device.mig_enabled for device in inventory.devices):
        return "a GPU is split into MIG instances, which autogpu does not choose among"
    return ""


def _as_busy_if_awaited(
    candidate: Candidate, question: Question, is_awaited: Callable[[str, bool, int | None], bool]
) -> Candidate:
    """A GPU that somebody waits for and could have now is as good as taken."""
    device = candidate.device
    room = room_bytes(device, question.own_pid, candidate.claims)
    if not is_awaited(device.uuid, candidate.tier is Tier.FREE, room):
        return candidate
    return replace(candidate, tier=Tier.BUSY, is_guest=True, claim_bytes=0, why="somebody waits for it")


def _may_take(candidate: Candidate, question: Question) -> bool:
    if not candidate.is_guest or candidate.tier is Tier.FORGOTTEN:
        return True
    if not claimed_size(question.policy).is_whole:
        return False  # no guest can be promised what it needs
    if question.policy.busy == "share-own":
        holders = {claim.uid for claim in candidate.claims}
        known_pids = {pid for claim in candidate.claims for pid in claim.pids}
        strangers = [p for p in candidate.device.compute_processes or () if p.pid not in known_pids]
        return holders == {question.own_uid} and not strangers
    return question.policy.busy == "share"


def _held_by(uid: int, leases: Mapping[str, Sequence[Claim]]) -> int:
    return sum(any(claim.uid == uid for claim in claims) for claims in leases.values())


def _what_is_left(device: Device, size: Size, leases: Mapping[str, Sequence[Claim]]) -> int:
    """Of what the job would claim, what nobody has been promised: an explicit choice breaks no promise."""
    promised = sum(claim.bytes for claim in leases.get(device.uuid, ()))
    return max(0, min(size.on(device), (device.memory_total_bytes or 1) - promised))


def _at_most_all(size: Size, device: Device) -> int:
    return min(size.on(device), device.memory_total_bytes or sys.maxsize)


def _why(ranking: Ranking, taken: Sequence[Candidate], frame: Frame, held: Collection[str]) -> str:
    total = len(ranking.candidates) + len(ranking.rejected)
    among = {
        "nobody": "",
        "inherited": " in CUDA_VISIBLE_DEVICES",
        "script": " in the script's CUDA_VISIBLE_DEVICES",
    }[frame.author]
    count = len(taken)
    if total == 1:
        why = f"the only one{among}"
    elif count == total:
        why = f"all {total}{among}"
    elif held:
        why = f"{count} of {total}{among}, for another library of this process computes there"
    else:
        best = "idlest" if taken[-1].tier is Tier.FREE else "least busy"
        why = f"the {best} of {total}{among}" if count == 1 else f"the {count} {best} of {total}{among}"
    shared = [candidate for candidate in taken if candidate.tier is not Tier.FREE]
    if shared:
        described = (c.why if count == 1 else f"GPU {c.device.index}: {c.why}" for c in shared)
        why += " (shared: " + "; ".join(described) + ")"
    return why


def _why_none(ranking: Ranking, allowed: int, per_user: int) -> str:
    if allowed <= 0 and per_user:
        return f"you hold as many GPUs as limits.per_user allows, {per_user}"
    reasons = [f"GPU {c.device.index}: {c.why}" for c in ranking.candidates]
    reasons += [f"GPU {r.device.index}: {r.why}" for r in ranking.rejected]
    if len(reasons) > _MOST_REASONS:
        reasons[_MOST_REASONS - 1 :] = [f"and {len(reasons) - _MOST_REASONS + 1} more"]
    causes = {rejection.cause for rejection in ranking.rejected}
    head = "no GPU is free" if ranking.candidates or Cause.USE in causes or not causes else "no GPU will do"
    return f"{head} ({'; '.join(reasons)})"


def _regret(taken: Sequence[Device], question: Question, leases: Mapping[str, Sequence[Claim]]) -> str:
    """What whoever named a busy GPU wants to hear while another one idles."""

    def is_free(device: Device) -> bool:
        return tier(device, question.own_pid, leases.get(device.uuid, ())) is Tier.FREE

    if all(is_free(device) for device in taken) or question.inventory is None:
        return ""
    uuids = {device.uuid for device in taken}
    idle = [device for device in question.inventory.devices if device.uuid not in uuids and is_free(device)]
    if not idle:
        return ""
    return f", busy while {names(idle[:3])} {'is' if len(idle) == 1 else 'are'} idle"
