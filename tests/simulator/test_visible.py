"""Which simulated GPUs CUDA shows to a process, and in which order."""

from __future__ import annotations

import time
from typing import Iterator

import pytest

from tests.gpusim import Gpu, Server
from tests.support.simulator_client import run_cuda

UUIDS = [
    "GPU-aaaa0000-1111-2222-3333-444444444444",
    "GPU-bbbb0000-1111-2222-3333-444444444444",
    "GPU-bbbb1111-1111-2222-3333-444444444444",
    "GPU-cccc0000-1111-2222-3333-444444444444",
]


@pytest.fixture(scope="module")
def four(tmp_path_factory) -> Iterator[Server]:
    gpus = [
        Gpu(uuid=UUIDS[0], compute_capability="6.1", multiprocessors=28),
        Gpu(uuid=UUIDS[1], compute_capability="7.5", multiprocessors=46),
        Gpu(uuid=UUIDS[2], compute_capability="7.5", multiprocessors=72),
        Gpu(uuid=UUIDS[3], compute_capability="6.1", multiprocessors=20),
    ]
    with Server(gpus, folder=tmp_path_factory.mktemp("four")) as server:
        yield server


def seen(server: Server, **environ: str) -> list[int]:
    program = """
        error = cuda.cuInit(0)
        say(*([uuid(i) for i in range(count())] if error == 0 else [error]))
    """
    said = run_cuda(server, program, **environ)[0]
    uuids = [gpu.uuid for gpu in server.gpus]
    return [] if said == [100] else [uuids.index(each) for each in said]


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        pytest.param("", [], id="empty-hides-all"),
        pytest.param("2,1", [2, 1], id="order-of-the-list"),
        pytest.param("-1", [], id="minus-one"),
        pytest.param("-1,0", [], id="invalid-entry-first"),
        pytest.param("0,2,-1,1", [0, 2], id="invalid-entry-ends"),
        pytest.param("0,9,1", [0], id="out-of-range-ends"),
        pytest.param("0,,1", [0], id="empty-entry-ends"),
        pytest.param("0,", [0], id="trailing-comma"),
        pytest.param("1,1", [], id="twice-hides-all"),
        pytest.param("0,1,0", [], id="twice-later-hides-all"),
        pytest.param("0,9,0", [0], id="ended-before-twice"),
        pytest.param("NoDevFiles", [], id="no-number"),
        pytest.param("0,NoDevFiles,1", [0], id="no-number-later"),
        pytest.param("1gpu2,2ampere", [1, 2], id="read-like-strtol"),
        pytest.param(" 3 , 0 ", [3, 0], id="spaces"),
        pytest.param("+1", [1], id="plus"),
        pytest.param(f"{UUIDS[3]},{UUIDS[0]}", [3, 0], id="uuids"),
        pytest.param("GPU-c,GPU-a", [3, 0], id="unique-prefix"),
        pytest.param("GPU-bbbb1", [2], id="longer-prefix"),
        pytest.param("GPU-b", [], id="ambiguous-prefix"),
        pytest.param("GPU-a,GPU-b,GPU-c", [0], id="ambiguous-prefix-ends"),
        pytest.param("GPU-a,GPU-aaaa", [], id="twice-by-prefix-hides-all"),
        pytest.param("GPU-dddd", [], id="unknown-uuid"),
        pytest.param("0,GPU-c", [0], id="index-then-uuid"),
        pytest.param("GPU-c,0", [3], id="uuid-then-index"),
        pytest.param("MIG-GPU-aaaa0000/0/0", [], id="no-mig"),
    ],
)
def test_visible_devices(four, visible, expected):
    assert seen(four, CUDA_VISIBLE_DEVICES=visible, CUDA_DEVICE_ORDER="PCI_BUS_ID") == expected


def test_an_empty_entry_is_no_prefix_of_the_only_gpu(tmp_path):
    with Server([Gpu(uuid=UUIDS[0])], folder=tmp_path) as server:
        assert seen(server, CUDA_VISIBLE_DEVICES="GPU-a,") == [0]


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        pytest.param({}, [2, 1, 0, 3], id="fastest-first"),
        pytest.param({"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}, [2, 1, 0, 3], id="fastest-first-said"),
        pytest.param({"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, [0, 1, 2, 3], id="pci"),
        pytest.param({"CUDA_VISIBLE_DEVICES": "0,3"}, [2, 3], id="indices-follow-the-order"),
        pytest.param({"CUDA_VISIBLE_DEVICES": "GPU-a,GPU-c"}, [0, 3], id="uuids-dont"),
    ],
)
def test_device_order(four, environ, expected):
    assert seen(four, **environ) == expected


def test_equal_gpus_stand_in_pci_order_and_speed_overrules(tmp_path):
    with Server([Gpu(), Gpu(), Gpu(speed=2_000_000)], folder=tmp_path) as server:
        assert seen(server) == [2, 0, 1]


def test_the_log_counts_gpus_in_pci_order(four):
    run_cuda(four, "cuda.cuInit(0); context(0); allocate(1 << 20)", CUDA_VISIBLE_DEVICES="0")
    pid = four.calls()[-1].pid
    assert [(call.call, call.gpu) for call in four.calls(pid=pid)] == [
        ("cuInit", None),
        ("context", 2),
        ("allocate", 2),
    ]
    times = [call.time_s for call in four.calls(pid=pid)]
    assert times == sorted(times)
    assert times[-1] <= time.monotonic()
