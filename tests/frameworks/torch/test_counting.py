"""The GPU count and the NVML indices that PyTorch gets before CUDA starts in the process."""

import pytest

from autogpu.frameworks.torch.counting import GpuCounter
from autogpu.variables import CUDA_VISIBLE_DEVICES, LEASE_DIR
from tests.support.fakes import FirstGpusFramework
from tests.support.holders import other_job
from tests.support.values import gpu

BUSY = gpu(0, pids=[7], used_gib=9, busy=90)


@pytest.fixture
def first(started):
    """Return a function that starts a process whose framework uses the first GPUs of CUDA's order.

    CUDA's order begins with the GPU that is given last.
    """
    return lambda *devices, **options: started(*devices, kind=FirstGpusFramework, counted=devices[::-1], **options)


@pytest.fixture
def other(tmp_path):
    """Start another job that holds GPU memory, given in GiB and keyed by GPU index."""
    return lambda held: other_job(
        {LEASE_DIR: str(tmp_path)}, {gpu(index).uuid: gib << 30 for index, gib in held.items()}
    )


def test_count_is_known_before_cuda_starts_if_it_is_certain(first, other):
    process = first(gpu(0), gpu(1), gpu(2))
    with other({0: 24, 1: 24, 2: 24}):
        assert GpuCounter(process.allocation).certain_count((13, 0)) == 3
    process.environ[CUDA_VISIBLE_DEVICES] = "1"
    assert GpuCounter(process.allocation).certain_count((13, 0)) == 1
    assert process.holders == ()


@pytest.mark.parametrize(
    "options",
    [{"AUTOGPU_BUSY": "cpu"}, {"AUTOGPU_COUNT": "0"}, {"AUTOGPU_NEED": "99GiB"}, {"CUDA_VISIBLE_DEVICES": "-1"}],
    ids=lambda options: "=".join(*options.items()),
)
def test_count_is_unknown_if_the_policy_may_give_no_gpu(first, options):
    assert GpuCounter(first(gpu(0), gpu(1), **options).allocation).certain_count((13, 0)) is None


def test_count_is_unknown_if_cuda_is_too_old_or_fails_or_has_started(first):
    process = first(gpu(0), gpu(1))
    assert GpuCounter(process.allocation).certain_count((14, 0)) is None
    process.cuda.starts_elsewhere = False
    assert GpuCounter(process.allocation).certain_count((13, 0)) is None
    process.cuda.starts_elsewhere = True
    process.cuda.initialise()
    assert GpuCounter(process.allocation).certain_count((13, 0)) is None


def test_nvml_indices_are_known_unless_the_script_writes_a_list(started):
    process = started(BUSY, gpu(1))
    idlest_first = [1, 0]
    assert GpuCounter(process.allocation).nvml_indices() == idlest_first
    process.environ[CUDA_VISIBLE_DEVICES] = "0"
    assert GpuCounter(process.allocation).nvml_indices() == []
    del process.environ[CUDA_VISIBLE_DEVICES]
    assert GpuCounter(process.allocation).nvml_indices() == idlest_first


@pytest.mark.parametrize("found", ["1", "", "9"])
def test_nvml_indices_are_unknown_if_autogpu_wrote_no_list(started, found):
    assert GpuCounter(started(gpu(0), gpu(1), CUDA_VISIBLE_DEVICES=found).allocation).nvml_indices() == []
