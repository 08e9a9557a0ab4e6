"""What connects the GPUs decides among equally idle ones, in a whole process."""

from __future__ import annotations

import pytest

from tests.gpusim import Gpu
from tests.support.framework_jobs import HOLD, USE_SEVERAL

pytestmark = [pytest.mark.framework, pytest.mark.timeout(600), pytest.mark.xdist_group("topology")]

AT = [f"0000:0{bus}:00.0" for bus in range(1, 5)]
# GPU 0 belongs to GPU 2, and GPU 1 to GPU 3: without them two jobs would be given GPU 3 and GPU 2.
TWO_PAIRS = tuple(Gpu(pci=AT[place], nvlinks=[AT[place ^ 2]] * 4, path=f"0/{place}") for place in range(4))


def test_a_job_of_two_gets_a_pair_and_the_next_one_the_other(framework_pythons, machine_of):
    machine = machine_of(framework_pythons["torch"], *TWO_PAIRS, AUTOGPU_LEVEL="explain", AUTOGPU_COUNT="2")
    jobs = []
    for pair in ([1, 3], [0, 2]):
        jobs.append(machine.start(USE_SEVERAL["torch"].format(count=2)))
        assert jobs[-1].line() == "ready 2"
        assert sorted(jobs[-1].contexts) == pair
    said = [job.end().said for job in jobs]
    assert "autogpu:   4 NVLinks between GPU 1 and GPU 3" in said[0]
    assert "autogpu:   4 NVLinks between GPU 0 and GPU 2" in said[1]


def test_jobs_of_one_leave_a_pair_whole(framework_pythons, machine_of):
    machine = machine_of(framework_pythons["torch"], *TWO_PAIRS)
    for gpu in (3, 1):
        job = machine.start(HOLD["torch"])
        assert job.line() == "ready cuda:0 4"
        assert job.contexts == [gpu]
