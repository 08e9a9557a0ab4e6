"""The GPU number in the arguments of a program, in a named value, and in a configuration."""

import pytest

from autogpu.frameworks.number import Call, number_of_value, number_of_words, numbers_of_script


@pytest.mark.parametrize(
    ("words", "number"),
    [
        *((f"--{name} 2", 2) for name in ("gpu", "gpu_id", "gpuid", "gpu_idx", "gpu_index", "device", "device_id")),
        *((f"--{name} 2", 2) for name in ("cuda_device", "cuda_id", "gpu-id", "GPU")),
        ("-gpu 2", 2),
        ("--gpu=2", 2),
        ("trainer.device=2", 2),
        ("gpu=2 epochs=3", 2),
        ("--where cuda:2", 2),
        ("--device gpu:2", 2),
        ("where=cuda:2", 2),
        ("train cuda:2", 2),
        ("--gpu 2 --device cuda:2", 2),
        # No number: options that only contain "gpu" or "device", other options, and numbers without an option.
        ("--per_device_train_batch_size 2", None),
        ("--gpus 2", None),
        ("--num-gpu 2", None),
        ("--rank 2 --id 3", None),
        ("cora 2 --epochs 1", None),
        ("--gpu 0,1", None),
        ("--gpu -1", None),
        ("--gpu", None),
        ("--gpu auto 2", None),
        ("--device cuda", None),
        ("--gpu 1 --device cuda:2", None),
        ("", None),
    ],
)
def test_command_line_gives_the_gpu_number(words, number):
    assert number_of_words(words.split()) == number


def test_arguments_may_be_of_any_type():
    assert number_of_words(["--gpu", 2, None, b"x"]) == 2


@pytest.mark.parametrize(
    ("name", "value", "number"),
    [
        ("gpu", 2, 2),
        ("GPU_ID", "2", 2),
        ("gpu", 0, 0),
        ("where", "cuda:2", 2),
        ("", "gpu:2", 2),
        ("gpus", 2, None),
        ("gpu", True, None),
        ("gpu", -1, None),
        ("gpu", 10000, None),
        ("gpu", 2.0, None),
        ("gpu", "cuda", None),
        (None, 2, None),
    ],
)
def test_named_value_gives_the_gpu_number(name, value, number):
    assert number_of_value(name, value) == number


class AttrDict(dict):
    """A subclass of dict, as many projects use for their configuration. autogpu must not call its methods."""

    __getattr__ = dict.__getitem__

    def items(self):
        raise AssertionError("code of the script ran")


def test_number_is_read_from_a_dict_subclass_without_a_method_call():
    call = Call("main", {"cfg": AttrDict(device_id=2, lr=0.1)})
    assert numbers_of_script(call, number_of_value) == {2}
