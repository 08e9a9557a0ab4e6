"""The number under which a program is about to use its GPU, by the calls that start CUDA and by its command line."""

import sys
from types import SimpleNamespace

import pytest

from autogpu.frameworks.number import Call
from autogpu.frameworks.torch.number import gpus_named, number_of_process


class Device:
    """As a framework's own kind of device."""

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
        pytest.param([script(device=Device(2))], 2, id="a-device"),
        pytest.param([script(where="cuda:2", epochs=3)], 2, id="its-name"),
        pytest.param([script(where="cuda")], 0, id="the-current-one"),
        pytest.param([framework(device=2), script(device="cpu")], 2, id="a-number-that-the-framework-was-given"),
        pytest.param([framework(device=True), script(device=2)], None, id="no-number-and-one-of-the-script"),
        pytest.param([framework("cuda", device=None), script(spare="cuda:1")], 0, id="cuda-without-a-number"),
        pytest.param([framework("to", device=None), script(gpu="cuda:1")], 1, id="nothing-yet"),
        pytest.param([script(self=SimpleNamespace(device="cuda:3", epochs=1))], 3, id="of-an-object"),
        pytest.param([framework(self=SimpleNamespace(device="cuda:3"))], None, id="none-of-the-frameworks-objects"),
        pytest.param([framework("__enter__", self=SimpleNamespace(idx=3, prev_idx=1))], 3, id="of-a-block"),
        pytest.param([framework("get_device_name", device=0), script("cuda:2")], 2, id="only-asked-about"),
        pytest.param([script(first="cuda:1"), script(second="cuda:2")], 1, id="the-innermost-call"),
        pytest.param([script(a="cuda:0", b=Device(2))], 2, id="not-0-of-two"),
        pytest.param([script(a="cuda:1", b="cuda:2"), script(c="cuda:3")], None, id="several"),
        pytest.param([script(__spec__="cuda:1", text="cuda:1 is fast", other="cuda:x")], None, id="no-device"),
        pytest.param([script("cuda:2", 3, None)], 2, id="in-its-code"),
        pytest.param([script("cuda:2", device="cuda")], 0, id="not-what-it-may-use-later"),
        pytest.param([script("cuda", "cuda:2"), script("cuda:3")], None, id="several-in-its-code"),
        pytest.param([script(args=SimpleNamespace(device="cuda:2", seed=1))], 2, id="of-parsed-arguments"),
        pytest.param([script(settings={"device": Device(3), "folds": 2})], 3, id="of-a-dictionary"),
        pytest.param([script("cuda", args=SimpleNamespace(device="cuda:2"))], 2, id="settings-before-cuda-in-its-code"),
        pytest.param(
            [script("cuda:3", args=SimpleNamespace(device="cuda:2"))], 3, id="a-number-in-its-code-before-settings"
        ),
        pytest.param([script(a={"device": "cuda:1"}, b={"device": "cuda:2"})], None, id="of-several-settings"),
        pytest.param([script(a={"device": "cuda"}), script(b="cuda:2")], 2, id="settings-that-say-0"),
        pytest.param([script(data=dict.fromkeys(range(2000), "cuda:1")), script(b="cuda:2")], 2, id="only-data"),
        pytest.param([script(module=sys)], None, id="none-of-a-module"),
        pytest.param([], None, id="nothing"),
    ],
)
def test_number_of_the_calls_that_start_cuda(calls, number):
    assert number_of_process(calls, (), index_of) == number


@pytest.mark.parametrize(
    ("calls", "number"),
    [
        pytest.param([script(epochs=1)], 3, id="nothing-in-the-calls"),
        pytest.param([script(a="cuda:1", b="cuda:2")], 3, id="several-in-the-calls"),
        pytest.param([script(device="cuda")], 0, id="not-where-the-calls-say-cuda-alone"),
        pytest.param([script(device="cuda:1")], 1, id="not-where-they-say-another"),
    ],
)
def test_the_command_line_counts_where_the_calls_tell_nothing(calls, number):
    assert number_of_process(calls, ("--gpu", "3"), index_of) == number


class Computed:
    """Asks its own code for each attribute, as a dict does."""

    __slots__ = ()

    def __getattr__(self, name):
        raise KeyError(name)


def test_no_code_of_the_script_is_run_for_its_variables():
    assert number_of_process([Call("train", {"self": Computed(), "device": "cuda:2"})], [], lambda value: None) == 2


@pytest.mark.parametrize(
    ("calls", "numbers"),
    [
        pytest.param([framework("_check_balance"), framework("__init__", device_ids=[2, 3])], (2, 3), id="a-list"),
        pytest.param([framework("__init__", device_ids=(1, 0, 2))], (1, 0, 2), id="a-tuple"),
        pytest.param([framework(device_ids=["cuda:1", Device(3)])], (1, 3), id="names-and-devices"),
        pytest.param([framework(device_ids=[1, 1])], (1,), id="each-once"),
        pytest.param([framework(device_ids=[1, -1])], (), id="not-with-one-that-is-none"),
        pytest.param([framework(device_ids=[1, object()])], (), id="not-with-one-that-is-not-known"),
        pytest.param(
            [framework("__init__", device_ids=None), framework(device_ids=[0, 1])], (0, 1), id="the-first-that-has-one"
        ),
        pytest.param([script(device_ids=[0, 1])], (), id="not-the-scripts"),
        pytest.param([], (), id="none"),
    ],
)
def test_gpus_that_a_call_of_the_framework_names(calls, numbers):
    assert gpus_named(calls, index_of) == numbers


class Proxy:
    """Stands for an object that is made when it is used, as Celery's and Werkzeug's do."""

    @property
    def __dict__(self):  # type: ignore[override]  # as such objects have it
        raise SystemExit("it was made")


class OfAProxy(Proxy):
    pass


@pytest.mark.parametrize("proxy", [Proxy(), OfAProxy()], ids=["itself", "of-a-subclass"])
@pytest.mark.parametrize("name", ["self", "current_app"])
def test_what_a_proxy_stands_for_is_not_made(proxy, name):
    assert number_of_process([script(**{name: proxy}), script(device="cuda:2")], [], index_of) == 2
