from __future__ import annotations

import pytest

from autogpu.policy.sources import line_of


@pytest.mark.parametrize(
    ("text", "name", "line"),
    [
        pytest.param("[select]\n\ncount = 2\n", "count", 3, id="below-a-header"),
        pytest.param("# count = 1\n[select] # [memory]\ncount=2 # count = 1", "count", 3, id="comments"),
        pytest.param("select.count = 2", "count", 1, id="dotted"),
        pytest.param("x = 1\nselect = { need = '', count = 2 }", "count", 2, id="inline-table"),
        pytest.param("[ 'select' ]\n\"count\" = 2", "count", 2, id="quoted"),
        pytest.param('a = """\n[select]\ncount = 1\n"""\n[select]\ncount = 2', "count", None, id="text-like-it"),
        pytest.param("a = '''\ncount = 1'''''\ncount = 2", "count", None, id="text-ends-in-five-quotes"),
        pytest.param('a = """\\"""\ncount = 1"""\ncount = 2', "count", None, id="escaped-quotes"),
        pytest.param("a = [\n  '[select]', # ]\n  1,\n]\ncount = 2", "count", 5, id="array-over-lines"),
        pytest.param("[select]\r\ncount = 2\r\n", "count", 2, id="windows"),
        pytest.param("[tool.autogpu.select]\ncount = 2", "count", 2, id="pyproject"),
        pytest.param("[select]\n[memory]\ncount = 2", "memory", 2, id="header-itself"),
        pytest.param("[select]\ncount = 2", "need", None, id="absent"),
        pytest.param('[select]\n"co\\u0075nt" = 2\nneed = ""', "count", None, id="escape"),
        pytest.param("[select]\nlimit = 1\n[memory]\nlimit = 1", "limit", None, id="in-two-tables"),
        pytest.param("[select]\ncounts = 2\nmy_count = 2\nmy-count = 2\ncount = 2", "count", 5, id="part-of-a-name"),
        pytest.param("[[select]]\n[[select]]", "select", None, id="array-of-tables"),
        pytest.param('locked = ["limit", "count"]\n[select]\ncount = 2', "count", 3, id="value-like-it"),
    ],
)
def test_line_of_a_key_is_right_or_unknown(text, name, line):
    assert line_of(text, name) == line
