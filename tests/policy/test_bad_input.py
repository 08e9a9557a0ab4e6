import re
import sys

import pytest

from autogpu.policy import Policy
from autogpu.policy.model import LayerName

FILE = "~/proj/autogpu.toml"
COUNTS = 'a number of GPUs (0 for CPU only; to choose which: AUTOGPU_DEVICES=1,2), or "all"'
BUSY = '"share", "wait", "cpu" or "error"'
LIMITS = 'a size with its unit such as "8GiB", a percentage such as "50%", or "" for none'
SIZES = 'a size with its unit such as "6GiB", or "" for none'
NOTHING_NEAR = "; `autogpu config` lists the keys"


def test_all_problems_are_reported_and_valid_settings_hold(workplace):
    workplace.autogpu_toml(
        """\
        enabled = "ture"
        count = 2

        [select]
        cuont = 3
        need = 6
        busy = "shared"
        exclude = ["0", "3-1"]
        limit = "50%"

        [memory]
        growth = false
        """
    )
    resolved = workplace.resolve({"AUTOGPU_LIMIT": "0.5", "AUTOGPU_WAIT": "soon", "AUTOGPU": "2"})
    assert resolved.policy == Policy(growth=False)
    assert [str(problem) for problem in resolved.problems] == [
        f'{FILE}:1: enabled can\'t be "ture" (nearest is true); allowed: true or false; the default true is used',
        f"{FILE}:2: unknown key count, nearest is select.count ({COUNTS}); it is ignored",
        f"{FILE}:5: unknown key select.cuont, nearest is select.count ({COUNTS}); it is ignored",
        f'{FILE}:6: select.need can\'t be 6 (add the unit, as in "6GiB"); '
        'allowed: a size with its unit such as "6GiB", or "" for none; the setting is ignored',
        f'{FILE}:7: select.busy can\'t be "shared" (nearest is "share"); allowed: "share", '
        '"wait", "cpu" or "error"; the default "share" is used',
        f'{FILE}:8: select.exclude can\'t contain "3-1" (the smaller number comes first); allowed: a list of '
        'indexes ("0"), ranges ("0-3"), UUID prefixes ("GPU-5d0f") and names ("*A100*"); the setting is ignored',
        f"{FILE}:9: unknown key select.limit, nearest is memory.limit ({LIMITS}); it is ignored",
        f'AUTOGPU_LIMIT: memory.limit can\'t be "0.5" (add the unit, as in "6GiB"); allowed: {LIMITS}; '
        "the setting is ignored",
        'AUTOGPU_WAIT: select.wait can\'t be "soon"; allowed: a duration such as "30m", "90s" or "1h30m", up to 365d; '
        'a number alone is seconds; the default "30m" is used',
        'AUTOGPU: enabled can\'t be "2"; allowed: true or false; the default true is used',
    ]


def test_bad_value_keeps_the_value_of_the_layer_below(workplace):
    workplace.user("[select]\ncount = 2\n")
    resolved = workplace.resolve({"AUTOGPU_COUNT": "two"})
    assert resolved.policy.count == 2
    (problem,) = resolved.problems
    file = "~/.config/autogpu/autogpu.toml:2"
    assert str(problem) == f'AUTOGPU_COUNT: select.count can\'t be "two"; allowed: {COUNTS}; 2 from {file} is used'
    assert (problem.key, problem.origin.layer) == ("select.count", LayerName.ENVIRONMENT)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        pytest.param("select = 3", f":1: select is a table of keys, written [select]{NOTHING_NEAR}", id="not-a-table"),
        pytest.param("[[limits]]", f":1: limits is a table of keys, written [limits]{NOTHING_NEAR}", id="array-tables"),
        pytest.param("[selct]\ncount = 2", ":1: unknown table selct, nearest is [select]", id="misspelt-section"),
        pytest.param("[limit]\nper_user = 2", ":1: unknown table limit, nearest is [limits]", id="section-like-a-key"),
        pytest.param("[gpu]\n", f":1: unknown table gpu{NOTHING_NEAR}", id="no-similar-table"),
        pytest.param("[tool.autogpu.select]\ncount = 2", f":1: unknown table tool{NOTHING_NEAR}", id="pyproject-table"),
        pytest.param(
            "[select]\nenabled = true",
            ":2: unknown key select.enabled, nearest is enabled (true or false)",
            id="top-level-key-below-a-header",
        ),
        pytest.param("'' = 1\n", f':1: unknown key ""{NOTHING_NEAR}', id="empty-key"),
    ],
)
def test_unknown_name_is_reported_with_the_nearest_known_one(workplace, text, problem):
    workplace.autogpu_toml(text)
    assert workplace.problems() == [f"{FILE}{problem}; it is ignored"]


def test_unknown_names_in_the_system_file_are_notes_for_doctor(workplace):
    workplace.system("per_user = 1\n[select]\ncuont = 2\ncount = 2\n[future]\nx = 1\n[[limits]]\n")
    resolved = workplace.resolve()
    assert (resolved.policy.count, resolved.problems) == (2, ())
    assert [note.origin.line for note in resolved.system_notes] == [1, 3, 5, 7]


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        pytest.param("AUTOGPU_CUONT", f", nearest is AUTOGPU_COUNT ({COUNTS})", id="misspelt-variable"),
        pytest.param("AUTOGPU_MEMORY_LIMIT", f", nearest is AUTOGPU_LIMIT ({LIMITS})", id="variable-with-its-section"),
        pytest.param("AUTOGPU_MEMORY", f", nearest is AUTOGPU_NEED ({SIZES})", id="variable-named-like-a-section"),
        pytest.param("AUTOGPU_QQQ", "; `autogpu config` lists the keys", id="no-similar-variable"),
    ],
)
def test_unknown_variable_is_reported_with_the_nearest_known_one(workplace, name, problem):
    assert workplace.problems({name: "1"}) == [f"{name} is not a variable of autogpu{problem}; it is ignored"]


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("GPU", "devices"),
        ("VISIBLE_DEVICES", "devices"),
        ("GPUS", "count"),
        ("NUM_GPUS", "count"),
        ("MEMORY", "need"),
        ("MEM_LIMIT", "limit"),
        ("DISABLE", "enabled"),
    ],
)
def test_common_synonym_of_a_key_is_reported_with_the_keys_name(workplace, name, meant):
    (variable,) = workplace.problems({f"AUTOGPU_{name}": "1"})
    assert variable.startswith(f"AUTOGPU_{name} is not a variable of autogpu, nearest is AUTOGPU_{meant.upper()} (")
    workplace.autogpu_toml(f"{name.lower()} = 1\n")
    (key,) = workplace.problems()
    assert re.search(rf"unknown key {name.lower()}, nearest is (\w+\.)?{meant} \(", key)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("need = 8192", '8192 (add the unit, as in "6GiB")'),
        ('need = "8192"', '"8192" (add the unit, as in "6GiB")'),
        ('need = "50%"', '"50%" (did you mean limit?)'),
        ('busy = "waits"', '"waits" (nearest is "wait")'),
        ('devices = "1 2"', '"1 2" (write commas between them)'),
        ('devices = ["0-1 3"]', '"0-1 3" (write commas between them)'),
        ('devices = "3090"', '"3090" (write a name between stars, such as "*3090*")'),
        ("devices = [3090]", '3090 (write a name between stars, such as "*3090*")'),
    ],
)
def test_common_mistake_in_a_value_is_reported_with_a_correction(workplace, written, meant):
    workplace.autogpu_toml(f"[select]\n{written}\n")
    (problem,) = workplace.problems()
    key = written.partition(" ")[0]
    verb = "contain" if key == "devices" else "be"
    assert problem.startswith(f"{FILE}:2: select.{key} can't {verb} {meant}; allowed: ")


@pytest.mark.parametrize(
    ("text", "mistake"),
    [
        pytest.param("enabled = flase", "write enabled = false, not enabled = flase", id="misspelt-boolean"),
        pytest.param("growth = True", "write growth = true, not growth = True", id="python-boolean"),
        pytest.param("enabled = maybe", "enabled can't be maybe; allowed: true or false", id="unknown-boolean"),
        pytest.param("busy = wiat", 'write busy = "wait", not busy = wiat', id="misspelt-word"),
        pytest.param("need = 6 apples", f"need can't be 6 apples; allowed: {SIZES}", id="wrong-unit"),
        pytest.param("need = 6GiB", 'write need = "6GiB", not need = 6GiB', id="unquoted-size"),
        pytest.param("select.need = 6 GiB  # big", 'write select.need = "6GiB", not select.need = 6 GiB', id="spaces"),
        pytest.param("limit = 50%\r", 'write limit = "50%", not limit = 50%', id="unquoted-percentage"),
        pytest.param("busy = wait", 'write busy = "wait", not busy = wait', id="unquoted-word"),
        pytest.param("devices = 0,1", 'write devices = ["0", "1"], not devices = 0,1', id="unquoted-list"),
        pytest.param("devices = *A100*", 'write devices = ["*A100*"], not devices = *A100*', id="unquoted-name"),
        pytest.param("need = “6GiB”", 'write need = "6GiB", not need = “6GiB”', id="typeset-quotes"),
        pytest.param("count = 1\ncount = 2", "count is written twice", id="key-twice"),
        pytest.param("[select]\n[select]", "[select] is written twice", id="table-twice"),
        pytest.param("busy = \u202e2J", rf"busy can't be \u202e2J; allowed: {BUSY}", id="bidi-override"),
    ],
)
def test_common_toml_mistake_is_reported_with_a_correction(workplace, text, mistake):
    workplace.autogpu_toml("\n" + text)
    line = 2 + text.count("\n")
    assert workplace.problems() == [f"{FILE}:{line} is not valid TOML: {mistake}; this file is ignored"]


@pytest.mark.parametrize(
    "text", ["count 2", "cuont = two", 'need = "6GiB', "devices = [0, 1g.5gb]", "need =", "\x1b[2J = 6"]
)
def test_unclear_toml_error_is_reported_with_the_usual_mistakes(workplace, text):
    workplace.autogpu_toml("\n" + text)
    (problem,) = workplace.problems()
    assert problem.startswith(f"{FILE}:{2 + text.count(chr(10))} is not valid TOML: ")
    usual = 'put text in quotes, as in "6GiB"; each key and table may appear only once'
    assert problem.endswith(f" ({usual}); this file is ignored")


@pytest.mark.parametrize(
    ("table", "mistake"),
    [
        pytest.param("tool.autogpu.report", 'write level = "line", not level = lnie;', id="table-of-autogpu"),
        pytest.param("tool.logger", "Invalid value (put text", id="table-of-another-program"),
    ],
)
def test_line_of_another_program_is_not_judged_as_a_key(workplace, table, mistake):
    workplace.pyproject(f"[tool.autogpu]\n[{table}]\nlevel = lnie\n")
    (problem,) = workplace.problems()
    assert problem.startswith(f"~/proj/pyproject.toml:3 is not valid TOML: {mistake}")


def test_internal_and_foreign_variables_are_no_problem(workplace):
    names = "AUTOGPU_LEASE", "AUTOGPU_LEASE_DIR", "AUTOGPU_ORIG_CVD", "AUTOGPU_TEST_CACHE", "AUTOGPUX", "PATH"
    below_run = {"AUTOGPU_NEED": "6GiB", "AUTOGPU_RUN_NEED": "6GiB", "AUTOGPU_COUNT": "2", "AUTOGPU_RUN_COUNT": "1"}
    assert workplace.problems({**dict.fromkeys(names, "anything"), **below_run}) == []


TOO_DEEP = " can't be read: brackets are nested more than 100 deep"


@pytest.mark.parametrize(
    ("content", "pattern"),
    [
        pytest.param(b'a = """\n', " is not valid TOML: .+", id="unterminated-text"),
        pytest.param(b"[select]\na = '\xff'\n", " is not valid TOML: .+", id="not-utf-8"),
        pytest.param(b"a = " + b"[" * 5000, TOO_DEEP, id="nested-lists"),
        pytest.param(b"a = " + b"{a=" * 5000, TOO_DEEP, id="nested-tables"),
        pytest.param(b"count = " + b"9" * 9000, ".*", id="endless-number"),
        pytest.param(b"#" * (1024**2 + 1), " is larger than 1024 KiB", id="too-large"),
    ],
)
def test_broken_file_is_one_problem_and_the_other_layers_hold(workplace, content, pattern):
    workplace.user("[select]\ncount = 2\n")
    (workplace.project / "autogpu.toml").write_bytes(content)
    resolved = workplace.resolve()
    assert resolved.policy == Policy(count=2)
    (problem,) = resolved.problems
    assert re.fullmatch(FILE + pattern, problem.what.partition("; allowed")[0])
    assert str(problem).count("\n") == 0


def test_a_byte_order_mark_is_no_problem(workplace):
    (workplace.project / "autogpu.toml").write_bytes(b"\xef\xbb\xbf[select]\r\ncount = 2\r\n")
    resolved = workplace.resolve()
    assert (resolved.policy.count, resolved.problems) == (2, ())


def test_deep_tables_do_not_break_the_report(workplace):
    workplace.autogpu_toml(f"[select.{'.'.join('a' * 90)}]\n[select.count.{'.'.join('b' * 90)}]\n")
    lines = [problem.what.partition(",")[0].partition(";")[0] for problem in workplace.resolve().problems]
    assert lines == [
        "~/proj/autogpu.toml:1: unknown table select.a",
        "~/proj/autogpu.toml:2: select.count can't be a table",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "{dots}a = 1",
        "[{dots}a]",
        "[[{dots}a]]",
        'x = {{ y = "1.1", {dots}a = 1 }}',
        "select.need = 1 # {dots}\n{dots}a = 1",
        '"".' + "{dots}a = 1",
    ],
)
@pytest.mark.parametrize("part", ["a.", '"a".', "'a' . "], ids=["bare", "basic", "literal"])
def test_name_with_many_dots_is_refused_before_it_is_parsed(workplace, text, part):
    workplace.autogpu_toml(text.format(dots=part * 101))
    assert workplace.problems() == [f"{FILE} can't be read: a name has more than 100 dots; this file is ignored"]


def test_dots_in_comments_texts_and_numbers_are_accepted(workplace):
    dots = "." * 200
    numbers = ", ".join(["1.5"] * 200)
    text = f'# {dots}\ntext = \'{dots}\' # {dots}\nlong = """\n{dots}\n"""\nnumbers = [{numbers}]\n'
    workplace.autogpu_toml(text + "[select]\ncount = 2\n")
    assert workplace.resolve().policy.count == 2


@pytest.mark.parametrize("layer", ["system", "project"])
def test_at_most_20_unknown_names_of_a_file_are_reported(workplace, layer):
    text = "".join(f"kount{number} = 1\n" for number in range(5000)) + "[select]\ncount = 2\n"
    workplace.system(text) if layer == "system" else workplace.autogpu_toml(text)
    resolved = workplace.resolve()
    assert (resolved.policy.count, len(resolved.system_notes or resolved.problems)) == (2, 20)


def test_variables_hold_without_a_toml_parser(workplace, monkeypatch):
    for name in ("tomllib", "tomli"):
        monkeypatch.setitem(sys.modules, name, None)
    workplace.autogpu_toml("[select]\ncount = 2\n")
    resolved = workplace.resolve({"AUTOGPU_COUNT": "3"})
    assert resolved.policy.count == 3
    assert [*map(str, resolved.problems)] == [
        f"{FILE} can't be read: this Python has no parser for TOML; this file is ignored"
    ]


def test_text_of_a_hostile_file_cannot_control_a_terminal(workplace):
    workplace.autogpu_toml('[select]\nbusy = "\\u001b[2Jx\\u202e' + "y" * 5000 + '"\n"\\u001b]0;z\\u0007" = 1\n')
    lines = workplace.problems()
    assert len(lines) == 2
    assert all(line.isprintable() and len(line) < 500 for line in lines)
    assert lines[0].startswith("~/proj/autogpu.toml:2: select.busy can't be \"\\x1b[2Jx\\u202eyyy")


def test_hostile_folder_name_cannot_control_a_terminal(workplace):
    folder = workplace.home / "a\x1b[2J\nb"
    workplace.write(folder / "autogpu.toml", "[select]\ncount = -1\n")
    (problem,) = workplace.resolve(working_directory=folder).problems
    assert str(problem).startswith("~/a\\x1b[2J\\nb/autogpu.toml:2: select.count can't be -1;")
