"""The lines of ``autogpu run --hold`` about the GPUs that it holds for a program."""

import pytest

from autogpu.reporting.held import held
from autogpu.text import GIB
from tests.support.selections import claim, decided
from tests.support.values import gpu

# What the lines say of a free GPU.
IDLE = "(NVIDIA TITAN RTX, 24.0 of 24.0 GiB free)"
ONE = [gpu(0)]
TWO = [gpu(0), gpu(1)]
THREE = [gpu(0), gpu(1), gpu(2)]
BUSY = gpu(0, pids=[7], used_gib=9, busy=90)
ON_BUSY = "shared: pid 7 (no claim), 90 % busy"


@pytest.mark.parametrize(
    ("gpus", "asked", "expected"),
    [
        pytest.param(ONE, {"need_bytes": 6 * GIB}, ["6.0 GiB reserved"], id="of-one"),
        pytest.param(TWO, {"need_bytes": 6 * GIB, "count": 2}, ["6.0 GiB reserved on each"], id="of-two"),
        pytest.param(ONE, {}, [], id="without-need"),
        pytest.param([BUSY], {"need_bytes": 20 * GIB, "wait_s": 0.0}, [ON_BUSY], id="best-effort"),
    ],
)
def test_lines_of_a_program_that_holds_gpus_have_the_reserved_memory(gpus, asked, expected):
    assert held(decided(*gpus, **asked), "serve", (), is_explained=False)[1:] == expected


def test_lines_of_a_program_that_holds_gpus_name_the_shared_ones():
    busy = decided(gpu(0), held={0: claim(24, age_s=60)}, wait_s=0)
    first, second = held(busy, "serve", busy.devices, is_explained=False)
    assert first == f"GPU 0 {IDLE} for serve: the only one here"
    assert second.startswith("not reserved: other jobs may share it; for a free GPU: --busy wait; shared: ")
    idle = decided(*THREE, held={0: claim(24, age_s=3600), 2: claim(24, age_s=3600)}, count=3)
    shared = [device for device in idle.devices if device.index != 1]
    _, second = held(idle, "serve", shared, is_explained=False)
    assert second.startswith("GPU 2 and GPU 0 not reserved: other jobs may share them; ")


def test_line_of_a_program_that_holds_an_idle_gpu_is_alone():
    assert held(decided(gpu(0)), "serve", (), is_explained=False) == [f"GPU 0 {IDLE} for serve: the only one here"]
