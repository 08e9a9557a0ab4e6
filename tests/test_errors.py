"""Exceptions in autogpu's handlers: autogpu reports its own, and those of the script must reach the script."""

import bdb
import copy
import ctypes
import functools
import os
import pickle
import re
import signal
import subprocess
import sys
import threading
import time
import types
from pathlib import Path
from typing import Any

import pytest

from autogpu.activation import guard
from autogpu.errors import (
    DriverUnavailable,
    InstallError,
    NoEligibleDevice,
    WaitTimeout,
    ignoring,
    raise_if_from_script,
    script_error_in,
)
from tests.conftest import each_python
from tests.support import environments


def raised(step):
    try:
        step()
    except BaseException as error:
        return error
    raise AssertionError("nothing was raised")


class Injected(Exception):
    """An exception of a package that has no frame in the traceback."""

    __module__ = "timeouts.of_threads"


def add_module_of_injected(monkeypatch):
    module = types.ModuleType(Injected.__module__)
    module.__file__ = str(Path(os.__file__).parent / "site-packages/timeouts/of_threads.py")
    monkeypatch.setitem(sys.modules, Injected.__module__, module)


def raises(error):
    raise error


def class_of(module):
    return type("Odd", (Exception,), {"__module__": module})


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        pytest.param(lambda: 1 / 0, False, id="python"),
        pytest.param(lambda: re.compile("("), False, id="standard-library"),
        pytest.param(lambda: signal.Signals(9999), False, id="enum"),
        pytest.param(lambda: os.getpgid(2**30), False, id="system-call"),
        pytest.param(lambda: raises(bdb.BdbQuit()), True, id="debugger"),
        pytest.param(lambda: raises(KeyboardInterrupt()), True, id="ctrl-c"),
        pytest.param(lambda: raises(Injected()), True, id="class-of-another-package"),
        pytest.param(lambda: raises(class_of(None)()), False, id="class-without-module"),
        # The C++ code of a framework, which autogpu calls, raises such exceptions.
        pytest.param(lambda: raises(Injected("can't parse")), False, id="c-code"),
        pytest.param(lambda: raises(class_of("__main__")()), True, id="class-of-script"),
        # Raised by a function that the script has put in place of one that autogpu calls.
        pytest.param(lambda: raises(class_of(__name__)()), False, id="code-of-script"),
    ],
)
def test_traceback_decides_if_an_exception_belongs_to_the_script(step, expected, monkeypatch):
    add_module_of_injected(monkeypatch)
    monkeypatch.delattr(sys.modules["__main__"], "__file__", raising=False)  # as in a notebook
    assert (script_error_in(raised(step)) is not None) is expected


STOP = TimeoutError("too slow")


def plain(number, frame):
    raise STOP


class Owner:
    def method(self, number, frame):
        raise STOP

    def __call__(self, *arguments):
        raise STOP


def ignores_further_signals(number, frame):
    signal.signal(number, signal.SIG_IGN)
    raise STOP


def with_any_arguments_ignores_further_signals(*arguments):
    signal.signal(arguments[0], signal.SIG_IGN)
    raise STOP


def calls_another(number, frame):
    plain(number, frame)


def drops_its_arguments(number, frame):
    del number, frame
    raise STOP


def looks_at_callers(number, frame):
    while frame:
        frame = frame.f_back
    raise STOP


class DropsItsArguments:
    def method(self, number, frame):
        del number, frame
        raise STOP

    def __call__(self, number, frame):
        del number, frame
        raise STOP


HANDLERS: dict[str, Any] = {
    "function": plain,
    "any-arguments": lambda *_: raises(STOP),
    "method": Owner().method,
    "object": Owner(),
    "partial": functools.partial(lambda error, number, frame: raises(error), STOP),
    "wrapped": functools.wraps(plain)(lambda *arguments: plain(*arguments)),
    "drops-its-arguments": drops_its_arguments,
    "looks-at-callers": looks_at_callers,
    "method-that-drops-its-arguments": DropsItsArguments().method,
    "object-that-drops-its-arguments": DropsItsArguments(),
    "partial-that-drops-its-arguments": functools.partial(drops_its_arguments),
    "replaces-itself": ignores_further_signals,
    "any-arguments-replaces-itself": with_any_arguments_ignores_further_signals,
    "calls-another": calls_another,
}


@pytest.fixture(params=HANDLERS)
def alarm(request):
    """Return a function that sends this process a signal, whose handler belongs to the script and raises."""
    # Other tests raised the same exception, and Python adds each raise to its traceback.
    STOP.__traceback__ = None
    STOP.__context__ = None
    before = signal.signal(signal.SIGALRM, HANDLERS[request.param])
    yield lambda: os.kill(os.getpid(), signal.SIGALRM)
    signal.signal(signal.SIGALRM, before)


def loops(alarm):
    alarm()
    while True:
        pass


def test_exception_of_a_signal_handler_passes_autogpus_handlers(alarm):
    with pytest.raises(TimeoutError) as caught, ignoring(OSError, Exception):
        loops(alarm)
    assert caught.value is STOP


def test_exception_of_a_signal_handler_passes_code_that_replaces_errors(alarm):
    """pynvml replaces errors of the loader like this, and autogpu replaces errors of pynvml."""

    def translates():
        try:
            loops(alarm)
        except OSError:
            raise ValueError("no library") from None

    def translates_again():
        try:
            translates()
        except ValueError:
            raise LookupError("no driver") from None

    with pytest.raises(TimeoutError) as caught, ignoring(LookupError):
        translates_again()
    assert caught.value is STOP


def test_own_error_is_ignored_while_the_script_handles_its_timeout():
    def handler(number, frame):
        raise TimeoutError("too slow")

    before = signal.signal(signal.SIGALRM, handler)

    def ours():
        with ignoring(ZeroDivisionError):
            raises(ZeroDivisionError())

    try:
        loops(lambda: os.kill(os.getpid(), signal.SIGALRM))
    except TimeoutError:
        ours()
    finally:
        signal.signal(signal.SIGALRM, before)


def test_exception_of_a_trace_function_passes_autogpus_handlers():
    def trace(frame, event, argument):
        raise STOP

    traced = sys.gettrace()
    try:
        with pytest.raises(TimeoutError), ignoring(Exception):
            sys.settrace(trace)
            raises(ValueError("not reached"))
    finally:
        sys.settrace(traced)


@pytest.mark.parametrize("kind", [TimeoutError, SystemExit, KeyboardInterrupt, Injected], ids=lambda it: it.__name__)
def test_exception_that_another_thread_injects_passes_autogpus_handlers(kind, monkeypatch):
    add_module_of_injected(monkeypatch)
    thread = ctypes.c_ulong(threading.get_ident())
    inject = functools.partial(ctypes.pythonapi.PyThreadState_SetAsyncExc, thread, ctypes.py_object(kind))
    variables = {"__name__": "autogpu.any", "monotonic": time.monotonic, "until_s": time.monotonic() + 30}
    with pytest.raises(kind), ignoring(Exception):
        threading.Timer(0.05, inject).start()
        exec("while monotonic() < until_s:\n    pass", variables)


PROGRAM = """
import os, signal
from autogpu.errors import ignoring

class Own(Exception):
    pass

def handler(number, frame):
    raise error

signal.signal(signal.SIGALRM, handler)
for error in (TimeoutError("x"), Own(), SystemExit(3), ValueError("x"), OSError(5, "x")):
    try:
        with ignoring(BaseException):
            os.kill(os.getpid(), signal.SIGALRM)
            while True:
                os.path.exists("/")
    except BaseException as caught:
        print(caught is error)
with ignoring(OSError):
    os.stat("/no/such/file")
"""


@pytest.mark.parametrize("version", each_python())
def test_exceptions_of_signal_handlers_pass_in_each_python_version(version):
    python, environ = environments.interpreter(version), {"PYTHONPATH": str(environments.ROOT)}
    done = subprocess.run([python, "-c", PROGRAM], env=environ, capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout.split(), done.stderr) == (["True"] * 5, "")


def test_exception_class_with_broken_args_does_not_break_autogpu(monkeypatch):
    """``args`` raises while autogpu decides whether the exception belongs to the script."""

    class Broken(Exception):
        @property
        def args(self):  # type: ignore[override]  # broken on purpose
            raise RuntimeError("computed")

    assert script_error_in(raised(lambda: raises(Broken()))) is None
    raise_if_from_script(raised(lambda: raises(Broken())))


def test_wait_timeout_exits_the_script_with_75_or_ends_its_thread(capfd):
    ended = []

    def waits():
        try:
            with guard():
                raise WaitTimeout("gave up after 2 s", remedy="to wait longer: --wait 1h")
        except BaseException as error:
            ended.append((type(error), getattr(error, "code", None)))

    waits()
    thread = threading.Thread(target=waits)
    thread.start()
    thread.join(30)
    assert ended == [(SystemExit, 75), (WaitTimeout, None)]
    assert "gave up after 2 s; to wait longer: --wait 1h" in capfd.readouterr().err


POOL = """
import multiprocessing, sys
from concurrent.futures import ProcessPoolExecutor
from autogpu import errors
from autogpu.activation import guard

def use(kind):
    with guard():
        raise getattr(errors, kind)("gave up", remedy="free a GPU")

if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    for kind in ("NoEligibleDevice", "WaitTimeout"):
        with context.Pool(1) as pool, ProcessPoolExecutor(1, mp_context=context) as executor:
            for result in (lambda: pool.apply_async(use, [kind]).get(60), executor.submit(use, kind).result):
                try:
                    result()
                except errors.AutoGpuError as error:
                    print(type(error).__name__, error.what, error.remedy, sep=";")
"""


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_process_pool_passes_on_the_error_of_its_worker(method, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(POOL)
    environ = {**os.environ, "PYTHONPATH": str(environments.ROOT)}
    command = [sys.executable, str(script), method]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=200, check=False)
    expected = [f"{kind};gave up;free a GPU" for kind in ("NoEligibleDevice", "WaitTimeout") for _ in range(2)]
    assert done.stdout.splitlines() == expected, done.stderr


@pytest.mark.parametrize("kind", [NoEligibleDevice, WaitTimeout, DriverUnavailable, InstallError])
def test_errors_can_be_copied_and_pickled(kind):
    error = kind("gave up", remedy="free a GPU")
    for made in (copy.copy(error), pickle.loads(pickle.dumps(error))):
        assert (type(made), made.what, made.remedy, str(made)) == (kind, "gave up", "free a GPU", str(error))
