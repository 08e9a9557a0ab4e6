"""Where a script or a policy rules the idle GPUs out: what the process has, and what is said about it."""

from __future__ import annotations

import pytest

from tests.gpusim import Gpu
from tests.support.live_jobs import HOLD, leases

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(900)]

HARD_CODED = "import os\nos.environ['CUDA_VISIBLE_DEVICES'] = {value!r}\n" + HOLD
BUSY = Gpu(processes={5000007: "14GiB"}, utilization=99)


def test_a_busy_gpu_that_a_script_hard_codes_is_had_with_a_remedy(host):
    start = host(BUSY, *[Gpu()] * 3, script=HARD_CODED.format(value="0"))
    job = start(CUDA_DEVICE_ORDER="PCI_BUS_ID")
    assert job.ready() == "ready GPU:0"
    assert job.gpus() == [0]
    (line,) = job.end()[1]
    assert "busy while GPU 1, GPU 2 and GPU 3 are idle" in line
    assert line.endswith("; to have the idlest instead: AUTOGPU_SCRIPT=override")
    again = start(CUDA_DEVICE_ORDER="PCI_BUS_ID", AUTOGPU_SCRIPT="override")
    assert again.ready() == "ready GPU:0"
    assert again.gpus() == [3]


@pytest.mark.parametrize("value", ["", "-1"])
def test_a_script_that_wants_no_gpu_has_none_under_override(host, lease_folder, value):
    start = host(Gpu(), script=HARD_CODED.format(value=value))
    job = start(AUTOGPU_SCRIPT="override")
    assert job.ready() == "ready CPU:0"
    assert (job.gpus(), leases(lease_folder), job.end()) == ([], {}, (0, []))
