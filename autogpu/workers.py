"""Processes that a program starts together by one call: what is left to them, and what such a process finds."""

from __future__ import annotations

import os

from autogpu.frozen import replace
from autogpu.selection.workers import worker_rank, workers_of
from autogpu.variables import WORKERS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, MutableMapping

    from autogpu.selection.grants import Grant
    from autogpu.selection.ranks import LocalRank


class Workers:
    """Of this process, and those among which it is one itself."""

    def __init__(self, environ: MutableMapping[str, str], worker_name: Callable[[], str]) -> None:
        """None has been started.

        Args:
            environ: The workers inherit it.
            worker_name: What ``multiprocessing`` calls this process; ``""`` where it did not start it.
        """
        self._environ = environ
        self._worker_name = worker_name
        self._rank: LocalRank | None = None

    def ranked(self, grant: Grant) -> Grant:
        """What was granted, with the place of this process among such workers, unless a launcher gave it one."""
        if grant.rank is not None:
            return grant
        if self._rank is None:
            self._rank = worker_rank(self._environ.get(WORKERS), self._worker_name())
            if self._rank is not None:
                # A program that it starts numbers its own processes from 1 again: they are none of these workers.
                self._environ.pop(WORKERS, None)
        return grant if self._rank is None else replace(grant, rank=self._rank)

    def begin(self, count: int, first: int) -> None:
        """So many are about to be started.

        Args:
            first: What ``multiprocessing`` numbers the first of them.
        """
        job = f"workers.{os.getpid()}.{os.urandom(8).hex()}"
        self._environ[WORKERS] = workers_of(self._worker_name(), count, first, job).text

    def end(self) -> None:
        """They have been started, and others are not among them."""
        self._environ.pop(WORKERS, None)
