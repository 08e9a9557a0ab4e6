import sys

import pytest

from autogpu.policy import Origin, Policy, Setting
from autogpu.policy.model import LayerName, Mistake
from tests.support.problems import FILE, default_of, in_file, in_variable


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
    assert resolved.problems == (
        in_file(Mistake.REFUSED_VALUE, 1, key="enabled", written='"ture"', nearest="true"),
        in_file(Mistake.UNKNOWN_KEY, 2, written="count", nearest="select.count"),
        in_file(Mistake.UNKNOWN_KEY, 5, written="select.cuont", nearest="select.count"),
        in_file(Mistake.REFUSED_VALUE, 6, key="select.need", written="6"),
        in_file(Mistake.REFUSED_VALUE, 7, key="select.busy", written='"shared"', nearest='"share"'),
        in_file(Mistake.REFUSED_ENTRY, 8, key="select.exclude", written='"3-1"'),
        in_file(Mistake.UNKNOWN_KEY, 9, written="select.limit", nearest="memory.limit"),
        in_variable(Mistake.REFUSED_VALUE, "AUTOGPU_LIMIT", key="memory.limit", written='"0.5"'),
        in_variable(Mistake.REFUSED_VALUE, "AUTOGPU_WAIT", key="select.wait", written='"soon"'),
        in_variable(Mistake.REFUSED_VALUE, "AUTOGPU", key="enabled", written='"2"'),
    )


def test_mistakes_in_keys_of_the_same_name_have_their_own_lines(workplace):
    workplace.autogpu_toml("[select]\nlimit = 1\n[memory]\nlimit = 1\n[gpu]\nlimit = 1\n[limit]\n")
    assert workplace.problems() == [
        in_file(Mistake.UNKNOWN_KEY, 2, written="select.limit", nearest="memory.limit"),
        in_file(Mistake.REFUSED_VALUE, 4, key="memory.limit", written="1"),
        in_file(Mistake.UNKNOWN_TABLE, 5, written="gpu"),
        in_file(Mistake.UNKNOWN_TABLE, 7, written="limit", nearest="limits"),
    ]


def test_bad_value_keeps_the_value_of_the_layer_below(workplace):
    workplace.user("[select]\ncount = 2\n")
    resolved = workplace.resolve({"AUTOGPU_COUNT": "two"})
    assert resolved.policy.count == 2
    origin = Origin(LayerName.USER, "~/.config/autogpu/autogpu.toml", 2)
    used = Setting("select.count", 2, origin, default_of("select.count"))
    wrong = in_variable(Mistake.REFUSED_VALUE, "AUTOGPU_COUNT", key="select.count", written='"two"', used=used)
    assert resolved.problems == (wrong,)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        pytest.param("select = 3", in_file(Mistake.MUST_BE_TABLE, 1, written="select"), id="not-a-table"),
        pytest.param("[[limits]]", in_file(Mistake.MUST_BE_TABLE, 1, written="limits"), id="array-tables"),
        pytest.param(
            "[selct]\ncount = 2", in_file(Mistake.UNKNOWN_TABLE, 1, written="selct", nearest="select"), id="misspelt"
        ),
        pytest.param(
            "[limit]\nper_user = 2",
            in_file(Mistake.UNKNOWN_TABLE, 1, written="limit", nearest="limits"),
            id="section-like-a-key",
        ),
        pytest.param("[gpu]\n", in_file(Mistake.UNKNOWN_TABLE, 1, written="gpu"), id="no-similar-table"),
        pytest.param(
            "[tool.autogpu.select]\ncount = 2", in_file(Mistake.UNKNOWN_TABLE, 1, written="tool"), id="pyproject-table"
        ),
        pytest.param(
            "[select]\nenabled = true",
            in_file(Mistake.UNKNOWN_KEY, 2, written="select.enabled", nearest="enabled"),
            id="top-level-key-below-a-header",
        ),
        pytest.param("'' = 1\n", in_file(Mistake.UNKNOWN_KEY, 1, written='""'), id="empty-key"),
    ],
)
def test_unknown_name_is_reported_with_the_nearest_known_one(workplace, text, problem):
    workplace.autogpu_toml(text)
    assert workplace.problems() == [problem]


def test_unknown_names_in_the_system_file_are_notes_for_doctor(workplace):
    workplace.system("per_user = 1\n[select]\ncuont = 2\ncount = 2\n[future]\nx = 1\n[[limits]]\n")
    resolved = workplace.resolve()
    assert (resolved.policy.count, resolved.problems) == (2, ())
    assert [note.origin.line for note in resolved.system_notes] == [1, 3, 5, 7]


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        pytest.param("AUTOGPU_CUONT", "select.count", id="misspelt-variable"),
        pytest.param("AUTOGPU_MEMORY_LIMIT", "memory.limit", id="variable-with-its-section"),
        pytest.param("AUTOGPU_MEMORY", "select.need", id="variable-named-like-a-section"),
        pytest.param("AUTOGPU_QQQ", "", id="no-similar-variable"),
    ],
)
def test_unknown_variable_is_reported_with_the_nearest_known_one(workplace, name, nearest):
    assert workplace.problems({name: "1"}) == [in_variable(Mistake.UNKNOWN_VARIABLE, name, nearest=nearest)]


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("GPU", "select.devices"),
        ("VISIBLE_DEVICES", "select.devices"),
        ("GPUS", "select.count"),
        ("NUM_GPUS", "select.count"),
        ("MEMORY", "select.need"),
        ("MEM_LIMIT", "memory.limit"),
        ("DISABLE", "enabled"),
    ],
)
def test_common_synonym_of_a_key_is_reported_with_the_keys_name(workplace, name, meant):
    workplace.autogpu_toml(f"{name.lower()} = 1\n")
    assert workplace.problems({f"AUTOGPU_{name}": "1"}) == [
        in_file(Mistake.UNKNOWN_KEY, 1, written=name.lower(), nearest=meant),
        in_variable(Mistake.UNKNOWN_VARIABLE, f"AUTOGPU_{name}", nearest=meant),
    ]


@pytest.mark.parametrize(
    ("written", "mistake", "facts"),
    [
        ("need = 8192", Mistake.REFUSED_VALUE, {"written": "8192"}),
        ('need = "8192"', Mistake.REFUSED_VALUE, {"written": '"8192"'}),
        ('need = "50%"', Mistake.REFUSED_VALUE, {"written": '"50%"'}),
        ('busy = "waits"', Mistake.REFUSED_VALUE, {"written": '"waits"', "nearest": '"wait"'}),
        ('devices = "1 2"', Mistake.REFUSED_ENTRY, {"written": '"1 2"'}),
        ('devices = ["0-1 3"]', Mistake.REFUSED_ENTRY, {"written": '"0-1 3"'}),
        ('devices = "3090"', Mistake.REFUSED_ENTRY, {"written": '"3090"'}),
        ("devices = [3090]", Mistake.REFUSED_ENTRY, {"written": "3090"}),
    ],
)
def test_refused_value_is_reported_as_written(workplace, written, mistake, facts):
    workplace.autogpu_toml(f"[select]\n{written}\n")
    key = "select." + written.partition(" ")[0]
    assert workplace.problems() == [in_file(mistake, 2, key=key, **facts)]


@pytest.mark.parametrize(
    ("text", "key", "written", "nearest"),
    [
        pytest.param("enabled = flase", "enabled", "flase", "false", id="misspelt-boolean"),
        pytest.param("growth = True", "memory.growth", "True", "true", id="python-boolean"),
        pytest.param("enabled = maybe", "enabled", "maybe", "", id="unknown-boolean"),
        pytest.param("busy = wiat", "select.busy", "wiat", '"wait"', id="misspelt-word"),
        pytest.param("need = 6 apples", "select.need", "6 apples", "", id="wrong-unit"),
        pytest.param("need = 6GiB", "select.need", "6GiB", '"6GiB"', id="unquoted-size"),
        pytest.param("select.need = 6 GiB  # big", "select.need", "6 GiB", '"6GiB"', id="spaces"),
        pytest.param("limit = 50%\r", "memory.limit", "50%", '"50%"', id="unquoted-percentage"),
        pytest.param("busy = wait", "select.busy", "wait", '"wait"', id="unquoted-word"),
        pytest.param("devices = 0,1", "select.devices", "0,1", '["0", "1"]', id="unquoted-list"),
        pytest.param("devices = *A100*", "select.devices", "*A100*", '["*A100*"]', id="unquoted-name"),
        pytest.param("need = “6GiB”", "select.need", "“6GiB”", '"6GiB"', id="typeset-quotes"),
        pytest.param("busy = \u202e2J", "select.busy", r"\u202e2J", "", id="bidi-override"),
    ],
)
def test_value_without_quotes_is_reported_with_the_value_that_is_meant(workplace, text, key, written, nearest):
    workplace.autogpu_toml("\n" + text)
    name = text.partition(" ")[0]
    mistake = Mistake.UNQUOTED if nearest else Mistake.REFUSED_UNQUOTED
    wrong = in_file(mistake, 2, key=key, written=written, nearest=nearest, detail=name)
    assert workplace.problems() == [wrong]


@pytest.mark.parametrize(
    ("text", "written"),
    [
        pytest.param("count = 1\ncount = 2", "count", id="key"),
        pytest.param("[select]\n[select]", "[select]", id="table"),
    ],
)
def test_name_that_is_written_twice_is_reported_at_its_second_line(workplace, text, written):
    workplace.autogpu_toml("\n" + text)
    assert workplace.problems() == [in_file(Mistake.WRITTEN_TWICE, 3, written=written)]


@pytest.mark.parametrize(
    "text", ["count 2", "cuont = two", 'need = "6GiB', "devices = [0, 1g.5gb]", "need =", "\x1b[2J = 6"]
)
def test_unclear_toml_error_is_reported_with_the_parsers_reason(workplace, text):
    workplace.autogpu_toml("\n" + text)
    (problem,) = workplace.problems()
    assert problem == in_file(Mistake.NOT_TOML, 2, detail=problem.detail)
    assert problem.detail.isprintable() and problem.detail


@pytest.mark.parametrize(
    ("table", "mistake"),
    [
        pytest.param("tool.autogpu.report", Mistake.UNQUOTED, id="table-of-autogpu"),
        pytest.param("tool.logger", Mistake.NOT_TOML, id="table-of-another-program"),
    ],
)
def test_line_of_another_program_is_not_judged_as_a_key(workplace, table, mistake):
    workplace.pyproject(f"[tool.autogpu]\n[{table}]\nlevel = lnie\n")
    (problem,) = workplace.problems()
    assert (problem.mistake, str(problem.origin)) == (mistake, "~/proj/pyproject.toml:3")


def test_internal_and_foreign_variables_are_no_problem(workplace):
    names = "AUTOGPU_LEASE", "AUTOGPU_LEASE_DIR", "AUTOGPU_ORIG_CVD", "AUTOGPU_TEST_CACHE", "AUTOGPUX", "PATH"
    below_run = {"AUTOGPU_NEED": "6GiB", "AUTOGPU_RUN_NEED": "6GiB", "AUTOGPU_COUNT": "2", "AUTOGPU_RUN_COUNT": "1"}
    assert workplace.problems({**dict.fromkeys(names, "anything"), **below_run}) == []


@pytest.mark.parametrize(
    ("content", "mistake"),
    [
        pytest.param(b'a = """\n', Mistake.NOT_TOML, id="unterminated-text"),
        pytest.param(b"[select]\na = '\xff'\n", Mistake.NOT_TOML, id="not-utf-8"),
        pytest.param(b"a = " + b"[" * 5000, Mistake.TOO_DEEP, id="nested-lists"),
        pytest.param(b"a = " + b"{a=" * 5000, Mistake.TOO_DEEP, id="nested-tables"),
        pytest.param(b"count = " + b"9" * 9000, None, id="endless-number"),
        pytest.param(b"#" * (1024**2 + 1), Mistake.TOO_LARGE, id="too-large"),
    ],
)
def test_broken_file_is_one_problem_and_the_other_layers_hold(workplace, content, mistake):
    workplace.user("[select]\ncount = 2\n")
    (workplace.project / "autogpu.toml").write_bytes(content)
    resolved = workplace.resolve()
    assert resolved.policy == Policy(count=2)
    (problem,) = resolved.problems
    assert problem.origin.place == FILE
    # Only some Python versions refuse an endless number while they parse it.
    assert problem.mistake in ([mistake] if mistake else [Mistake.NOT_TOML, Mistake.UNKNOWN_KEY])


def test_a_byte_order_mark_is_no_problem(workplace):
    (workplace.project / "autogpu.toml").write_bytes(b"\xef\xbb\xbf[select]\r\ncount = 2\r\n")
    resolved = workplace.resolve()
    assert (resolved.policy.count, resolved.problems) == (2, ())


def test_deep_tables_do_not_break_the_report(workplace):
    workplace.autogpu_toml(f"[select.{'.'.join('a' * 90)}]\n[select.count.{'.'.join('b' * 90)}]\n")
    used = default_of("select.count")
    assert workplace.problems() == [
        in_file(Mistake.UNKNOWN_TABLE, 1, written="select.a"),
        in_file(Mistake.REFUSED_VALUE, 2, key="select.count", written="a table", used=used),
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
@pytest.mark.parametrize(
    "part",
    ["a.", '"a".', "'a' . ", '"\\u0061".', '"\\"".', "'\\'."],
    ids=["bare", "basic", "literal", "escape", "escaped-quote", "backslash"],
)
def test_name_with_many_dots_is_refused_before_it_is_parsed(workplace, text, part):
    workplace.autogpu_toml(text.format(dots=part * 101))
    assert workplace.problems() == [in_file(Mistake.TOO_MANY_DOTS)]


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
    assert resolved.problems == (in_file(Mistake.NO_PARSER),)


def test_text_of_a_hostile_file_cannot_control_a_terminal(workplace):
    workplace.autogpu_toml('[select]\nbusy = "\\u001b[2Jx\\u202e' + "y" * 5000 + '"\n"\\u001b]0;z\\u0007" = 1\n')
    problems = workplace.problems()
    assert len(problems) == 2
    assert all(problem.written.isprintable() and len(problem.written) < 300 for problem in problems)
    assert problems[0].written.startswith('"\\x1b[2Jx\\u202eyyy')


def test_hostile_folder_name_cannot_control_a_terminal(workplace):
    folder = workplace.home / "a\x1b[2J\nb"
    workplace.write(folder / "autogpu.toml", "[select]\ncount = -1\n")
    (problem,) = workplace.resolve(working_directory=folder).problems
    assert str(problem.origin) == "~/a\\x1b[2J\\nb/autogpu.toml:2"
