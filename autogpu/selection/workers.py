"""Workers that a program starts together by one call, told by what that call leaves in their environment. Pure.

Worker r counts its GPUs as its siblings do and uses number r: together they are the ranks of one job.
"""

from __future__ import annotations

import re

from autogpu.frozen import frozen
from autogpu.selection.ranks import WORKERS, LocalRank

# "SpawnProcess-3", and below a worker "Process-3:1": numbers that multiprocessing counts up in each process.
_NAME = re.compile(r".*-((?:[0-9]{1,9}:)*)([0-9]{1,9})", re.DOTALL)
_TEXT = re.compile(r"v1/([0-9]{1,6})/([0-9]{1,9})/((?:[0-9]{1,9}:)*)/([0-9a-zA-Z.]{1,64})")


@frozen
class Workers:
    """Of one call.

    Attributes:
        count: How many it starts.
        first: What multiprocessing numbers the first of them.
        prefix: What comes before that number in their names; empty but in the workers of a worker.
        job: Names this call, and no other of the host.
    """

    count: int
    first: int
    prefix: str
    job: str

    @property
    def text(self) -> str:
        """For the environment of the workers."""
        return f"v1/{self.count}/{self.first}/{self.prefix}/{self.job}"


def workers_of(name: str, count: int, first: int, job: str) -> Workers:
    """What a process with this name leaves to the workers that it is about to start.

    Args:
        name: By multiprocessing; ``""`` for a process that it has not started.
        count: As in :class:`Workers`.
        first: As in :class:`Workers`.
        job: As in :class:`Workers`.
    """
    own = _NAME.fullmatch(name)
    return Workers(count, first, f"{own.group(1)}{own.group(2)}:" if own else "", job)


def worker_rank(text: str | None, name: str) -> LocalRank | None:
    """The place of a process among the workers of that call; ``None`` for one that is none of them.

    Args:
        text: What the call has left, which workers of a worker and programs that it starts inherit as well.
        name: Of the process, as multiprocessing has it.
    """
    left, own = _TEXT.fullmatch(text or ""), _NAME.fullmatch(name)
    if left is None or own is None or own.group(1) != left.group(3):
        return None
    count, place = int(left.group(1)), int(own.group(2)) - int(left.group(2))
    if not 0 <= place < count:
        return None
    rank = LocalRank(place, count, WORKERS, job=left.group(4))
    return rank if count > 1 else LocalRank(0, 1, WORKERS, place=0, sharers=1)
