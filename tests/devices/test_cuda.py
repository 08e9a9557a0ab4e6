"""What a process may ask of the CUDA driver before anything in it has started CUDA."""

from __future__ import annotations

import json
import sys

import pytest

from tests.gpusim import Gpu, Server

ASKS = """
import json, sys
from autogpu.devices import cuda
print(json.dumps([cuda.can_run(tuple(version)) for version in json.loads(sys.argv[1])] + [cuda.visible_uuids()]))
"""


@pytest.mark.parametrize(
    ("driver", "runs"),
    [
        # From CUDA 11 on its first number decides, and before that all of it.
        pytest.param("12.4", {(11, 8): True, (12, 0): True, (12, 8): True, (13, 0): False}, id="minor-versions"),
        pytest.param("10.1", {(10, 0): True, (10, 1): True, (10, 2): False, (11, 0): False}, id="before-11"),
    ],
)
def test_a_driver_is_new_enough_or_not_and_nothing_is_started(driver, runs, tmp_path):
    with Server((Gpu(),), folder=tmp_path, cuda=driver) as server:
        done = server.run([sys.executable, "-c", ASKS, json.dumps(list(runs))])
        assert json.loads(done.stdout) == [*runs.values(), None], done.stderr
        assert server.calls(call="cuInit") == []


COUNTS = "import os; from autogpu.devices import cuda; print(cuda.count_elsewhere(os.environ), cuda.visible_uuids())"


@pytest.mark.parametrize(
    ("environ", "options", "said"),
    [
        pytest.param({}, {}, "3 None", id="all"),
        pytest.param({"CUDA_VISIBLE_DEVICES": "1"}, {}, "1 None", id="of-a-list"),
        pytest.param({"CUDA_VISIBLE_DEVICES": "-1"}, {}, "None None", id="of-none-it-does-not-start"),
        pytest.param({}, {"cuda_init": "UNKNOWN"}, "None None", id="after-a-suspend"),
    ],
)
def test_a_process_of_its_own_counts_what_this_one_would_see(environ, options, said, tmp_path):
    with Server((Gpu(), Gpu(), Gpu()), folder=tmp_path, **options) as server:
        done = server.run([sys.executable, "-c", COUNTS], environ=environ)
        assert done.stdout.strip() == said, done.stderr
