"""The number of GPUs of this process and their NVML indices, found without a start of CUDA in this process.

Nothing here claims a GPU or waits for one.
"""

from __future__ import annotations

from typing import Sequence

from autogpu.policy.model import Policy

TYPE_CHECKING = False
if TYPE_CHECKING:
    from autogpu.allocation import Allocation
    from autogpu.devices.model import CudaProperties


class GpuCounter:
    """Predicts which GPUs CUDA will count in the process of an allocation."""

    def __init__(self, allocation: Allocation) -> None:
        self._allocation = allocation
        # Answers of CUDA in another process, keyed by the list of GPUs that it read.
        self._found_elsewhere: dict[tuple[str, ...], tuple[CudaProperties, ...] | None] = {}

    def certain_count(self, built_for: tuple[int, int]) -> int | None:
        """Return how many GPUs CUDA will count; ``None`` if that is uncertain, or if the policy may give no GPU.

        ``built_for`` is the version of CUDA, as (major, minor), that PyTorch was built for.
        """
        allocation = self._allocation
        with allocation.lock:
            is_begun = allocation.holding is not None or allocation.cuda.visible_uuids() is not None
            if is_begun or not _always_gives_a_gpu(allocation.policy):
                return None
            allocation.follow_environment()
            inventory = allocation.readings.newest
            visible = allocation.visible
            if inventory is None or inventory.unreadable or visible.candidates or allocation.grant.is_none:
                return None
            count = len(self._elsewhere(built_for) or ())
            return count if count == len(visible.pool) > 0 else None

    def gpus(self, built_for: tuple[int, int]) -> Sequence[CudaProperties | None]:
        """Return the GPUs that CUDA will count. Entries are ``None`` if no other process could ask CUDA."""
        with self._allocation.lock:
            self._allocation.follow_environment()
            found = self._elsewhere(built_for)
            return [None] * len(self._allocation.visible.pool) if found is None else found

    def _elsewhere(self, built_for: tuple[int, int]) -> Sequence[CudaProperties] | None:
        allocation = self._allocation
        pool = allocation.visible.pool
        # Scripts ask repeatedly, and each question to CUDA starts a process.
        if pool not in self._found_elsewhere:
            environ = allocation.gpu_list.environ_of_cuda()
            self._found_elsewhere[pool] = allocation.cuda.gpus_elsewhere(environ, built_for)
        return self._found_elsewhere[pool]

    def nvml_indices(self) -> list[int]:
        """Return the NVML index of each GPU, in CUDA's order. For a MIG instance it is the index of the card.

        Return ``[]`` if autogpu has written no list for CUDA, or if the script has changed the variable since.
        """
        allocation = self._allocation
        inventory = allocation.readings.newest
        uuids = allocation.uuids or ()
        if inventory is None or allocation.visible.written is None or allocation.gpu_list.has_changed:
            return []
        index = {device.uuid: device.index for device in inventory.devices}
        return [index[uuid] for uuid in uuids] if index.keys() >= set(uuids) else []


def _always_gives_a_gpu(policy: Policy) -> bool:
    """True if every process gets a GPU under this policy, at once or after a wait, and sees the whole pool."""
    return (
        policy.count != 0
        and policy.busy in ("share", "wait")
        and policy.need_bytes is None
        and policy.visible == "pool"
    )
