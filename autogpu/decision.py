"""From a policy, the pool and the readings to the GPUs that a process takes, with the reason. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from autogpu.selection import Ranking, SelectionRules, Tier, by_uuid, rank, tier

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Sequence

    from autogpu.devices.model import Device, Inventory
    from autogpu.policy import Policy
    from autogpu.pool import Frame


_NOTHING = Ranking()


@dataclass(frozen=True)
class Decision:
    """Which GPUs a process takes.

    Attributes:
        ordinals: CUDA ordinals; ``()`` means CPU only, ``None`` that autogpu does not choose.
        why: In words, such as ``the idlest of 4``; where autogpu does not choose, why not.
        ranking: Of the process's GPUs; empty where there was nothing to rank.
        visible: The process's GPUs by ordinal, as far as they could be read.
    """

    ordinals: tuple[int, ...] | None
    why: str
    ranking: Ranking = _NOTHING
    visible: tuple[Device | None, ...] = ()


def rules(policy: Policy, frame: Frame, own_pid: int | None) -> SelectionRules:
    """What the policy may still say inside ``frame``: the user's list wins over ours unless ours is locked."""

    def holds(key: str) -> bool:
        return frame.value is None or key in policy.locked

    return SelectionRules(
        devices=policy.devices if holds("select.devices") else (),
        exclude=policy.exclude if holds("select.exclude") else (),
        own_pid=own_pid,
    )


def decide(
    policy: Policy,
    frame: Frame,
    inventory: Inventory | None,
    uuids: Sequence[str] | None,
    gpu_count: int,
    chosen: Sequence[int] | None,
    own_pid: int | None,
) -> Decision:
    """Choose among the GPUs that a process has.

    Args:
        policy: What holds for this process.
        frame: Who set ``CUDA_VISIBLE_DEVICES``.
        inventory: Fresh readings; ``None`` if they did not come in time.
        uuids: The process's GPUs by CUDA ordinal, as the loaded driver names them; ``None`` if it does not.
        gpu_count: How many GPUs the framework sees.
        chosen: Ordinals that the script itself made visible; ``None`` if it named none.
        own_pid: This process, whose own memory does not make a GPU busy.
    """
    if policy.count == 0 and chosen is None:
        return Decision((), "select.count is 0")
    obstacle = _obstacle(inventory, uuids, gpu_count)
    if obstacle or inventory is None or uuids is None:
        return Decision(None, obstacle)
    known = by_uuid(inventory.devices)
    visible = tuple(known.get(uuid) for uuid in uuids)
    ranking = rank([device for device in visible if device], rules(policy, frame, own_pid))
    if chosen is not None:
        takes = [visible[ordinal] for ordinal in chosen]
        why = "chosen by the script" + _regret([d for d in takes if d], inventory, own_pid)
        return Decision(None, why, ranking, visible)
    count = len(ranking.candidates) if policy.count == "all" else policy.count
    candidates = ranking.candidates[:count]
    if not candidates:
        hidden = any(rejection.by_policy for rejection in ranking.rejected)
        why = "; ".join(f"GPU {r.device.index}: {r.why}" for r in ranking.rejected)
        return Decision(() if hidden else None, why, ranking, visible)
    ordinals = tuple(sorted(uuids.index(candidate.device.uuid) for candidate in candidates))
    why = _why(ranking, len(candidates), frame)
    if frame.value is not None:
        why += _regret([candidate.device for candidate in candidates], inventory, own_pid)
    if policy.count != "all" and len(candidates) < policy.count:
        why += f"; select.count asks for {policy.count}, there are no more"
    return Decision(ordinals, why, ranking, visible)


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


def _why(ranking: Ranking, count: int, frame: Frame) -> str:
    total = len(ranking.candidates) + len(ranking.rejected)
    among = {
        "nobody": "",
        "inherited": " in CUDA_VISIBLE_DEVICES",
        "script": " in the script's CUDA_VISIBLE_DEVICES",
    }[frame.author]
    if total == 1:
        why = f"the only one{among}"
    elif count == total:
        why = f"all {total}{among}"
    else:
        best = "idlest" if ranking.candidates[count - 1].tier is Tier.FREE else "least busy"
        why = f"the {best} of {total}{among}" if count == 1 else f"the {count} {best} of {total}{among}"
    busy = [candidate for candidate in ranking.candidates[:count] if candidate.tier is not Tier.FREE]
    if busy:
        why += " (shared: " + "; ".join(c.why if count == 1 else f"GPU {c.device.index}: {c.why}" for c in busy) + ")"
    return why


def _regret(taken: Sequence[Device], inventory: Inventory, own_pid: int | None) -> str:
    """What whoever named a busy GPU wants to hear while another one idles."""
    if all(tier(device, own_pid) is Tier.FREE for device in taken):
        return ""
    uuids = {device.uuid for device in taken}
    idle = [d.index for d in inventory.devices if d.uuid not in uuids and tier(d) is Tier.FREE]
    if not idle:
        return ""
    named = "GPU {} is".format(*idle) if len(idle) == 1 else "GPUs {} are".format(" and ".join(map(str, idle[:3])))
    return f", busy while {named} idle"
