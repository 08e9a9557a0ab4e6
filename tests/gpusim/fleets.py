"""Fleets of real servers, for example ``python -m tests.gpusim --fleet dgx-a100 -- python train.py``.

Each figure is published. The table names the sources, and the figures that are not published.

============= ==================================================================================================
name, memory  ``nvidia-smi -q -x`` of T4, L40S, A100, H100, B200 and GB200 in NVIDIA/k8s-test-infra,
              ``tests/e2e/go/assertions/nvidiasmi/testdata/hardware``. RTX 2080 Ti, RTX 4090 and H200:
              ``nvidia-smi`` output that owners posted (drivers 525 to 610), because NVIDIA publishes GB only.
capability    https://developer.nvidia.com/cuda-gpus
processors    CUDA cores in NVIDIA's data sheets, divided by the cores of a multiprocessor. Not published for B200 and
              GB200: the simulator's default.
bus ids       H100, B200, GB200: the captures above. DGX A100: ``pkg/gpu/mocknvml/configs`` beside them. RTX 4090:
              github.com/NVIDIA/nccl-tests/issues/307. L40S: github.com/olealgoritme/gddr6/pull/19. Not published for
              T4, RTX 2080 Ti and H200: consecutive buses.
NVLinks       DGX A100: github.com/NVIDIA/nccl/issues/1505. H100: github.com/aliyun/SimAI/issues/128. H200:
              github.com/vllm-project/vllm/issues/13582. B200: github.com/sgl-project/sglang/issues/8120. GB200:
              github.com/NVIDIA/k8s-test-infra/issues/371. RTX 2080 Ti: a bridge connects two
              cards by two NVLinks (github.com/sgl-project/sglang/issues/748).
NVSwitches    DGX A100, H100: as above. Not published for the others: one made-up address stands for all switches.
PCI Express   RTX 4090: NCCL's report in the issue above. Not set for the others.
MIG           a100-mig is dgx-a100 with four cards cut as in ``deployments/systemd/config-default.yaml`` of
              NVIDIA/mig-parted: two ``all-balanced``, one ``all-1g.5gb``, one ``all-3g.20gb``. ``mig.py`` has the
              sources for the instances.
count         T4: AWS g4dn.12xlarge (github.com/pytorch/test-infra/pull/602). L40S, RTX 4090 and servers with
              NVSwitch: as above. RTX 2080 Ti: a workstation with four cards, in two pairs.
============= ==================================================================================================
"""

from __future__ import annotations

from dataclasses import replace
from typing import Mapping, Sequence

from tests.gpusim.fleet import Fleet, Gpu

# Stand-in address of every NVSwitch whose address is not published.
NVSWITCH = "0000:ff:00.0"


def _at(*buses: str) -> list[str]:
    return [f"0000:{bus}:00.0" for bus in buses]


def _switched(card: Gpu, buses: list[str], nvlinks: list[str]) -> Fleet:
    return Fleet(gpus=tuple(replace(card, pci=pci, nvlinks=nvlinks) for pci in buses))


def _cut(fleet: Fleet, layouts: Sequence[Sequence[str] | None]) -> Fleet:
    return replace(fleet, gpus=tuple(replace(card, mig=layout) for card, layout in zip(fleet.gpus, layouts)))


T4 = Gpu(name="Tesla T4", memory="15360MiB", compute_capability="7.5", multiprocessors=40)
RTX_2080_TI = Gpu(name="NVIDIA GeForce RTX 2080 Ti", memory="11264MiB", compute_capability="7.5", multiprocessors=68)
RTX_4090 = Gpu(name="NVIDIA GeForce RTX 4090", memory="24564MiB", compute_capability="8.9", multiprocessors=128)
L40S = Gpu(name="NVIDIA L40S", memory="46068MiB", compute_capability="8.9", multiprocessors=142)
A100 = Gpu(name="NVIDIA A100-SXM4-40GB", memory="40960MiB", compute_capability="8.0", multiprocessors=108)
H100 = Gpu(name="NVIDIA H100 80GB HBM3", memory="81559MiB", compute_capability="9.0", multiprocessors=132)
H200 = Gpu(name="NVIDIA H200", memory="143771MiB", compute_capability="9.0", multiprocessors=132)
B200 = Gpu(name="NVIDIA B200", memory="183359MiB", compute_capability="10.0")
GB200 = Gpu(name="NVIDIA GB200", memory="189471MiB", compute_capability="10.0")

_RTX_2080_TI_AT = _at("01", "02", "03", "04")
_H100_NVSWITCHES = [switch for switch, links in zip(_at("05", "06", "07", "08"), (4, 5, 5, 4)) for _ in range(links)]
_DGX_A100 = _switched(
    A100,
    _at("07", "0f", "47", "4e", "87", "90", "b7", "bd"),
    [switch for switch in _at("c4", "c5", "c6", "c7", "c8", "c9") for _ in range(2)],
)
_BALANCED = ("3g.20gb", "2g.10gb", "1g.5gb", "1g.5gb")

FLEETS: Mapping[str, Fleet] = {
    "t4": Fleet(gpus=(T4,) * 4),
    "rtx-2080-ti": Fleet(
        gpus=tuple(
            replace(RTX_2080_TI, pci=pci, nvlinks=[_RTX_2080_TI_AT[place ^ 1]] * 2)
            for place, pci in enumerate(_RTX_2080_TI_AT)
        )
    ),
    "rtx-4090": Fleet(
        gpus=tuple(
            replace(RTX_4090, pci=pci, path="0/0" if pci < "0000:80" else "1/0")
            for pci in _at("4e", "4f", "50", "51", "ce", "cf", "d0", "d1")
        )
    ),
    "l40s": Fleet(gpus=tuple(replace(L40S, pci=pci) for pci in _at("21", "41", "a1", "c1"))),
    "dgx-a100": _DGX_A100,
    "a100-mig": _cut(_DGX_A100, ((None,) * 4 + (_BALANCED, _BALANCED, ("1g.5gb",) * 7, ("3g.20gb",) * 2))),
    "h100": _switched(H100, _at("53", "64", "75", "86", "97", "a8", "b9", "ca"), _H100_NVSWITCHES),
    "h200": _switched(H200, _at("01", "02", "03", "04", "05", "06", "07", "08"), [NVSWITCH] * 18),
    "b200": _switched(B200, _at("8f", "90", "96", "97", "c4", "c5", "cb", "cc"), [NVSWITCH] * 18),
    "gb200": _switched(GB200, _at("29", "3f", "9c", "b2"), [NVSWITCH] * 18),
}
