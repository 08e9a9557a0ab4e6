"""A watch is called with the exception that ends a script or a worker, and with no other exception."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

from autogpu.uncaught import chain, is_of_another_process
from tests.support.environments import interpreter

ROOT = Path(__file__).resolve().parents[1]
VERSIONS = ("3.7", "3.12", "3.13")

WATCH = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from autogpu.uncaught import watch
watch(lambda error: print("told of", type(error).__name__, flush=True))
"""
END = """
from autogpu.uncaught import at_end
at_end(lambda error: error or print("ended well", flush=True))
"""

ENDS = {
    "raised": ("1 / 0", ["told of ZeroDivisionError"]),
    "own-hook": ("sys.excepthook = lambda *error: None\n1 / 0", ["told of ZeroDivisionError"]),
    "caught": ("try:\n    1 / 0\nexcept ZeroDivisionError:\n    pass", []),
    "exit-while-an-error-is-handled": ("try:\n    1 / 0\nexcept ZeroDivisionError:\n    sys.exit(1)", []),
    "in-a-thread": ("import threading\nthread = threading.Thread(target=lambda: 1 / 0)\nthread.start()", []),
    "in-a-fork": ("import os\nif not os.fork():\n    1 / 0\nos.wait()", []),
    "watch-that-raises": ("watch(lambda error: 2 / 0)\n1 / 0", ["told of ZeroDivisionError"]),
}


def python(version: str) -> str:
    found = interpreter(version)
    if found is None:
        pytest.skip(f"no Python {version} here")
    return str(found)


@pytest.mark.parametrize(("script", "told"), ENDS.values(), ids=ENDS)
@pytest.mark.parametrize("version", VERSIONS)
def test_watch_is_called_with_the_error_that_ends_a_script(version, script, told):
    command = [python(version), "-c", WATCH + script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.splitlines() == told
    assert "autogpu" not in done.stderr.replace(str(ROOT), "")
    assert done.returncode == (1 if told or "exit" in script else 0)


# The beginning of a script that Ctrl-C interrupts in ``wait``. INTERRUPTED has for each case the rest of the script,
# the last line on stderr, and True if SIGINT ends the script.
WAITS = """
import os, signal, sys
from autogpu.uncaught import show_line
def wait():
    try:
        os.kill(os.getpid(), signal.SIGINT)
    except KeyboardInterrupt as error:
        show_line(error, "stopped")
        raise
"""
OWN_HOOK = "sys.excepthook = lambda kind, *rest: print('own', kind.__name__, file=sys.stderr)\n"
CAUGHT = "try:\n    wait()\nexcept KeyboardInterrupt:\n    "
INTERRUPTED = {
    "line": ("wait()", ["autogpu: stopped"], True),
    "raised-again": (f"{CAUGHT}raise", ["autogpu: stopped"], True),
    "caught": (f"{CAUGHT}pass", [], False),
    "own-hook": (f"{OWN_HOOK}wait()", ["own KeyboardInterrupt"], True),
    "later-error-of-the-script": (f"{CAUGHT}pass\n1 / 0", ["ZeroDivisionError: division by zero"], False),
    "own-hook-for-a-later-error": (f"{CAUGHT}pass\n{OWN_HOOK}1 / 0", ["own ZeroDivisionError"], False),
    "later-ctrl-c": (f"{CAUGHT}os.kill(os.getpid(), signal.SIGINT)", ["KeyboardInterrupt"], True),
}


@pytest.mark.parametrize(("script", "last_lines", "by_signal"), INTERRUPTED.values(), ids=list(INTERRUPTED))
@pytest.mark.parametrize("version", VERSIONS)
def test_ctrl_c_in_a_wait_ends_a_script_with_one_line(version, script, last_lines, by_signal):
    def ended(code):
        command = [python(version), "-c", f"import sys\nsys.path.insert(0, {str(ROOT)!r})\n{code}\n{script}"]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    done = ended(WAITS)
    lines = done.stderr.splitlines()
    assert lines[-1:] == last_lines
    assert len(lines) <= 1 or "Traceback (most recent call last):" in lines
    without = ended(WAITS.replace('show_line(error, "stopped")', "pass"))
    assert done.returncode == without.returncode, "as without autogpu"
    assert (done.returncode == -signal.SIGINT) == (by_signal and version != "3.7")


# A worker that ends by an error that it prints, by an error that it passes on to its parent, or without an error.
WORKER = """
def printed():
    import watch
    1 / 0

def written_down():
    try:
        printed()
    except ZeroDivisionError:
        raise SystemExit(1)

def in_order():
    import watch

if __name__ == "__main__":
    import multiprocessing, sys
    worker = multiprocessing.get_context(sys.argv[1]).Process(target=globals()[sys.argv[2]])
    worker.start()
    worker.join()
    sys.exit(worker.exitcode)
"""


@pytest.mark.parametrize(("ending", "told"), [("printed", 1), ("written_down", 1), ("in_order", 0)])
@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.parametrize("version", VERSIONS)
def test_watch_is_called_with_the_error_that_ends_a_worker(version, method, ending, told, tmp_path):
    (tmp_path / "watch.py").write_text(WATCH + END)
    (tmp_path / "train.py").write_text(WORKER)
    command = [python(version), str(tmp_path / "train.py"), method, ending]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    is_seen = version != "3.13"
    said = ["told of ZeroDivisionError"] if told else ["ended well"]
    assert done.stdout.splitlines() == said * is_seen, done.stderr
    assert done.returncode == told


def linked(error, **links):
    for name, value in links.items():
        setattr(error, f"__{name}__", value)
    return error


class _RemoteTraceback(Exception):
    """A class with the name of the one in ``concurrent.futures``."""


WHILE_HANDLED = linked(ValueError(), context=linked(OSError(), context=KeyError()))


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        pytest.param(None, [], id="no-error"),
        pytest.param(WHILE_HANDLED, ["ValueError", "OSError", "KeyError"], id="raised-while-another-was-handled"),
        pytest.param(
            linked(OSError(), context=KeyError(), suppress_context=True), ["OSError"], id="suppressed-context"
        ),
        pytest.param(linked(OSError(), context=KeyError(), cause=ValueError()), ["OSError", "ValueError"], id="cause"),
    ],
)
def test_chain_yields_the_errors_that_a_traceback_shows(error, expected):
    assert [type(each).__name__ for each in chain(error)] == expected


def test_chain_ends_if_an_error_is_its_own_cause():
    error = OSError()
    assert len(list(chain(linked(error, cause=error)))) == 20


def test_error_of_another_process_is_recognized_by_class_names():
    assert is_of_another_process(linked(OSError(), cause=_RemoteTraceback()))
    assert is_of_another_process(type("RayTaskError(OSError)", (OSError,), {})())
    assert not is_of_another_process(linked(OSError(), cause=KeyError()))
