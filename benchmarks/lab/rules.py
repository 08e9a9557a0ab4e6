"""autogpu's own rules on the replayed server. No other file of this folder imports autogpu.

Each answer is the decision that ``autogpu.acquire`` would make under the mutex. The leases and the driver's readings
become jobs and claims, the queue becomes waiters, and ``decide`` decides. Three things differ from a real host:

* The readings and the leases are made from the replayed server. Readings are fresh, and others see a claim at once, as
  under the mutex.
* Waiting processes look at each change of the server, in queue order, instead of every second.
* With ``busy = "wait"`` the wait has no end, as if ``AUTOGPU_WAIT`` were longer than any day.
"""

from __future__ import annotations

from typing import Literal, Mapping, Sequence

from autogpu import history
from autogpu.caps import Cap, CapCause
from autogpu.devices.model import ComputeMode, Device, Inventory, Process
from autogpu.lease.model import Demand, Holder, Waiter
from autogpu.lease.processes import Processes
from autogpu.policy import Policy
from autogpu.selection.decide import decide
from autogpu.selection.decision import Verdict
from autogpu.selection.jobs import claims_by_gpu, jobs_of
from autogpu.selection.model import ONE_GPU, LastRuns, SelectionRequest, VisibleSpec
from benchmarks.lab.day import Job
from benchmarks.lab.replay import IMPORT_S, WAIT_S, Answer, Attempt, NoGpu, Start, Wait
from benchmarks.lab.server import Card, Run, Server

# OWN_PID is the pid of the process that asks; it is below all pids of the server. FIRST_UID is the uid of user 0.
OWN_PID = 9_999
FIRST_UID = 1000
MODEL = "card"

Busy = Literal["share", "wait", "cpu", "error"]


class Autogpu:
    """autogpu in every process. All processes have the same policy except for ``need``.

    Args:
        busy: ``select.busy``.
        has_true_needs: True if each process states its peak memory to the byte, which no real user can.
        has_history: ``report.history``.
        earlier: Jobs of earlier days; each counts as one successful run of its script.
    """

    lag_s = 0.0

    def __init__(
        self,
        busy: Busy = "share",
        *,
        has_true_needs: bool = False,
        has_history: bool = True,
        earlier: Sequence[Job] = (),
    ) -> None:
        self.busy = busy
        self._has_history = has_history
        self._runs_of: dict[int, list[history.Run]] = {}
        for job in earlier:
            self._runs_of.setdefault(job.script, []).append(history.Run(job.peak_bytes))
        self._wait_s = WAIT_S if busy == "share" else float("inf")
        self._has_true_needs = has_true_needs

    def need_bytes_of(self, attempt: Attempt) -> int | None:
        return attempt.job.peak_bytes if self._has_true_needs else attempt.job.need_bytes

    def place(self, attempt: Attempt, now_s: float, server: Server, ahead: Sequence[Attempt]) -> Answer:
        inventory = Inventory(tuple(_device(card) for card in server.cards))
        uuids = [device.uuid for device in inventory.devices]
        request = SelectionRequest(
            policy=Policy(need_bytes=self.need_bytes_of(attempt)),
            visible_spec=VisibleSpec(),
            inventory=inventory,
            uuids=uuids,
            gpu_count=len(uuids),
            own_uid=FIRST_UID + attempt.job.user,
            own_pid=OWN_PID,
            wanted=ONE_GPU,
            busy=self.busy,
            wait_s=self._wait_s,
            per_user=0,
            waited_s=now_s - attempt.asked_s - IMPORT_S,
            last_runs=self._last_runs(attempt.job),
        )
        runs = sorted(server.runs, key=lambda run: run.pid)
        holders = [_holder(run, uuids[run.card]) for run in runs]
        processes = Processes({holder.name: (run.pid,) for holder, run in zip(holders, runs)})
        claims_on = claims_by_gpu(jobs_of(holders, processes, inventory.devices, now_s))
        waiters = [self._waiter(other, place, now_s, uuids) for place, other in enumerate(ahead)]
        decision = decide(request, claims_on, waiters)
        if decision.verdict is Verdict.WAIT:
            return Wait()
        if decision.verdict is not Verdict.TAKE:
            return NoGpu()
        (card,) = decision.ordinals
        (claim_bytes,) = decision.claims.values()
        return Start(card, claim_bytes, min((cap.bytes for cap in decision.caps.values()), default=None))

    def learn(self, run: Run, took_bytes: int, *, has_failed: bool) -> None:
        known = history.Run(took_bytes, has_failed=has_failed)
        self._runs_of.setdefault(run.job.script, []).append(known)

    def _last_runs(self, job: Job) -> Mapping[str, LastRuns]:
        found = history.last_runs_of(self._runs_of.get(job.script, ()), _script(job))
        return {MODEL: found} if found and self._has_history else {}

    def is_behind(self, attempt: Attempt, refused: Attempt) -> bool:
        least, wanted = self.need_bytes_of(refused), self.need_bytes_of(attempt)
        if wanted is None:
            return least is None and self._room_bytes(refused) <= self._room_bytes(attempt)
        return least is not None and least <= wanted

    def _room_bytes(self, attempt: Attempt) -> int:
        """Return the bytes that must be free on a card before the job joins others there; 0 if nothing is known."""
        return max((runs.bytes for runs in self._last_runs(attempt.job).values()), default=0)

    def _waiter(self, attempt: Attempt, place: int, now_s: float, uuids: Sequence[str]) -> Waiter:
        waiter = Waiter(
            name=f"wait.{place}",
            uid=FIRST_UID + attempt.job.user,
            is_mine=False,
            pid=1,
            since_s=attempt.asked_s + IMPORT_S,
            script=_script(attempt.job),
            demand=Demand(
                1,
                self.need_bytes_of(attempt),
                joins=self.busy == "share",
                last_runs=dict.fromkeys(uuids, self._room_bytes(attempt)),
                wait_s=int(WAIT_S),
            ),
        )
        return waiter.at(now_s)


def _script(job: Job) -> str:
    return f"script{job.script}.py"


def _device(card: Card) -> Device:
    return Device(
        uuid=f"GPU-{card.number:08x}",
        index=card.number,
        name=MODEL,
        memory_total_bytes=card.total_bytes,
        memory_used_bytes=card.used_bytes,
        utilization_percent=min(100, round(100 * card.utilization)),
        compute_processes=tuple(Process(run.pid, run.used_bytes) for run in card.runs),
        graphics_processes=(),
        compute_mode=ComputeMode.DEFAULT,
    )


def _holder(run: Run, uuid: str) -> Holder:
    return Holder(
        name=f"job.{run.pid}",
        uid=FIRST_UID + run.job.user,
        is_mine=False,
        pid=run.pid,
        since_s=run.started_s,
        script=_script(run.job),
        claims={uuid: run.claim_bytes},
        caps={} if run.cap_bytes is None else {uuid: Cap(run.cap_bytes, CapCause.LIMIT)},
    )
