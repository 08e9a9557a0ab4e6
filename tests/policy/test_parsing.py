"""The lines of keys and tables in a policy file."""

import pytest

from autogpu.policy.parsing import parse


@pytest.mark.parametrize(
    ("text", "path", "line"),
    [
        pytest.param("[select]\n\ncount = 2\n", "select.count", 3, id="below-a-header"),
        pytest.param("# count = 1\n[select] # [memory]\ncount=2 # count = 1", "select.count", 3, id="key-in-comments"),
        pytest.param("select.count = 2", "select.count", 1, id="dotted-key"),
        pytest.param("\nselect . 'need' = ''\nselect.\"count\" = 2", "select.count", 3, id="dotted-key-in-quotes"),
        pytest.param("x = 1\nselect = { need = '', count = 2 }", "select.count", 2, id="inline-table"),
        pytest.param("x = 1\na.b = {c = {d = 2}}", "a.b.c.d", 2, id="inline-table-in-another"),
        pytest.param("a = {x = 1, b = [\n1,\n2]}", "a.b", None, id="inline-table-over-lines"),
        pytest.param("x = 1\na = {b = [\n1,\n2]}", "a", 2, id="key-of-an-inline-table-over-lines"),
        pytest.param("[ 'select' ]\n\"count\" = 2", "select.count", 2, id="quoted-key"),
        pytest.param('a = """\n[select]\ncount = 1\n"""\n[select]\ncount = 2', "select.count", 6, id="key-in-a-text"),
        pytest.param("a = '''\ncount = 1'''''\ncount = 2", "count", 3, id="text-ends-in-five-quotes"),
        pytest.param("a = '''x'''' # '[\ncount = 2", "count", 2, id="literal-text-ends-in-four-quotes"),
        pytest.param('a = """x"""" # "[\ncount = 2', "count", 2, id="text-ends-in-four-quotes"),
        pytest.param('a = """\\"""\ncount = 1"""\ncount = 2', "count", 3, id="escaped-quotes"),
        pytest.param('a = "[ # {"\ncount = 2', "count", 2, id="brackets-in-a-text"),
        pytest.param('a = "\\"" # """\ncount = 2', "count", 2, id="escaped-quote-before-a-comment"),
        pytest.param("a = [\n  '[select]', # ]\n  1,\n]\ncount = 2", "count", 5, id="array-over-lines"),
        pytest.param("a = [ # [\n [\n[1]]]\n[select]\ncount = 2", "select.count", 5, id="nested-array"),
        pytest.param("[select]\r\ncount = 2\r\n", "select.count", 2, id="windows-line-ends"),
        pytest.param("[tool.autogpu.select]\ncount = 2", "tool.autogpu.select.count", 2, id="pyproject-table"),
        pytest.param("[select]\n[memory]\ncount = 2", "memory", 2, id="section-header"),
        pytest.param("[a]\n[a.b.c]\n[d]", "a.b", 2, id="table-with-a-header-only-for-an-inner-table"),
        pytest.param("[select]\ncount = 2", "select.need", None, id="absent-key"),
        pytest.param('[select]\n"co\\u0075nt" = 2\nneed = ""', "select.count", 2, id="escaped-key"),
        pytest.param("['a\\u0062']\ncount = 1\n[ab]\ncount = 2", "ab.count", 4, id="backslash-in-a-literal-name"),
        pytest.param("[select]\nlimit = 1\n[memory]\nlimit = 1", "memory.limit", 4, id="key-in-two-tables"),
        pytest.param("[limit]\nx = 1\n[memory]\nlimit = 1", "memory.limit", 4, id="key-named-like-a-table"),
        pytest.param("[select]\ncounts = 2\nmy-count = 2\ncount = 2", "select.count", 4, id="longer-key-names"),
        pytest.param("\n[[select]]\n[[select]]", "select", 2, id="array-of-tables"),
        pytest.param('locked = ["limit", "count"]\n[select]\ncount = 2', "select.count", 3, id="value-like-the-key"),
    ],
)
def test_line_of_a_key_is_the_line_on_which_it_is_set(text, path, line):
    assert parse(text.encode(), is_shared=False).line_of(tuple(path.split("."))) == line
