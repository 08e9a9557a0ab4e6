"""What one process claims of the host's GPUs, and how its children know that they share it."""

from __future__ import annotations

import os

from autogpu.selection.visible_devices import restore
from autogpu.variables import LEASE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, MutableMapping

    from autogpu.acquire import Acquisition, OnWait
    from autogpu.lease import Lease
    from autogpu.selection.model import SelectionRequest


class Claim:
    """What a process claims, from before its first context on.

    Attributes:
        lease: ``None`` where nothing is claimed.
        is_parents: Whether it is a part of what the process that started this one has claimed.
    """

    def __init__(
        self, environ: MutableMapping[str, str], acquire: Callable[[SelectionRequest, OnWait], Acquisition]
    ) -> None:
        """Nothing is claimed yet.

        Args:
            environ: Names the lease folder; child processes inherit it.
            acquire: Decides and claims.
        """
        self.lease: Lease | None = None
        self.is_parents = False
        self._environ = environ
        self._acquire = acquire
        # By which process the children were told what, and what this one had been told itself.
        self._told: tuple[int, str] | None = None
        self._parents: str | None = None

    def take(self, request: SelectionRequest, on_wait: OnWait) -> Acquisition:
        """Decide and claim, instead of what was claimed before: the script may have listed other GPUs since."""
        self.release()
        acquired = self._acquire(request, on_wait)
        self.lease, self.is_parents = acquired.lease, acquired.is_parents
        return acquired

    def release(self) -> None:
        """Give it back."""
        if self.lease is not None:
            self.lease.release()
            self.lease = None
        # Restore the parent's AUTOGPU_LEASE: later claims belong to its job. Not in a forked child.
        if self._told == (os.getpid(), self._environ.get(LEASE)):
            restore(self._environ, self._parents, LEASE)

    def tell_children(self) -> None:
        """Export AUTOGPU_LEASE so that children share this claim; repeat when CUDA_VISIBLE_DEVICES changes."""
        if self.lease is None:
            return
        before = self._environ.get(LEASE)
        if self._told != (os.getpid(), before):
            self._parents = before
        self._environ[LEASE] = marker = self.lease.marker(self._environ)
        self._told = (os.getpid(), marker)

    @property
    def uuids(self) -> frozenset[str]:
        """Of the claimed GPUs."""
        return frozenset(self.lease.claims if self.lease else ())
