"""What the rules could be instead: each changes one thing of autogpu's answer, or of the order in the queue."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Sequence

from benchmarks.lab.day import GIB, HOUR_S
from benchmarks.lab.replay import Answer, Attempt, Start, Wait
from benchmarks.lab.rules import Autogpu
from benchmarks.lab.server import CONTEXT_BYTES, Card, Server


@dataclass(frozen=True)
class Rule:
    """What becomes of a job that would share a card and has not said what it needs.

    Attributes:
        sentence: The rule as a user hears it.
        share: Of what is free, the part that it may take; ``None`` for no cap.
        is_freest_first: It goes where the most is free, instead of where autogpu puts it.
        counts_caps: What the best-effort jobs of a card may still take does not count as free.
        settle_s: It joins a card only where every job has run for so long; else it waits.
        least_part: It starts only where it may take that part of the card; else it waits.
        most_jobs: It starts only where fewer than so many jobs are; else it waits.
        after_failure: Started again after it ended for memory, it waits for a card of its own (``"card"``), or states
            what it needs and waits for that (``"need"``), as the message tells its user.
        waits_for_need: A job that states its need waits where that fits nowhere, instead of going without a GPU.
    """

    sentence: str
    share: float | None = 0.5
    is_freest_first: bool = False
    counts_caps: bool = False
    settle_s: float = 0.0
    least_part: float = 0.0
    most_jobs: int = 0
    after_failure: str = ""
    waits_for_need: bool = False


class Tried(Autogpu):
    """autogpu with another rule for best-effort jobs."""

    def __init__(self, rule: Rule) -> None:
        super().__init__()
        self._rule = rule

    def busy_of(self, attempt: Attempt) -> str:
        rule = self._rule
        has_need = rule.waits_for_need and self.need_bytes_of(attempt) is not None
        return "wait" if has_need or (attempt.earlier and rule.after_failure) else self.busy

    def need_bytes_of(self, attempt: Attempt) -> int | None:
        is_told = attempt.earlier > 0 and self._rule.after_failure == "need"
        return -(-attempt.job.peak_bytes // GIB) * GIB if is_told else super().need_bytes_of(attempt)

    def place(self, attempt: Attempt, now_s: float, server: Server, ahead: Sequence[Attempt]) -> Answer:
        answer, rule = super().place(attempt, now_s, server, ahead), self._rule
        if not isinstance(answer, Start) or answer.claim_bytes:
            return answer
        cards = [
            card
            for card in server.cards
            if (rule.is_freest_first or card.number == answer.card)
            and (not rule.most_jobs or len(card.runs) < rule.most_jobs)
            and all(now_s - run.started_s >= rule.settle_s for run in card.runs)
        ]
        if not cards:
            return Wait()
        best = max(cards, key=lambda card: (self._free_bytes(card) // GIB, -card.utilization))
        cap = int(self._free_bytes(best) * (1 if rule.share is None else rule.share))
        if cap < rule.least_part * best.total_bytes:
            return Wait()
        return Start(best.number, 0, None if rule.share is None else cap)

    def _free_bytes(self, card: Card) -> int:
        if not self._rule.counts_caps:
            return card.free_bytes
        open_bytes = sum(
            max(0, run.cap_bytes + CONTEXT_BYTES - run.used_bytes) for run in card.runs if run.cap_bytes is not None
        )
        return max(0, card.free_bytes - open_bytes)


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


# A job joins the card with the most free memory, once all that is there has run for a minute and a quarter is free.
_SETTLED = Rule("", share=1.0, is_freest_first=True, settle_s=60, least_part=0.25)

RULES = (
    Rule("a third of what is free", share=1 / 3),
    Rule("all that is free", share=1.0),
    Rule("no cap", share=None),
    Rule("at most two on a card, else wait", most_jobs=2),
    Rule("after a failure wait for a card", after_failure="card"),
    Rule("after a failure say the need and wait", after_failure="need"),
    Rule("a stated need that fits nowhere waits", waits_for_need=True),
    Rule("F: where most is free", is_freest_first=True),
    Rule("F, no cap", share=None, is_freest_first=True),
    Rule("F, caps of others count as taken", is_freest_first=True, counts_caps=True),
    Rule("F, at most three on a card, else wait", is_freest_first=True, most_jobs=3),
    Rule("F, a quarter free, else wait", is_freest_first=True, least_part=0.125),
    Rule("M: F, all there has run for a minute, else wait", is_freest_first=True, settle_s=60),
    Rule("M, all that is free", share=1.0, is_freest_first=True, settle_s=60),
    Rule("Q: M and a quarter free, half of it", is_freest_first=True, settle_s=60, least_part=0.125),
    Rule("Q, three quarters of it", share=0.75, is_freest_first=True, settle_s=60, least_part=0.1875),
    replace(_SETTLED, sentence="Q, all of it"),
    replace(_SETTLED, sentence="Q, all of it, after two minutes", settle_s=120),
    replace(_SETTLED, sentence="Q, all of it; a stated need waits", waits_for_need=True),
    replace(_SETTLED, sentence="Q, no cap", share=None),
    replace(_SETTLED, sentence="Q, all of it, half free", least_part=0.5),
    replace(_SETTLED, sentence="Q, all of it; after a failure say the need", after_failure="need"),
)
ORDERS = (
    ("true needs, smallest first", "smallest", float("inf")),
    ("true needs, smallest first, none passed over for 1 h", "smallest", HOUR_S),
    ("true needs, shortest first", "shortest", float("inf")),
    ("true needs, shortest first, none passed over for 1 h", "shortest", HOUR_S),
)
