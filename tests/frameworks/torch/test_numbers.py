"""Programs that use one GPU share no GPU while another is idle.

Some programs use a GPU number. Others use ``cuda`` and contain a number that means something else. Each program prints
"imported", takes its GPU at a line of input, prints "ready", and keeps the GPU until another line.
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
    """The text of a program and how it is started; ``{n}`` stands for the GPU number in every field.

    Attributes:
        text: The code after the imports.
        words: Arguments on the command line.
        lost_before_2_7: The ``CELLS`` in which copies share a GPU or take a busy one before PyTorch 2.7. In these
            releases, C++ counts the GPUs for a plain number and calls nothing in Python.
    """

    name: str
    text: str
    words: Sequence[str] = ()
    environ: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    lost_before_2_7: frozenset[str] = frozenset()

    def script(self, number: int) -> str:
        begun = "import os, sys\nimport torch\nprint('imported', flush=True)\nsys.stdin.readline()\n"
        return f"{begun}{self.text.strip()}\nprint('ready', flush=True)\nsys.stdin.readline()\n".replace(
            "{n}", str(number)
        )


OPTIONS = "import argparse\nparser = argparse.ArgumentParser()\n"

TOLD = (
    Program(
        "command-line-option",
        f"{OPTIONS}parser.add_argument('--gpu', type=int)\nargs = parser.parse_args()\n"
        "device = torch.device('cuda:%d' % args.gpu if torch.cuda.is_available() else 'cpu')\n"
        "x = torch.ones(3, device=device)",
        words=("--gpu", "{n}"),
    ),
    Program(
        "executed-configuration-file",
        "exec(open('settings.py').read())\nx = torch.ones(3).to(device)",
        files={"settings.py": "device = torch.device('cuda', {n})\n"},
    ),
    Program("set-device", "torch.cuda.set_device(int(sys.argv[1]))\nx = torch.ones(3).cuda()", words=("{n}",)),
    Program("number-in-the-code", "x = torch.ones(3, device='cuda:{n}')"),
    Program(
        "helper-module",
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
    Program("query-about-gpu-0-before", "name = torch.cuda.get_device_name(0)\nx = torch.ones(3, device='cuda:{n}')"),
)

CUDA = "x = torch.ones(3, device='cuda')"
SAYS_CUDA = (
    Program("number-in-a-docstring", f'"""Runs on cuda:2."""\nHELP = "such as cuda:2"\n{CUDA}'),
    Program("number-of-a-microphone", f"microphone = int(sys.argv[2])\n{CUDA}", words=("--device", "2")),
    Program("number-in-unused-code", f"if len(sys.argv) > 9:\n    x = torch.ones(3, device='cuda:2')\n{CUDA}"),
)

# The GPUs of the server and the numbers of the programs that start in the same instant, keyed by name.
CELLS = {"alone": ((BUSY, Gpu(), BUSY, Gpu()), (2,)), "two": (IDLE, (2, 2)), "loop": (IDLE, (0, 1, 2, 3))}


def gpus_of(machine, program, numbers):
    """Start a copy of ``program`` for each number, all at once if it has no files; return the GPUs of each copy."""
    jobs = []
    for number in numbers:
        # Copies share a folder, and so its files. Start each copy after the one before it has read its own file.
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
def test_program_shares_no_gpu_while_another_is_idle(program, release, importers, machine_of):
    lost = set()
    torch = Installed(with_autogpu(torch_of(release)), importers["torch"])
    for cell, (gpus, numbers) in CELLS.items():
        found = gpus_of(machine_of(torch, *gpus), program, numbers)
        assert all(len(contexts) == 1 for contexts in found), found
        used = {gpu for contexts in found for gpu in contexts}
        # Two copies share a GPU, or a copy uses a busy GPU.
        if len(used) < len(found) or (cell == "alone" and not used <= {1, 3}):
            lost.add(cell)
    assert lost == (set() if release.version == TORCHES[0].version else program.lost_before_2_7)
