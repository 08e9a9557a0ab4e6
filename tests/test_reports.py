"""A watch hears of what ends a script, a cell or a statement at the prompt, and of nothing else."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.support.environments import interpreter
from tests.support.terminal import Terminal

ROOT = Path(__file__).resolve().parents[1]
VERSIONS = ("3.7", "3.12", "3.13")

WATCH = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from autogpu.reports import Watch
Watch(lambda error: print("told of", type(error).__name__, flush=True))
"""

ENDS = {
    "raised": ("1 / 0", ["told of ZeroDivisionError"]),
    "own-hook": ("sys.excepthook = lambda *error: None\n1 / 0", ["told of ZeroDivisionError"]),
    "caught": ("try:\n    1 / 0\nexcept ZeroDivisionError:\n    pass", []),
    "left-by-exit": ("try:\n    1 / 0\nexcept ZeroDivisionError:\n    sys.exit(1)", []),
    "in-a-thread": ("import threading\nthread = threading.Thread(target=lambda: 1 / 0)\nthread.start()", []),
    "in-a-fork": ("import os\nif not os.fork():\n    1 / 0\nos.wait()", []),
    "a-failure-of-ours": ("Watch(lambda error: 2 / 0)\n1 / 0", ["told of ZeroDivisionError"]),
}


def python(version: str) -> str:
    found = interpreter(version)
    if found is None:
        pytest.skip(f"no Python {version} here")
    return str(found)


@pytest.mark.parametrize(("script", "told"), ENDS.values(), ids=ENDS)
@pytest.mark.parametrize("version", VERSIONS)
def test_what_ends_a_script(version, script, told):
    command = [python(version), "-c", WATCH + script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.splitlines() == told
    assert "autogpu" not in done.stderr.replace(str(ROOT), "")
    assert done.returncode == (1 if told or "exit" in script else 0)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_statement_at_the_prompt_is_told_of_once_before_the_next(version, tmp_path):
    (tmp_path / "watch.py").write_text(WATCH)
    with Terminal(tmp_path, {"HOME": str(tmp_path)}, (python(version), "-q"), r">>> ") as terminal:
        terminal.write("import watch\n1 / 0\n")
        shown, _ = terminal.until("told of ZeroDivisionError")
        assert "ZeroDivisionError: division by zero" in shown
        terminal.write("1234 + 1\n")
        shown, _ = terminal.until("1235")
        terminal.write("[][1]\n")
        more, _ = terminal.until("told of IndexError")
        assert "told of" not in shown + more
