"""Recognising a launcher of ranks, reading a version, and reading the variables of a program when CUDA starts."""

import sys
import weakref

import pytest

from autogpu.frameworks.calls import variables_of
from autogpu.frameworks.torch import _version_numbers, is_launcher


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
def test_launcher_is_recognised_by_its_path_or_module(argv, command, is_one):
    assert is_launcher(argv, command) is is_one


class Data:
    pass


def test_reading_variables_of_a_function_keeps_no_object_alive():
    data = Data()
    kept = weakref.ref(data)
    assert variables_of(sys._getframe())["kept"] is kept
    del data
    assert kept() is None


def test_dictionary_that_a_script_got_from_locals_is_not_cleared():
    data, asked = Data(), locals()
    assert "data" in variables_of(sys._getframe())
    assert asked["data"] is data


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        pytest.param("12.8", (12, 8), id="cuda"),
        pytest.param("2.10.0+cu130", (2, 10), id="pytorch"),
        pytest.param("None", None, id="built-without-cuda"),
    ],
)
def test_version_of_pytorch_and_of_its_cuda_is_read(text, numbers):
    assert _version_numbers(text) == numbers
