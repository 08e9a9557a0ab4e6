"""Lines that autogpu prints on the stderr of the user's process."""

import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest

from autogpu.stderr import is_terminal, say
from tests.hook.throwaway import UNREAD


class Raises:
    def __getattr__(self, name):
        raise RuntimeError(name)


class RaisesWhenUsed:
    def write(self, text):
        raise UnicodeEncodeError("ascii", text, 0, 1, "no")

    def isatty(self):
        raise ValueError("closed")


class Exits:
    def write(self, text):
        sys.exit(3)


def test_a_line_is_printed_once_per_process(capsys):
    for _ in range(3):
        say("a line of test_stderr")
    assert capsys.readouterr().err == "autogpu: a line of test_stderr\n"


@pytest.mark.parametrize("make", [lambda: None, object, Raises, RaisesWhenUsed, Exits])
def test_broken_stderr_of_a_script_raises_nothing(monkeypatch, make):
    monkeypatch.setattr("sys.stderr", make())
    say(f"to {make}")
    assert not is_terminal()
    monkeypatch.delattr("sys.stderr")
    say(f"where {make} was")


def test_a_stderr_without_flush_gets_the_line(monkeypatch):
    lines = []
    monkeypatch.setattr("sys.stderr", SimpleNamespace(write=lines.append))
    say("without flush")
    assert lines == ["autogpu: without flush\n"]


@pytest.mark.slow  # autogpu waits for a second before it goes on without stderr
def test_hanging_stderr_blocks_only_briefly_and_gets_the_line_later(monkeypatch):
    lines, may_go_on = [], threading.Event()
    monkeypatch.setattr("sys.stderr", SimpleNamespace(write=lambda text: may_go_on.wait(60) and lines.append(text)))
    say("to one that hangs")
    assert lines == []
    may_go_on.set()
    for thread in threading.enumerate():
        if thread.name == "autogpu-say":
            thread.join(60)
    assert lines == ["autogpu: to one that hangs\n"]


@pytest.mark.slow
@pytest.mark.parametrize("stderr", UNREAD)
def test_unread_stderr_neither_kills_nor_blocks_the_script(stderr):
    say_twice = "from autogpu.stderr import say; say('x' * 3000); say('again')"
    program = UNREAD[stderr].replace("import tensorflow", say_twice)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "alive")
