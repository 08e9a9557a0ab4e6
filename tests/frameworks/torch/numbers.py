"""Programs that use one GPU: fourteen that are told its number, and twelve that say ``cuda`` beside another number.

Each says that it is imported, takes its GPU at a line of input, says so, and keeps it until another line.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Mapping, Sequence


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
        "a-word-without-an-option",
        "def main(dataset, card):\n    device = f'cuda:{card}'\n    return torch.ones(3).to(device)\n"
        "x = main(*sys.argv[1:])",
        words=("cora", "{n}"),
    ),
    Program(
        "a-variable-of-the-environment",
        "where = torch.device('cuda', int(os.environ['CARD']))\nx = torch.nn.Linear(2, 2).to(where)",
        environ={"CARD": "{n}"},
    ),
    Program(
        "a-configuration-that-is-read",
        "import json\nsettings = json.load(open('settings.json'))\n"
        "with torch.cuda.device(settings['gpu']):\n    x = torch.ones(3, device='cuda')",
        files={"settings.json": '{"gpu": {n}}'},
    ),
    Program(
        "an-object",
        "class Trainer:\n    def __init__(self, card):\n        self.device = torch.device('cuda', card)\n"
        "    def train(self):\n        return torch.ones(3, device=self.device)\nx = Trainer({n}).train()",
    ),
    Program(
        "a-configuration-that-is-executed",
        "exec(open('settings.py').read())\nx = torch.ones(3).to(device)",
        files={"settings.py": "device = torch.device('cuda', {n})\n"},
    ),
    Program(
        "the-current-gpu",
        "torch.cuda.set_device(int(sys.argv[1]))\nx = torch.ones(3).cuda()",
        words=("{n}",),
    ),
    Program("in-its-text", "x = torch.ones(3, device='cuda:{n}')"),
    Program(
        "a-module-beside-it",
        "from placement import place\nx = place(torch.ones(3), int(sys.argv[1]))",
        words=("{n}",),
        files={"placement.py": "import torch\ndef place(x, n):\n    device = f'cuda:{n}'\n    return x.to(device)\n"},
    ),
    Program(
        "in-no-variable-but-an-option",
        "x = torch.ones(3, device=f'cuda:{sys.argv[1].partition(\"=\")[2]}')",
        words=("trainer.device={n}",),
    ),
    Program(
        "a-plain-number",
        "x = torch.ones(3).cuda(int(sys.argv[2]))",
        words=("--gpu", "{n}"),
        lost_before_2_7=frozenset({"alone", "two"}),
    ),
    Program(
        "parsed-arguments",
        "import argparse\nargs = argparse.Namespace(card=int(os.environ['CARD']))\n"
        "args.device = torch.device('cuda', args.card)\nx = torch.ones(3).to(args.device)",
        environ={"CARD": "{n}"},
    ),
    Program(
        "a-dictionary",
        "settings = {'device': 'cuda:' + os.environ['CARD']}\nx = torch.ones(3, device=settings['device'])",
        environ={"CARD": "{n}"},
    ),
    Program(
        "after-a-look-at-the-first",
        "name = torch.cuda.get_device_name(0)\nx = torch.ones(3, device='cuda:{n}')",
    ),
)

CUDA = "x = torch.ones(3, device='cuda')"
SAYS_CUDA = (
    Program(
        "rank-of-an-adapter",
        f"def setup(rank):\n    torch.cuda.set_device(rank)\nrank = 2\n{CUDA}",
        words=("--rank", "2"),
    ),
    Program(
        "if-available", "device = 'cuda' if torch.cuda.is_available() else 'cpu'\nx = torch.ones(3, device=device)"
    ),
    Program("documented", f'"""Runs on cuda:2."""\nHELP = "such as cuda:2"\n{CUDA}'),
    Program(
        "id-of-an-experiment", f"def set_gpu(id):\n    torch.cuda.set_device(id)\nid = 3\n{CUDA}", words=("--id", "3")
    ),
    Program("device-of-a-microphone", f"microphone = int(sys.argv[2])\n{CUDA}", words=("--device", "2")),
    Program("examples-for-each-gpu", CUDA, words=("--per_device_train_batch_size", "2")),
    Program("fold-of-a-dataset", CUDA, words=("cora", "2", "--epochs", "1")),
    Program("how-many", CUDA, words=("--gpus", "2")),
    Program("variables-of-the-environment", CUDA, environ={"GPU": "2", "DEVICE": "2", "RANK_OF_LORA": "2"}),
    Program("a-table-of-folds", f"folds, rank = {{'device': 3}}, 2\n{CUDA}"),
    Program(
        "rank-of-no-launcher", "local_rank = int(sys.argv[2])\nx = torch.nn.Linear(2, 2).cuda()", words=("--rank", "2")
    ),
    Program("of-two-kinds", f"if len(sys.argv) > 9:\n    x = torch.ones(3, device='cuda:2')\n{CUDA}"),
)
