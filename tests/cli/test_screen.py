"""Lines on a terminal and in a pipe."""

import io

import pytest
from rich.console import Console
from rich.text import Text

from autogpu.cli.screen import folded, show_line

LINE = "  GPU 2: choice 3: busy, claimed by bert.py (pid 20518)"


@pytest.mark.parametrize(
    ("width", "indent", "pieces"),
    [
        (80, None, [LINE]),
        (32, None, ["  GPU 2: choice 3: busy, claimed", "    by bert.py (pid 20518)"]),
        (32, 9, ["  GPU 2: choice 3: busy, claimed", "         by bert.py (pid 20518)"]),
        (10, 30, ["  GPU 2:", "     choic", "     e 3:", "     busy,", "     claim", "     ed by"]),
    ],
    ids=["fits", "default-indent", "given-indent", "narrow-terminal"],
)
def test_long_line_is_folded_between_words_and_indented(width, indent, pieces):
    assert [piece.plain.rstrip() for piece in folded(Text(LINE), width, indent)][:6] == pieces


def test_pipe_gets_the_line_whole_and_without_colours(capsys):
    line = Text("x" * 300, style="red")
    show_line(Console(file=io.StringIO()), line)
    assert capsys.readouterr().out == line.plain + "\n"
