"""Programs that use one GPU, told its number or with another one beside ``cuda``: none shares a GPU while one is idle.

Each says that it is imported, takes its GPU at a line of input, says so, and keeps it until another line.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Mapping, Sequence

import pytest

from tests.gpusim import Gpu
from tests.support.framework_environments import TORCHES, each_other, with_autogpu
from tests.support.framework_environments import torch as torch_of
from tests.support.framework_machines import BUSY, IDLE, Installed, all_at_once

pytestmark = [pytest.mark.framework, pytest.mark.timeout(600), pytest.mark.xdist_group("torch-numbers")]


@dataclass(frozen=True)
class Program:
    """How a program is written and started; ``{n}`` stands for the number in text, words, variables and files.

    Attributes:
        text: Follows the imports.
        words: Of the command line.
        lost_before_2_7: Where copies share a GPU or take a busy one: C++ counts the GPUs for a plain number, without
            a word to Python.
    """

    name: str
    text: str
    words: Sequence[str] = ()
    environ: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    lost_before_2_7: frozenset[str] = frozenset()

    def script(self, number: int) -> str:
        """Its text where it is to use that number."""
        begun = "import os, sys\nimport torch\nprint('imported', flush=True)\nsys.stdin.readline()\n"
        return f"{begun}{self.text.strip()}\nprint('ready', flush=True)\nsys.stdin.readline()\n".replace(
            "{n}", str(number)
        )


OPTIONS = "import argparse\nparser = argparse.ArgumentParser()\n"

TOLD = (
    Program(
        "an-option",
        f"{OPTIONS}parser.add_argument('--gpu', type=int)\nargs = parser.parse_args()\n"
        "device = torch.device('cuda:%d' % args.gpu if torch.cuda.is_available() else 'cpu')\n"
        "x = torch.ones(3, device=device)",
        words=("--gpu", "{n}"),
    ),
    Program(
        "a-configuration-that-is-executed",
        "exec(open('settings.py').read())\nx = torch.ones(3).to(device)",
        files={"settings.py": "device = torch.device('cuda', {n})\n"},
    ),
    Program("the-current-gpu", "torch.cuda.set_device(int(sys.argv[1]))\nx = torch.ones(3).cuda()", words=("{n}",)),
    Program("in-its-text", "x = torch.ones(3, device='cuda:{n}')"),
    Program(
        "a-module-beside-it",
        "from placement import place\nx = place(torch.ones(3), int(sys.argv[1]))",
        words=("{n}",),
        files={"placement.py": "import torch\ndef place(x, n):\n    device = f'cuda:{n}'\n    return x.to(device)\n"},
    ),
    Program(
        "a-plain-number",
        "x = torch.ones(3).cuda(int(sys.argv[2]))",
        words=("--gpu", "{n}"),
        lost_before_2_7=frozenset({"alone", "two"}),
    ),
    Program("after-a-look-at-the-first", "name = torch.cuda.get_device_name(0)\nx = torch.ones(3, device='cuda:{n}')"),
)

CUDA = "x = torch.ones(3, device='cuda')"
SAYS_CUDA = (
    Program("documented", f'"""Runs on cuda:2."""\nHELP = "such as cuda:2"\n{CUDA}'),
    Program("device-of-a-microphone", f"microphone = int(sys.argv[2])\n{CUDA}", words=("--device", "2")),
    Program("of-two-kinds", f"if len(sys.argv) > 9:\n    x = torch.ones(3, device='cuda:2')\n{CUDA}"),
)

# By name, the GPUs of the server and the numbers of those that are started in one instant.
CELLS = {"alone": ((BUSY, Gpu(), BUSY, Gpu()), (2,)), "two": (IDLE, (2, 2)), "loop": (IDLE, (0, 1, 2, 3))}


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
        if program.files:
            assert all_at_once(jobs[-1]) == ["ready"]
    if not program.files:
        assert all_at_once(*jobs) == ["ready"] * len(jobs), jobs[0].end().stderr
    return [job.contexts for job in jobs]


@pytest.mark.parametrize("release", [TORCHES[0], *each_other(TORCHES)], ids=str)
@pytest.mark.parametrize("program", [*TOLD, *SAYS_CUDA], ids=lambda program: program.name)
def test_a_program_shares_no_gpu_while_one_is_idle(program, release, importers, machine_of):
    lost = set()
    torch = Installed(with_autogpu(torch_of(release)), importers["torch"])
    for cell, (gpus, numbers) in CELLS.items():
        found = gpus_of(machine_of(torch, *gpus), program, numbers)
        assert all(len(contexts) == 1 for contexts in found), found
        used = {gpu for contexts in found for gpu in contexts}
        # Copies share a GPU, or one is on a busy one.
        if len(used) < len(found) or (cell == "alone" and not used <= {1, 3}):
            lost.add(cell)
    assert lost == (set() if release.version == TORCHES[0].version else program.lost_before_2_7)
