"""Which programs start the ranks of a job, and take no GPU themselves."""

from __future__ import annotations

import pytest

from autogpu.frameworks.torch.hooks import is_launcher


@pytest.mark.parametrize(
    ("argv", "command", "is_one"),
    [
        (["/usr/bin/torchrun", "train.py"], [], True),
        (["deepspeed", "train.py"], [], True),
        (["/venv/torch/distributed/launch.py", "train.py"], [], True),
        (["/venv/accelerate/commands/launch.py", "train.py"], [], True),
        (["-m", "train.py"], ["python", "-m", "torch.distributed.launch", "train.py"], True),
        (["-m", "train.py"], ["python", "-m", "torch.distributed.run", "train.py"], True),
        (["-m"], ["python", "-m", "train", "torch.distributed.run"], False),
        (["-m"], ["python", "-m"], False),
        (["-m"], [], False),
        (["my-torchrun", "train.py"], [], False),
        (["train.py", "torchrun"], ["python", "train.py", "torchrun"], False),
        ([], [], False),
    ],
)
def test_a_launcher_is_known_by_its_path_or_as_a_module(argv, command, is_one):
    assert is_launcher(argv, command) is is_one
