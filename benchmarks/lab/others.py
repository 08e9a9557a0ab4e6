"""The tools that people use instead of autogpu, with their published rules.

For nvitop and GPUtil, functions of these packages choose the card.
"""

from __future__ import annotations

import sys
import warnings
from types import SimpleNamespace
from typing import Sequence

from benchmarks.lab.replay import IMPORT_S, Answer, Attempt, Later, NoGpu, Start, Wait
from benchmarks.lab.server import Card, Run, Server

# GPUtil.getFirstAvailable's own default.
POLL_S = 900.0


class _AtScriptsStart:
    lag_s = IMPORT_S

    def learn(self, run: Run, took_bytes: int, *, has_failed: bool) -> None:
        """Do nothing: none of these tools keeps a history."""

    def is_behind(self, attempt: Attempt, refused: Attempt) -> bool:
        return True


class ByHand(_AtScriptsStart):
    """``nvidia-smi``, then ``CUDA_VISIBLE_DEVICES``: the card with the least memory in use, growth on, no waiting.

    Two assumptions favour people: they look before every single start, and nothing happens between look and start.

    Args:
        spreads: True if a user who starts several jobs at once puts each on another card, the emptiest first; False if
            all of them go to the card that was found.
    """

    def __init__(self, *, spreads: bool) -> None:
        self._spreads = spreads
        self._submission = -1
        self._order: list[int] = []

    def place(self, attempt: Attempt, now_s: float, server: Server, ahead: Sequence[Attempt]) -> Answer:
        order = [card.number for card in sorted(server.cards, key=lambda card: (card.used_bytes, card.number))]
        if attempt.earlier or not self._spreads:
            return Start(order[0])
        if attempt.job.submission != self._submission:
            self._submission, self._order = attempt.job.submission, order
        self._order = [*self._order[1:], self._order[0]]
        return Start(self._order[-1])


class Nvitop(_AtScriptsStart):
    """``nvitop.select_devices(max_count=1)`` at the start of each script, with a stated need as ``min_free_memory``."""

    def __init__(self) -> None:
        from nvitop import select_devices

        self._select = select_devices

    def place(self, attempt: Attempt, now_s: float, server: Server, ahead: Sequence[Attempt]) -> Answer:
        devices = [_NvitopDevice(card) for card in server.cards]
        found = self._select(devices, max_count=1, min_free_memory=attempt.job.need_bytes)
        return Start(found[0]) if found else NoGpu()


class _NvitopDevice:
    """A card with the attributes of an nvitop device that ``select_devices`` reads."""

    def __init__(self, card: Card) -> None:
        self._card = card

    def to_leaf_devices(self) -> list[_NvitopDevice]:
        return [self]

    def as_snapshot(self) -> SimpleNamespace:
        card = self._card
        return SimpleNamespace(
            real=self,
            index=card.number,
            physical_index=card.number,
            uuid=f"GPU-{card.number:08x}",
            is_mig_device=False,
            memory_total=card.total_bytes,
            memory_used=card.used_bytes,
            memory_free=card.free_bytes,
            gpu_utilization=min(100, round(100 * card.utilization)),
            memory_utilization=0,
        )


class GpuTil(_AtScriptsStart):
    """``GPUtil.getFirstAvailable``: the first card with load and memory below one half, else a try in 15 minutes."""

    def __init__(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if sys.version_info >= (3, 12):
                import setuptools  # noqa: F401  (brings distutils back)
            import GPUtil
        self._gputil = GPUtil

    def place(self, attempt: Attempt, now_s: float, server: Server, ahead: Sequence[Attempt]) -> Answer:
        gpus = [
            SimpleNamespace(
                id=card.number,
                uuid=f"GPU-{card.number:08x}",
                load=min(1.0, card.utilization),
                memoryUtil=card.used_bytes / card.total_bytes,
                memoryFree=card.free_bytes,
            )
            for card in server.cards
        ]
        available = self._gputil.getAvailability(gpus, maxLoad=0.5, maxMemory=0.5)
        return Start(available.index(1)) if 1 in available else Later(POLL_S)


class Exclusive(_AtScriptsStart):
    """A whole card for each job, first come, first served: Slurm's ``--gres=gpu:1``, or safe_gpu in a loop."""

    lag_s = 0.0

    def place(self, attempt: Attempt, now_s: float, server: Server, ahead: Sequence[Attempt]) -> Answer:
        free = [card.number for card in server.cards if not card.runs]
        return Start(free[0], server.cards[free[0]].total_bytes) if len(free) > len(ahead) else Wait()
