"""What is wrong with a GPU itself, whichever job uses it. Pure.

The memory_faults of its memory are those for which NVIDIA's guide asks for a reset or a replacement (GPU Memory Error
Management, docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt); a job on such a GPU may end with an Xid error at any time.
"""

from __future__ import annotations

from autogpu.reporting.text import counted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from autogpu.devices.model import Device


def memory_faults(device: Device) -> tuple[str, ...]:
    """Of its memory, in words; they stay until the administrator acts."""
    found = []
    if device.remapping_failed:
        found.append("row remapping failed")
    if device.remapping_pending:
        found.append("row remapping pending until a reset")
    if device.retirement_pending:
        found.append("page retirement pending until a reset")
    if device.uncorrected_errors:
        found.append(f"{counted(device.uncorrected_errors, 'uncorrectable memory error')} since boot")
    return tuple(found)


def health_problems(device: Device) -> tuple[str, ...]:
    """All that makes it worse than a healthy one at this moment."""
    return memory_faults(device) + (("slowed down by heat",) if device.is_too_hot else ())
