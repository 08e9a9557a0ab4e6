"""What the rules could be instead: each changes one thing of autogpu's answer, or of the order in the queue."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Sequence

from benchmarks.lab.day import GIB, HOUR_S
from benchmarks.lab.replay import IMPORT_S, WAIT_S, Answer, Attempt, Start, Wait
from benchmarks.lab.rules import Autogpu
from benchmarks.lab.server import CONTEXT_BYTES, Card, Run, Server


@dataclass(frozen=True)
class Rule:
    """What becomes of a job for which no card is free, or has what it says that it needs.

    Attributes:
        sentence: The rule as a user hears it.
        share: Of what is free, the part that it may take; ``None`` for no cap.
        counts_caps: What the jobs of a card that have a cap may still take does not count as free.
        settle_s: It joins a card only where every job has run for so long; else it waits.
        least_part: It starts only where that part of the card is free; else it waits.
        most_jobs: It starts only where fewer than so many jobs are; else it waits.
        after_failure: Started again after it ended for memory, it waits for a card of its own (``"card"``), or states
            what it needs and waits for that (``"need"``), as the message tells its user.
        need: What becomes of a need that fits nowhere: it goes without a GPU (``"cpu"``), waits until that much is
            promised to nobody (``"wait"``), or is free where every job has run for ``settle_s`` (``"join"``); then
            it may also join without an end of its wait (``"for ever"``).
        tells_at_once: Jobs that have stated a need count as if they had run for ``settle_s``.
        wait_s: After so long it joins where the most is free, however little that is.
        ends: Where it joins then: where every job has run for ``settle_s`` (``"settled"``), at once, but there first
            (``"at once"``), or at once anywhere (``"anywhere"``).
    """

    sentence: str
    share: float | None = 1.0
    counts_caps: bool = False
    settle_s: float = 60.0
    least_part: float = 0.25
    most_jobs: int = 0
    after_failure: str = ""
    need: str = "join"
    tells_at_once: bool = False
    wait_s: float = WAIT_S
    ends: str = "settled"


class Tried(Autogpu):
    """autogpu with another rule for jobs that find no card free."""

    def __init__(self, rule: Rule) -> None:
        super().__init__("cpu")
        self._rule = rule

    def need_bytes_of(self, attempt: Attempt) -> int | None:
        is_told = attempt.earlier > 0 and self._rule.after_failure == "need"
        return -(-attempt.job.peak_bytes // GIB) * GIB if is_told else super().need_bytes_of(attempt)

    def place(self, attempt: Attempt, now_s: float, server: Server, ahead: Sequence[Attempt]) -> Answer:
        answer, rule, need_bytes = super().place(attempt, now_s, server, ahead), self._rule, self.need_bytes_of(attempt)
        if isinstance(answer, Start) or (need_bytes is not None and rule.need == "cpu"):
            return answer
        is_over = now_s - attempt.asked_s - IMPORT_S >= rule.wait_s
        is_over &= need_bytes is None or rule.need != "for ever"
        if not is_over and (
            (attempt.earlier and rule.after_failure) or (need_bytes is not None and rule.need == "wait")
        ):
            return Wait()
        may_join = self._may_end if is_over else self._may_join
        cards = [card for card in server.cards if card.runs and may_join(card, now_s)]
        if not cards:
            return Wait()
        best = max(cards, key=lambda card: self._standing(card, now_s))
        free_bytes = self._free_bytes(best, now_s)
        if need_bytes is not None and not is_over:
            return Start(best.number, need_bytes) if need_bytes <= free_bytes else Wait()
        if free_bytes < rule.least_part * best.total_bytes and not is_over:
            return Wait()
        most = free_bytes if free_bytes >= GIB else best.free_bytes
        return Start(best.number, 0, None if rule.share is None else int(most * rule.share))

    def _is_settled(self, card: Card, now_s: float) -> bool:
        return all(self._has_told(run) or now_s - run.started_s >= self._rule.settle_s for run in card.runs)

    def _has_told(self, run: Run) -> bool:
        return self._rule.tells_at_once and run.job.need_bytes is not None and run.claim_bytes > 0

    def _may_end(self, card: Card, now_s: float) -> bool:
        return self._rule.ends != "settled" or self._is_settled(card, now_s)

    def _may_join(self, card: Card, now_s: float) -> bool:
        most = self._rule.most_jobs
        return self._is_settled(card, now_s) and (not most or len(card.runs) < most)

    def _standing(self, card: Card, now_s: float) -> tuple[bool, int, float]:
        is_preferred = self._rule.ends == "anywhere" or self._is_settled(card, now_s)
        return is_preferred, self._free_bytes(card, now_s) // GIB, -card.utilization

    def _free_bytes(self, card: Card, now_s: float) -> int:
        """What is not used, nor promised to jobs that have stated their size, or may still come to what they were told.

        So it is for ``settle_s``, or always where the rule counts caps.
        """
        promised = 0
        for run in card.runs:
            if run.claim_bytes < card.total_bytes:
                promised += max(0, run.claim_bytes - run.used_bytes)
            is_young = now_s - run.started_s < self._rule.settle_s
            if run.cap_bytes is not None and (is_young or self._rule.counts_caps):
                promised += max(0, run.cap_bytes + CONTEXT_BYTES - run.used_bytes)
        return max(0, card.free_bytes - promised)


class InOrder(Autogpu):
    """True needs, and a queue that is served in another order.

    Args:
        key: ``"smallest"`` need first, or the ``"shortest"`` job first, as if durations were known.
        passed_over_s: Who has waited for so long comes before all others.
    """

    def __init__(self, key: str, passed_over_s: float = float("inf")) -> None:
        super().__init__("wait", has_true_needs=True)
        self._key = key
        self._passed_over_s = passed_over_s

    def in_order(self, queue: Sequence[Attempt], now_s: float) -> Sequence[Attempt]:
        def key(attempt: Attempt) -> tuple[bool, float, float]:
            is_late = now_s - attempt.asked_s >= self._passed_over_s
            size = attempt.job.peak_bytes if self._key == "smallest" else attempt.job.duration_s
            return not is_late, 0.0 if is_late else size, attempt.asked_s

        return sorted(queue, key=key)


# At once, beside whoever is there.
_AT_ONCE = Rule("", settle_s=0.0, least_part=0.0, need="wait")
# That of autogpu itself; the others change one thing of it.
_OURS = Rule("")

RULES = (
    replace(_AT_ONCE, sentence="at once: half of what is free", share=0.5, need="cpu"),
    replace(_AT_ONCE, sentence="at once: a third of it", share=1 / 3),
    replace(_AT_ONCE, sentence="at once: all of it"),
    replace(_AT_ONCE, sentence="at once: no cap", share=None),
    replace(_AT_ONCE, sentence="at once: half, caps of others count as taken", share=0.5, counts_caps=True),
    replace(_AT_ONCE, sentence="at once: half, at most two on a card", share=0.5, most_jobs=2),
    replace(_AT_ONCE, sentence="at once: half, after a failure wait for a card", share=0.5, after_failure="card"),
    replace(_AT_ONCE, sentence="at once: half, after a failure say the need", share=0.5, after_failure="need"),
    replace(_AT_ONCE, sentence="where a quarter is free", least_part=0.25),
    replace(_OURS, sentence="Q: after a minute, where a quarter is free"),
    replace(_OURS, sentence="Q, half of it", share=0.5),
    replace(_OURS, sentence="Q, no cap", share=None),
    replace(_OURS, sentence="Q, anything free", least_part=0.0),
    replace(_OURS, sentence="Q, half free", least_part=0.5),
    replace(_OURS, sentence="Q, after two minutes", settle_s=120.0),
    replace(_OURS, sentence="Q, after two minutes, half free", settle_s=120.0, least_part=0.5),
    replace(_OURS, sentence="Q, at most three on a card", most_jobs=3),
    replace(_OURS, sentence="Q, a need that fits nowhere goes without a GPU", need="cpu"),
    replace(_OURS, sentence="Q, a need waits until it fits beside claims", need="wait"),
    replace(_OURS, sentence="Q, a need waits without an end", need="for ever"),
    replace(_OURS, sentence="Q, the minute of those that state no need", tells_at_once=True),
    replace(_OURS, sentence="Q, after a failure say the need", after_failure="need"),
    replace(_OURS, sentence="Q, the wait ends at once", ends="at once"),
    replace(_OURS, sentence="Q, the wait ends anywhere", ends="anywhere"),
    replace(_OURS, sentence="Q, the wait ends after an hour", wait_s=2 * WAIT_S),
    replace(_OURS, sentence="Q, the wait has no end", wait_s=float("inf")),
)
ORDERS = (
    ("true needs, smallest first", "smallest", float("inf")),
    ("true needs, smallest first, none passed over for 1 h", "smallest", HOUR_S),
    ("true needs, shortest first", "shortest", float("inf")),
    ("true needs, shortest first, none passed over for 1 h", "shortest", HOUR_S),
)
