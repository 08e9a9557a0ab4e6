"""Lines on the stderr of a process that is not ours."""

from __future__ import annotations

import pytest

from autogpu.reporting.stderr import is_terminal, say


class Raises:
    def __getattr__(self, name):
        raise RuntimeError(name)


class RaisesWhenUsed:
    def write(self, text):
        raise UnicodeEncodeError("ascii", text, 0, 1, "no")

    def isatty(self):
        raise ValueError("closed")


class NoFlush:
    def __init__(self):
        self.text = ""

    def write(self, text):
        self.text += text


def test_a_line_is_printed_once_per_process(capsys):
    for _ in range(3):
        say("a line of test_stderr")
    assert capsys.readouterr().err == "autogpu: a line of test_stderr\n"


@pytest.mark.parametrize("make", [lambda: None, object, Raises, RaisesWhenUsed])
def test_whatever_a_script_has_put_there_nothing_raises(monkeypatch, make):
    monkeypatch.setattr("sys.stderr", make())
    say(f"to {make}")
    assert not is_terminal()


def test_a_stderr_without_flush_gets_the_line(monkeypatch):
    kept = NoFlush()
    monkeypatch.setattr("sys.stderr", kept)
    say("without flush")
    assert kept.text == "autogpu: without flush\n"
