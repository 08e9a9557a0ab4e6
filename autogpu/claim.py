"""What one process claims of the host's GPUs, and how that follows what the process really takes."""

from __future__ import annotations

import os

from autogpu.clock import monotonic_s
from autogpu.frameworks.base import DeviceRequest
from autogpu.frozen import replace
from autogpu.selection.memory import CONTEXT_BYTES, demand_of
from autogpu.selection.model import Verdict
from autogpu.selection.visible_devices import restore
from autogpu.variables import LEASE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Collection, Mapping, MutableMapping, Sequence

    from autogpu.acquire import Acquisition, OnWait
    from autogpu.devices.model import Inventory
    from autogpu.lease import Lease
    from autogpu.selection.model import Decision, SelectionRequest

# In a lease all of a GPU, where it is unknown how much that is; readers cut it to what it has.
_ALL_BYTES = 1 << 50

# How soon a claim is tried again on a GPU that the script named and that was another's.
_FIRST_PAUSE_S = 0.25
_LONGEST_PAUSE_S = 60.0


class Claim:
    """What a process claims, from before its first context on.

    Attributes:
        lease: ``None`` where nothing is claimed.
        is_parents: Whether it is a part of what the process that started this one has claimed.
        contexts: The GPUs on which the process had contexts when that was last looked at, as CUDA counts them.
        shares: By UUID, the most that it may take of a GPU which it came to use while others were on it.
        shared: The last decision by which it was one of several there; ``None`` before that.
    """

    def __init__(
        self,
        environ: MutableMapping[str, str],
        ask: Callable[[DeviceRequest], SelectionRequest],
        acquire: Callable[[SelectionRequest, OnWait], Acquisition],
        read: Callable[[], Inventory | None] = lambda: None,
    ) -> None:
        """Nothing is claimed yet.

        Args:
            environ: Names the lease folder; child processes inherit it.
            ask: What is known at the moment, for a decision about more GPUs.
            acquire: Decides and claims.
            read: Takes a fresh reading of the driver.
        """
        self.lease: Lease | None = None
        self.is_parents = False
        self.contexts: tuple[int, ...] = ()
        self.shares: dict[str, int] = {}
        self.shared: Decision | None = None
        self._environ = environ
        self._ask = ask
        self._acquire = acquire
        self._read = read
        self._has_estimate = False
        self._reserved: frozenset[str] = frozenset()
        self._pause_s, self._again_s = _FIRST_PAUSE_S, 0.0
        # By which process the children were told what, and what this one had been told itself.
        self._told: tuple[int, str] | None = None
        self._parents: str | None = None

    def take(self, request: SelectionRequest, on_wait: OnWait) -> Acquisition:
        """Decide and claim, instead of what was claimed before: the script may have listed other GPUs since."""
        self.release()
        self._has_estimate = demand_of(request).context_bytes > 0
        acquired = self._acquire(request, on_wait)
        self.lease, self._reserved, self.is_parents = acquired.lease, acquired.reserved, acquired.is_parents
        return acquired

    def release(self) -> None:
        """Give it back."""
        if self.lease is not None:
            self.lease.release()
            self.lease = None
        # What it claims next, and its children do, is its parent's job's again. A fork's parent may still have it.
        if self._told == (os.getpid(), self._environ.get(LEASE)):
            restore(self._environ, self._parents, LEASE)

    def tell_children(self) -> None:
        """Let them know that they are members; whenever the list that they inherit has changed, which they compare."""
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

    def mark_unused(self) -> None:
        """Let others see that it was claimed ahead, and that nothing uses it yet."""
        if self.lease is not None:
            self.lease.update(self.lease.claims, is_unused=True)

    def follow(
        self,
        in_use: tuple[int, ...],
        uuids: Sequence[str],
        decision: Decision | None,
        *,
        takes_by_itself: bool,
        keeps_unused: bool,
        is_ahead: bool,
        is_guest: bool = False,
    ) -> Collection[str]:
        """Let the lease name the GPUs on which the process has contexts.

        Args:
            in_use: These, as CUDA counts them.
            uuids: Of all that CUDA counts.
            decision: What the process was given.
            takes_by_itself: The script can name GPUs to the framework without a word to autogpu.
            keeps_unused: What was claimed stays claimed, since the framework may take it at any time.
            is_ahead: It was claimed before CUDA was initialised.
            is_guest: Where it uses other GPUs than those, it is to leave to others what they have there.

        Returns:
            The UUIDs of those that are no longer claimed.
        """
        if in_use == self.contexts:
            if takes_by_itself:
                self._claim_what_came_free(in_use, uuids, decision, is_guest)
            return ()
        if self.lease is None and decision and decision.verdict is Verdict.CANNOT_CHOOSE:
            self._claim_all_of(in_use, uuids)
        elif takes_by_itself:
            self._claim_more([ordinal for ordinal in in_use if uuids[ordinal] not in self.uuids], uuids, is_guest)
        unused: Collection[str] = ()
        if self.lease is not None:
            named = self._reserved | {uuids[ordinal] for ordinal in in_use} | (self.uuids if keeps_unused else set())
            is_used_now = is_ahead and not self.contexts
            if is_used_now or named != self.uuids:
                unused = self.uuids - named
                claims = {uuid: self.lease.claims.get(uuid, 0) for uuid in named}
                self.lease.update(claims, is_unused=False if is_used_now else None)
        self.contexts = in_use
        return unused

    def _claim_all_of(self, in_use: Sequence[int], uuids: Sequence[str]) -> None:
        """Let the others see what a framework took by itself, where nothing is known of it."""
        from autogpu import lease
        from autogpu.acquire import running_script

        claims = dict.fromkeys([uuids[ordinal] for ordinal in in_use], _ALL_BYTES)
        self.lease = lease.acquire_lease(lease.find_folder(self._environ), lambda *_: claims, script=running_script())

    def _claim_what_came_free(
        self, in_use: Sequence[int], uuids: Sequence[str], decision: Decision | None, is_guest: bool
    ) -> None:
        """Claim what the script named while it was another's: two that name the second GPU first claim each other's."""
        mine = decision.ordinals if decision else ()
        claims = self.lease.claims if self.lease else {}
        others = [ordinal for ordinal in in_use if ordinal not in mine and claims.get(uuids[ordinal]) == 0]
        if others and monotonic_s() >= self._again_s:
            self._again_s = monotonic_s() + self._pause_s
            self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)
            self._claim_more(others, uuids, is_guest)

    def _claim_more(self, ordinals: Sequence[int], uuids: Sequence[str], is_guest: bool) -> None:
        """Claim GPUs that the script has named to the framework alone, as far as that breaks no promise."""
        if not ordinals:
            return
        asked = replace(self._ask(DeviceRequest(len(uuids), tuple(ordinals))), chosen_by_position=False)
        if is_guest:  # others may have come since CUDA's start
            asked = replace(asked, is_taken=True, inventory=self._read() or asked.inventory)
        if self.lease is not None:  # its children's claims are of its own job
            asked = replace(asked, group=self.lease.group)
        acquired = self._acquire(asked, lambda *_: None)
        self._share([(ordinal, uuids[ordinal]) for ordinal in ordinals], acquired.decision)
        more = acquired.lease
        if more is None or self.lease is None:
            self.lease = self.lease or more
            return
        try:
            self.lease.update({**self.lease.claims, **more.claims})
        finally:
            more.release()

    def _share(self, gpus: Sequence[tuple[int, str]], decision: Decision) -> None:
        """Note what the process may take of GPUs on which there are others; once, until they have gone."""
        for ordinal, uuid in gpus:
            if ordinal not in decision.shares:
                self.shares.pop(uuid, None)
            elif uuid not in self.shares:
                self.shares[uuid] = decision.shares[ordinal]
                self.shared = decision

    def lower(self, uuid: str, size: int) -> None:
        """The framework may allocate only that much on a GPU; what is more than was claimed may be others'."""
        claimed = self.lease.claims.get(uuid) if self.lease else None
        if self.lease is not None and claimed is not None and size + CONTEXT_BYTES < claimed:
            self.lease.update({**self.lease.claims, uuid: size + CONTEXT_BYTES})

    @property
    def is_estimated(self) -> bool:
        """Whether it holds an estimate of what a context takes."""
        return self.lease is not None and self._has_estimate

    def correct_contexts(self, measured: Mapping[str, int]) -> None:
        """Correct it by what a context really takes, by UUID, where that was estimated."""
        if self.lease is None or not self.is_estimated:
            return
        # Never more than was claimed: that much was found free, and use beyond it shows in the readings.
        spared = {uuid: max(0, CONTEXT_BYTES - size) for uuid, size in measured.items()}
        if any(spared.values()):
            claims = self.lease.claims.items()
            self.lease.update({uuid: max(0, size - spared.get(uuid, 0)) for uuid, size in claims})
