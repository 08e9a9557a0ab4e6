"""Programs with a number, alone on a busy server, two at once, and in a loop over the numbers: none shares a GPU."""

from __future__ import annotations

import pytest

from tests.frameworks.torch.numbers import SAYS_CUDA, TOLD
from tests.gpusim import Gpu
from tests.support.framework_environments import TORCHES, each_older, with_autogpu
from tests.support.framework_environments import torch as torch_of
from tests.support.framework_machines import BUSY, Installed

IDLE = (Gpu(), Gpu(), Gpu(), Gpu())
HALF_BUSY = (BUSY, Gpu(), BUSY, Gpu())

pytestmark = [pytest.mark.framework, pytest.mark.timeout(600), pytest.mark.xdist_group("torch-numbers")]

# By name, the GPUs of the server and the numbers of those that are started in one instant.
CELLS = {"alone": (HALF_BUSY, (2,)), "two": (IDLE, (2, 2)), "loop": (IDLE, (0, 1, 2, 3))}


def gpus_of(machine, program, numbers):
    """Where its copies are that take their GPUs in the same instant."""
    jobs = []
    for number in numbers:
        # Copies share a folder, and so its files: each is started when the one before has read its own.
        for name, text in program.files.items():
            (machine.project / name).write_text(text.replace("{n}", str(number)))
        words = [word.replace("{n}", str(number)) for word in program.words]
        environ = {name: value.replace("{n}", str(number)) for name, value in program.environ.items()}
        jobs.append(machine.start(program.script(number), arguments=words, **environ))
        assert jobs[-1].line() == "imported"
        if program.files:
            jobs[-1].go_on()
            assert jobs[-1].line() == "ready"
    if not program.files:
        for job in jobs:
            job.go_on()
        assert [job.line() for job in jobs] == ["ready"] * len(jobs), jobs[0].end().stderr
    return [job.contexts for job in jobs]


def is_lost(cell, found):
    """Whether copies share a GPU, or one is on a busy one."""
    gpus = [gpu for contexts in found for gpu in contexts]
    return len(set(gpus)) < len(gpus) or (cell == "alone" and not {1, 3}.issuperset(gpus))


@pytest.mark.parametrize("release", [TORCHES[0], *each_older(TORCHES)], ids=lambda release: release.version)
@pytest.mark.parametrize("program", [*TOLD, *SAYS_CUDA], ids=lambda program: program.name)
def test_a_program_shares_no_gpu_while_one_is_idle(program, release, importers, machine_of):
    lost = set()
    torch = Installed(with_autogpu(torch_of(release)), importers["torch"])
    for cell, (gpus, numbers) in CELLS.items():
        found = gpus_of(machine_of(torch, *gpus), program, numbers)
        assert all(len(contexts) == 1 for contexts in found), found
        if is_lost(cell, found):
            lost.add(cell)
    assert lost == (set() if release == TORCHES[0] else program.lost_before_2_7)
