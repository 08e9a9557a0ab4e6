"""Read what connects the GPUs through NVML, as plain lists. Reads no more than is asked for, and never raises.

Of eight GPUs that is 31 calls with NVSwitch, 120 with the six NVLinks of a V100 each, and 16 without NVLink; for a job
of several GPUs one more for each pair without NVLink, of which there may be 28.
"""

from __future__ import annotations

from itertools import combinations

from autogpu.devices.nvml import text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Collection, Mapping, Sequence

    from autogpu.devices.nvml import Nvml

# NVML_NVLINK_MAX_LINKS is of the headers that pynvml was made from; it ends where the GPU has no more.
_MOST_LINKS = 36

_NVLINK_TO_SWITCH = 2  # NVML_NVLINK_DEVICE_TYPE_SWITCH of nvmlIntNvLinkDeviceType_t
_P2P_OVER_NVLINK, _P2P_OK = 2, 0  # NVML_P2P_CAPS_INDEX_NVLINK and NVML_P2P_STATUS_OK

# nvmlGpuTopologyLevel_t
_ANCESTORS = {0: "internal", 10: "single", 20: "multiple", 30: "hostbridge", 40: "node", 50: "system"}


def read_topology(
    nvml: Nvml, devices: Sequence[Mapping[str, Any]], uuids: Collection[str], *, with_paths: bool
) -> dict[str, Any]:
    """What connects the GPUs ``uuids`` to each other, and by NVLink to any GPU of the machine.

    A call that fails tells nothing, and takes away none of the other answers.

    Args:
        devices: Every card that could be read, as :func:`autogpu.devices.nvml.read_inventory` describes it.
        with_paths: Whether to ask how near two of them are that no NVLink connects.
    """
    mine = [device for device in devices if device["uuid"] in uuids]
    handles = {device["uuid"]: nvml.answer("nvmlDeviceGetHandleByIndex", device["index"]) for device in mine}
    handles = {uuid: handle for uuid, handle in handles.items() if handle is not None}
    at = {device["pci_bus_id"].upper(): device["uuid"] for device in devices if device["pci_bus_id"]}
    ends, elsewhere = {}, []
    for uuid, handle in handles.items():
        ends[uuid], leads_elsewhere = _ends_of_links(nvml, handle, at)
        if leads_elsewhere:
            elsewhere.append(uuid)
    nvlinks = {(uuid, end): there.count(end) for uuid, there in ends.items() for end in there}
    switched = _switched(nvml, handles, elsewhere, nvlinks)
    connected = {frozenset(pair) for pair in [*nvlinks, *switched]}
    pairs = [pair for pair in combinations(handles, 2) if with_paths and frozenset(pair) not in connected]
    levels = {pair: nvml.answer("nvmlDeviceGetTopologyCommonAncestor", *map(handles.get, pair)) for pair in pairs}
    return {
        "nvlinks": list(nvlinks.items()),
        "switched": switched,
        "ancestors": [(pair, _ANCESTORS[level]) for pair, level in levels.items() if level in _ANCESTORS],
    }


def _ends_of_links(nvml: Nvml, gpu: Any, at: Mapping[str, str]) -> tuple[list[str], bool]:
    """The GPU at the end of each active NVLink, and whether one leads to none of the machine's."""
    ends: list[str] = []
    leads_elsewhere = False
    for link in range(_MOST_LINKS):
        is_active = nvml.answer("nvmlDeviceGetNvLinkState", gpu, link)
        if is_active is None:
            break  # there are no more, or none at all
        if not is_active:
            continue
        # All links of a GPU lead to NVSwitch, or none does. Where that is not told, as in a virtual machine that does
        # not see the switches, the ends are asked for.
        if not (ends or leads_elsewhere) and _leads_to_switch(nvml, gpu, link):
            return [], True
        remote = nvml.answer("nvmlDeviceGetNvLinkRemotePciInfo", gpu, link)
        end = at.get(text(remote.busId).upper()) if remote is not None else None
        if end is None:
            leads_elsewhere = True
        else:
            ends.append(end)
    return ends, leads_elsewhere


def _leads_to_switch(nvml: Nvml, gpu: Any, link: int) -> bool:
    return bool(nvml.answer("nvmlDeviceGetNvLinkRemoteDeviceType", gpu, link) == _NVLINK_TO_SWITCH)


def _switched(
    nvml: Nvml, handles: Mapping[str, Any], uuids: Sequence[str], nvlinks: Collection[tuple[str, str]]
) -> list[tuple[str, str]]:
    """The pairs that reach each other over NVSwitch, of GPUs with links that lead to no GPU.

    Who reaches one GPU of a fabric reaches all of it, so each is compared with one GPU of each fabric.
    """
    fabrics: list[list[str]] = []
    for uuid in uuids:
        for fabric in fabrics:
            pair = (fabric[0], uuid)
            status = nvml.answer("nvmlDeviceGetP2PStatus", handles[pair[0]], handles[uuid], _P2P_OVER_NVLINK)
            if status == _P2P_OK and pair not in nvlinks:
                fabric.append(uuid)
                break
        else:
            fabrics.append([uuid])
    return [(one, other) for fabric in fabrics for place, one in enumerate(fabric) for other in fabric[place + 1 :]]
