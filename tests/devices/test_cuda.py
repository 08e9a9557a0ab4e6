"""What a process may ask of the CUDA driver before anything in it has started CUDA."""

import json
import sys

import pytest

from tests.gpusim import Gpu, Server

ASKS = """
import json, os, sys
from autogpu.devices import cuda
versions = map(tuple, json.loads(sys.argv[1]))
print(json.dumps([*(cuda.count_elsewhere(os.environ, version) for version in versions), cuda.visible_uuids()]))
"""


def asked(server, *versions, environ=None):
    done = server.run([sys.executable, "-c", ASKS, json.dumps(versions)], environ=environ)
    *counts, own = json.loads(done.stdout)
    assert own is None, done.stderr
    return counts


@pytest.mark.parametrize(
    ("driver", "counts"),
    [
        # From CUDA 11 on its first number decides, and before that all of it.
        pytest.param("12.4", {(11, 8): 1, (12, 0): 1, (12, 8): 1, (13, 0): None}, id="minor-versions"),
        pytest.param("10.1", {(10, 0): 1, (10, 1): 1, (10, 2): None, (11, 0): None}, id="before-11"),
    ],
)
def test_a_driver_is_new_enough_or_not_and_nothing_is_started_here(driver, counts, tmp_path):
    with Server((Gpu(),), folder=tmp_path, cuda=driver) as server:
        assert asked(server, *counts) == [*counts.values()]


@pytest.mark.parametrize(
    ("environ", "options", "count"),
    [
        pytest.param({}, {}, 3, id="all"),
        pytest.param({"CUDA_VISIBLE_DEVICES": "1"}, {}, 1, id="of-a-list"),
        pytest.param({"CUDA_VISIBLE_DEVICES": "-1"}, {}, None, id="of-none-it-does-not-start"),
        pytest.param({}, {"cuda_init": "UNKNOWN"}, None, id="after-a-suspend"),
    ],
)
def test_a_process_of_its_own_counts_what_this_one_would_see(environ, options, count, tmp_path):
    with Server((Gpu(), Gpu(), Gpu()), folder=tmp_path, **options) as server:
        assert asked(server, (12, 0), environ=environ) == [count]
