"""The GPUs on which one process has contexts, whatever it was given: its claim follows them, and it is told."""

from __future__ import annotations

from autogpu.devices.model import by_uuid
from autogpu.reporting import messages

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Collection, Mapping, Sequence

    from autogpu.claim import Claim
    from autogpu.devices.model import Inventory
    from autogpu.selection.model import Decision


class Contexts:
    """As the driver shows them."""

    def __init__(
        self, claim: Claim, counted: Callable[[], Sequence[str] | None], newest: Callable[[], Inventory | None]
    ) -> None:
        """There are none.

        Args:
            claim: Of the process.
            counted: Gives the UUIDs of the GPUs that CUDA counts, in its order; ``None`` before it does.
            newest: Gives the newest reading.
        """
        self._claim = claim
        self._counted = counted
        self._newest = newest
        self._said: set[str] = set()

    @property
    def shares(self) -> Mapping[int, int]:
        """By CUDA ordinal, the most that the process may take of a GPU that it came to use beside others."""
        shares = self._claim.shares
        uuids = self._counted() or () if shares else ()
        return {ordinal: shares[uuid] for ordinal, uuid in enumerate(uuids) if uuid in shares}

    @property
    def is_estimated(self) -> bool:
        """Whether the claim holds an estimate of what a context takes."""
        return self._claim.is_estimated

    def account_for(self, measured: Mapping[int, int]) -> None:
        """Correct the claim by what a context really takes, where that was estimated.

        Args:
            measured: By CUDA ordinal, in bytes.
        """
        uuids = self._counted() or ()
        if uuids:
            self._claim.correct_contexts({uuids[ordinal]: size for ordinal, size in measured.items()})

    def limit(self, ordinal: int, size: int) -> None:
        """The framework may allocate only so many bytes on a GPU. If that is less than was claimed, others may."""
        uuids = self._counted() or ()
        if ordinal < len(uuids):
            self._claim.lower(uuids[ordinal], size)

    def follow(
        self,
        decision: Decision | None,
        in_use: tuple[int, ...],
        *,
        takes_by_itself: bool,
        keeps_unused: bool,
        is_ahead: bool,
        is_guest: bool,
    ) -> str:
        """Let the claim name them; see :meth:`autogpu.claim.Claim.follow`.

        Returns:
            What to say of GPUs that the script was not expected to use; ``""`` for nothing.
        """
        uuids = self._counted()
        if not uuids:
            return ""
        unused = self._claim.follow(
            in_use,
            uuids,
            decision,
            takes_by_itself=takes_by_itself,
            keeps_unused=keeps_unused,
            is_ahead=is_ahead,
            is_guest=is_guest,
        )
        return self._other_gpus(in_use, uuids, unused) if takes_by_itself else ""

    def _other_gpus(self, in_use: Sequence[int], uuids: Sequence[str], unused: Collection[str]) -> str:
        """That the script uses other GPUs than those that were announced; it named them to C++ alone."""
        shared = set(self._claim.shares) - self._said
        self._said |= shared
        if not unused and not shared:
            return ""
        inventory = self._newest()
        known = by_uuid(inventory.devices if inventory else ())
        used = {ordinal: known[uuids[ordinal]].label for ordinal in in_use if uuids[ordinal] in known}
        given_back = sorted(known[uuid].label for uuid in unused if uuid in known)
        return messages.other_gpus(used, given_back, self._claim.shared, shared)
