"""Decide and claim in one step that no other process of the host can come between; or wait until that is possible."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from autogpu import lease
from autogpu.decision import Decision, Verdict, claimed_size, decide
from autogpu.errors import NoEligibleDevice
from autogpu.frozen import replace
from autogpu.selection import Cause, Claim
from autogpu.stderr import say, shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Iterable, Mapping, Sequence

    from autogpu.decision import Question
    from autogpu.devices.model import Inventory
    from autogpu.lease import Holder, Lease, QueueState, Waiter

# The exit status of a job that should be tried again later (EX_TEMPFAIL of sysexits.h); schedulers know it.
EXIT_TIMEOUT = 75

# While one waits: how often NVML is read again for those who make no claims, and how often a line says so.
_READING_EVERY_S = 2.0
_LINE_EVERY_S = 300.0
_LINE_EVERY_ON_TERMINAL_S = 10.0


def settle(
    question: Question, environ: Mapping[str, str], script: str, read: Callable[[], Inventory | None]
) -> tuple[Decision, Lease | None]:
    """Decide which GPUs the process takes and claim them.

    Args:
        question: What is known.
        environ: Names the lease folder, and the parent's lease if there is one.
        script: The running script's name, for the others to see.
        read: Takes a fresh reading of the driver.

    Returns:
        The decision, and the lease that keeps its claim for the life of the process; ``None`` where nothing is claimed
        or where the host's lease folder can't be used, which a line on stderr says.

    Raises:
        NoEligibleDevice: No GPU is free, and the policy asks for an error then.
        SystemExit: No GPU came free in the time that the policy gives; with status 75.
    """
    if question.policy.count == 0 and question.chosen is None:
        return decide(question), None
    try:
        folder = lease.find_folder(environ)
        parent = lease.parent_lease(environ, folder)
        # Ranks have their own GPUs, also where a process that has one started their launcher.
        if parent is not None and question.chosen is None and question.rank is None:
            joined = _as_member(question, parent)
            if joined is not None:
                return joined, lease.claim(folder, lambda *_: joined.claims, script=script, group=parent.group)
        return _Contender(question, folder, script, read).settle()
    except lease.LeaseUnavailable as error:
        say(f"choosing without regard to other jobs: {shown(error.what)}; {shown(error.remedy)}")
        decision = decide(question)
        if decision.verdict is Verdict.REFUSE:
            raise _refusal(decision) from error
        return decision, None


class _Contender:
    """One process that wants GPUs, before it has any."""

    def __init__(
        self, question: Question, folder: lease.Folder, script: str, read: Callable[[], Inventory | None]
    ) -> None:
        self._question = question
        self._folder = folder
        self._script = script
        self._read = read
        self._read_s = time.monotonic()
        self._said_s = 0.0
        self._holder_pids: set[int] = set()
        self._decision = Decision(Verdict.LEAVE, "nothing is decided yet")

    def settle(self) -> tuple[Decision, Lease | None]:
        held = lease.claim(self._folder, self._choose, script=self._script)
        if self._decision.verdict is Verdict.WAIT:
            held = self._wait()
        if self._decision.verdict is Verdict.REFUSE:
            raise _refusal(self._decision)
        return self._decision, held

    def _choose(self, holders: Sequence[Holder], waiters: Sequence[Waiter]) -> Mapping[str, int] | None:
        # Each is a look into /proc, and the mutex is held: once for every holder that the driver lists.
        listed = _listed_pids(self._question.inventory)
        pids = {holder.name: holder.pid_here if holder.pid in listed else None for holder in holders}
        question = replace(self._question, inventory=self._without_ended(pids.values()))
        self._decision = decide(
            question,
            leases_of(holders, pids, question.inventory, time.time()),
            awaited_by([waiter for waiter in waiters if not waiter.is_mine]),
        )
        return self._decision.claims or None

    def _without_ended(self, holder_pids: Iterable[int | None]) -> Inventory | None:
        """The readings without the processes of leases that ended since they were taken."""
        inventory = self._question.inventory
        living = {pid for pid in holder_pids if pid is not None}
        ended = self._holder_pids - living
        self._holder_pids |= living
        if inventory is None or not ended:
            return inventory
        devices = []
        for device in inventory.devices:
            left = tuple(p for p in device.compute_processes or () if p.pid not in ended)
            freed = sum(p.memory_used_bytes or 0 for p in device.compute_processes or () if p.pid in ended)
            used = None if device.memory_used_bytes is None else device.memory_used_bytes - freed
            devices.append(replace(device, compute_processes=left, memory_used_bytes=used))
        return replace(inventory, devices=tuple(devices))

    def _wait(self) -> Lease:
        policy = self._question.policy
        names = [candidate.device.uuid for candidate in self._decision.ranking.candidates]
        names += [r.device.uuid for r in self._decision.ranking.rejected if r.cause is Cause.USE]
        devices = self._question.inventory.devices if self._question.inventory else ()
        size = claimed_size(policy)
        sizes = [size.on(device) for device in devices if device.uuid in names]
        want = lease.Want(
            count=len(names) if policy.count == "all" else min(policy.count, len(names)),
            bytes_per_gpu=None if size.is_whole else max(sizes, default=None),
            uuids=tuple(names),
        )
        try:
            return lease.wait_for(
                self._folder,
                self._choose,
                want=want,
                script=self._script,
                timeout_s=policy.wait_s,
                on_wait=self._say_who_has_what,
                before_look=self._read_again,
            )
        except lease.WaitTimeout as error:
            say(f"{error.what}; {error.remedy}")
            raise SystemExit(EXIT_TIMEOUT) from None

    def _read_again(self) -> None:
        # Not at each look: a lease that ends wakes the queue at once, and a reading takes longer than the hand-over.
        if time.monotonic() - self._read_s >= _READING_EVERY_S:
            inventory = self._read()
            self._read_s = time.monotonic()
            if inventory is not None:
                self._holder_pids.clear()
                self._question = replace(self._question, inventory=inventory)

    def _say_who_has_what(self, state: QueueState) -> None:
        is_terminal = sys.stderr is not None and sys.stderr.isatty()
        every_s = _LINE_EVERY_ON_TERMINAL_S if is_terminal else _LINE_EVERY_S
        if self._said_s and time.monotonic() - self._said_s < every_s:
            return
        self._said_s = time.monotonic()
        say(
            f"waiting for a GPU, place {state.position} in the queue, {_span(state.waited_s)} of "
            f"{_span(state.timeout_s)}: {self._decision.why}; Ctrl-C stops"
        )


def awaited_by(waiters: Sequence[Waiter]) -> Callable[[str, bool, int | None], bool]:
    """For :func:`autogpu.decision.decide`: whether one of ``waiters`` could use a GPU now."""

    def is_awaited(uuid: str, is_free: bool, room_bytes: int | None) -> bool:
        return any(
            waiter.want.could_use(uuid, room_bytes) and (is_free or waiter.want.bytes_per_gpu is not None)
            for waiter in waiters
        )

    return is_awaited


def _listed_pids(inventory: Inventory | None) -> set[int]:
    devices = inventory.devices if inventory else ()
    return {process.pid for device in devices for process in device.compute_processes or ()}


def leases_of(
    holders: Iterable[Holder], pids_here: Mapping[str, int | None], inventory: Inventory | None, now_s: float
) -> Mapping[str, Sequence[Claim]]:
    """By GPU, what each job of other processes was promised; the members of one job share one promise."""
    totals = {d.uuid: d.memory_total_bytes or sys.maxsize for d in inventory.devices} if inventory else {}
    jobs: dict[tuple[int, str], list[Holder]] = {}
    for holder in holders:
        if not holder.is_mine:
            jobs.setdefault((holder.uid, holder.group or holder.name), []).append(holder)
    gathered: dict[str, list[Claim]] = {}
    for (uid, _), members in jobs.items():
        pids = tuple(pid for pid in (pids_here[member.name] for member in members) if pid is not None)
        since_s = min((member.since_s for member in members if member.since_s is not None), default=now_s)
        for uuid in {uuid for member in members for uuid in member.claims}:
            most = max(member.clamped(totals).get(uuid, 0) for member in members)
            claim = Claim(most, pids, uid, members[0].script, max(0.0, now_s - since_s))
            gathered.setdefault(uuid, []).append(claim)
    return gathered


def _as_member(question: Question, parent: Holder) -> Decision | None:
    """The GPUs of the process that started this one, if it can see them: a job's children belong to the job."""
    alone = decide(question)
    uuids = question.uuids or ()
    ordinals = tuple(position for position, uuid in enumerate(uuids) if uuid in parent.claims)
    if alone.verdict is Verdict.LEAVE or not ordinals:
        return None
    why = f"shared with the process that started this one, {shown(parent.script)} (pid {parent.pid})"
    claims = dict(parent.claims)
    return replace(alone, verdict=Verdict.TAKE, why=why, ordinals=ordinals, claims=claims, caps={}, attainable=0)


def _refusal(decision: Decision) -> NoEligibleDevice:
    return NoEligibleDevice(
        decision.why, remedy='wait for one with select.busy = "wait", or share one with select.busy = "share"'
    )


def script_name(argv: Sequence[str]) -> str:
    """What the others see of this process: the script's name, never its folder or arguments."""
    name = Path(argv[0]).name if argv and argv[0] else ""
    return name if name not in ("", "-c", "-m") else Path(sys.executable or "python").name


def _span(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
