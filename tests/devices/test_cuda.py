"""Questions to the CUDA driver from a process that has not initialised CUDA."""

import json
import sys

import pytest

from tests.gpusim import Gpu, Server

ASKS = """
import json, os, sys
from autogpu.devices import cuda
versions = map(tuple, json.loads(sys.argv[1]))
found = [cuda.gpus_elsewhere(os.environ, version) for version in versions]
print(json.dumps([[vars(gpu) for gpu in gpus] for gpus in found] + [cuda.visible_uuids()]))
"""


def asked(server, *versions, environ=None):
    done = server.run([sys.executable, "-c", ASKS, json.dumps(versions)], environ=environ)
    *found, own = json.loads(done.stdout)
    assert own is None, done.stderr
    return found


def counted(*arguments, **options):
    return [len(gpus) for gpus in asked(*arguments, **options)]


@pytest.mark.parametrize(
    ("driver", "counts"),
    [
        # From CUDA 11 on the major version decides. Before that the whole version does.
        pytest.param("12.4", {(11, 8): 1, (12, 0): 1, (12, 8): 1, (13, 0): 0}, id="major-version-decides"),
        pytest.param("10.1", {(10, 0): 1, (10, 1): 1, (10, 2): 0, (11, 0): 0}, id="whole-version-decides"),
    ],
)
def test_driver_version_is_checked_without_cuda_in_this_process(driver, counts, tmp_path):
    with Server((Gpu(),), folder=tmp_path, cuda=driver) as server:
        assert counted(server, *counts) == [*counts.values()]


@pytest.mark.parametrize(
    ("environ", "options", "count"),
    [
        pytest.param({}, {}, 3, id="no-list"),
        pytest.param({"CUDA_VISIBLE_DEVICES": "1"}, {}, 1, id="list-of-one-gpu"),
        pytest.param({"CUDA_VISIBLE_DEVICES": "-1"}, {}, 0, id="list-of-no-gpu"),
        pytest.param({}, {"cuda_init": "UNKNOWN"}, 0, id="cuda-fails-after-a-suspend"),
    ],
)
def test_child_process_counts_the_gpus_that_this_process_would_see(environ, options, count, tmp_path):
    with Server((Gpu(), Gpu(), Gpu()), folder=tmp_path, **options) as server:
        assert counted(server, (12, 0), environ=environ) == [count]


def test_child_process_returns_the_properties_of_each_gpu(tmp_path):
    gpus = (Gpu(name="NVIDIA A100-SXM4-40GB", memory="40GiB", compute_capability="8.0", multiprocessors=108), Gpu())
    with Server(gpus, folder=tmp_path) as server:
        ((first, _),) = asked(server, (12, 0), environ={"CUDA_DEVICE_ORDER": "PCI_BUS_ID"})
    total = first.pop("memory_total_bytes")
    assert first == {"name": "NVIDIA A100-SXM4-40GB", "major": 8, "minor": 0, "multiprocessors": 108}
    assert 39 << 30 < total <= 40 << 30
