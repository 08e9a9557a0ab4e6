"""Finding the GPU number that a program is about to use, in the calls that start CUDA and in the command line."""

import sys
from types import SimpleNamespace

import pytest

from autogpu.frameworks.number import Call
from autogpu.frameworks.torch.number import gpus_named, number_of_process


class Device:
    """Stands for the device class of a framework."""

    def __init__(self, index):
        self.index = index


def index_of(value):
    return value.index if type(value) is Device else None


def script(*constants, **variables):
    return Call("train", variables, constants)


def framework(function="set_device", **variables):
    return Call(function, variables, ("cuda:3",), is_frameworks=True)


@pytest.mark.parametrize(
    ("calls", "number"),
    [
        pytest.param([script(device=Device(2))], 2, id="device-object"),
        pytest.param([script(where="cuda:2", epochs=3)], 2, id="device-name"),
        pytest.param([script(where="cuda")], 0, id="cuda-without-number-means-0"),
        pytest.param([framework(device=2), script(device="cpu")], 2, id="argument-of-a-framework-call"),
        pytest.param([framework(device=True), script(device=2)], None, id="bool-and-plain-number-of-the-script"),
        pytest.param([framework("cuda", device=None), script(spare="cuda:1")], 0, id="cuda-method-without-number"),
        pytest.param([framework("to", device=None), script(gpu="cuda:1")], 1, id="framework-call-without-device"),
        pytest.param([script(self=SimpleNamespace(device="cuda:3", epochs=1))], 3, id="attribute-of-self"),
        pytest.param([framework(self=SimpleNamespace(device="cuda:3"))], None, id="attribute-of-a-framework-object"),
        pytest.param([framework("__enter__", self=SimpleNamespace(idx=3, prev_idx=1))], 3, id="device-block"),
        pytest.param([framework("get_device_name", device=0), script("cuda:2")], 2, id="query-about-another-gpu"),
        pytest.param([script(first="cuda:1"), script(second="cuda:2")], 1, id="innermost-call-first"),
        pytest.param([script(a="cuda:0", b=Device(2))], 2, id="other-number-before-0"),
        pytest.param([script(a="cuda:1", b="cuda:2"), script(c="cuda:3")], None, id="several-numbers"),
        pytest.param(
            [script(__spec__="cuda:1", text="cuda:1 is fast", other="cuda:x")], None, id="texts-that-are-not-devices"
        ),
        pytest.param([script("cuda:2", 3, None)], 2, id="constant-in-the-code"),
        pytest.param([script("cuda:2", device="cuda")], 0, id="variable-before-constant"),
        pytest.param([script("cuda", "cuda:2"), script("cuda:3")], None, id="several-constants"),
        pytest.param([script(args=SimpleNamespace(device="cuda:2", seed=1))], 2, id="parsed-arguments"),
        pytest.param([script(settings={"device": Device(3), "folds": 2})], 3, id="value-in-a-dictionary"),
        pytest.param([script("cuda", args=SimpleNamespace(device="cuda:2"))], 2, id="settings-before-plain-cuda"),
        pytest.param([script("cuda:3", args=SimpleNamespace(device="cuda:2"))], 3, id="number-in-code-before-settings"),
        pytest.param([script(a={"device": "cuda:1"}, b={"device": "cuda:2"})], None, id="several-settings"),
        pytest.param([script(a={"device": "cuda"}), script(b="cuda:2")], 2, id="settings-without-number"),
        pytest.param([script(data=dict.fromkeys(range(2000), "cuda:1")), script(b="cuda:2")], 2, id="large-dictionary"),
        pytest.param([script(module=sys)], None, id="variable-that-is-a-module"),
        pytest.param([], None, id="no-calls"),
    ],
)
def test_gpu_number_is_found_in_the_calls_that_start_cuda(calls, number):
    assert number_of_process(calls, (), index_of) == number


@pytest.mark.parametrize(
    ("calls", "number"),
    [
        pytest.param([script(epochs=1)], 3, id="no-number-in-the-calls"),
        pytest.param([script(a="cuda:1", b="cuda:2")], 3, id="several-numbers-in-the-calls"),
        pytest.param([script(device="cuda")], 0, id="cuda-without-number-in-the-calls"),
        pytest.param([script(device="cuda:1")], 1, id="number-in-the-calls"),
    ],
)
def test_command_line_number_is_used_if_the_calls_have_none(calls, number):
    assert number_of_process(calls, ("--gpu", "3"), index_of) == number


class Computed:
    """An object that computes each attribute with its own code."""

    __slots__ = ()

    def __getattr__(self, name):
        raise KeyError(name)


def test_reading_variables_of_a_script_runs_none_of_its_code():
    assert number_of_process([Call("train", {"self": Computed(), "device": "cuda:2"})], [], lambda value: None) == 2


@pytest.mark.parametrize(
    ("calls", "numbers"),
    [
        pytest.param([framework("_check_balance"), framework("__init__", device_ids=[2, 3])], (2, 3), id="list"),
        pytest.param([framework("__init__", device_ids=(1, 0, 2))], (1, 0, 2), id="tuple"),
        pytest.param([framework(device_ids=["cuda:1", Device(3)])], (1, 3), id="names-and-devices"),
        pytest.param([framework(device_ids=[1, 1])], (1,), id="repeated-number"),
        pytest.param([framework(device_ids=[1, -1])], (), id="negative-number"),
        pytest.param([framework(device_ids=[1, object()])], (), id="unknown-object"),
        pytest.param(
            [framework("__init__", device_ids=None), framework(device_ids=[0, 1])],
            (0, 1),
            id="innermost-call-with-a-list",
        ),
        pytest.param([script(device_ids=[0, 1])], (), id="list-of-the-script"),
        pytest.param([], (), id="no-calls"),
    ],
)
def test_gpus_are_read_from_device_ids_of_a_framework_call(calls, numbers):
    assert gpus_named(calls, index_of) == numbers


class Proxy:
    """A proxy that makes its object at the first use, as those of Celery and Werkzeug do."""

    @property
    def __dict__(self):  # type: ignore[override]  # such proxies define it as a property
        raise SystemExit("it was made")


class OfAProxy(Proxy):
    pass


@pytest.mark.parametrize("proxy", [Proxy(), OfAProxy()], ids=["proxy", "subclass-of-a-proxy"])
@pytest.mark.parametrize("name", ["self", "current_app"])
def test_object_behind_a_proxy_is_not_made(proxy, name):
    assert number_of_process([script(**{name: proxy}), script(device="cuda:2")], [], index_of) == 2
