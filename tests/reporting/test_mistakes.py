"""Sentences about mistakes in the policy."""

import pytest

from autogpu.policy import Origin, Setting
from autogpu.policy.model import LayerName, Mistake
from autogpu.reporting.mistakes import policy_problem, what_is_wrong
from tests.support.problems import FILE, default_of, in_file, in_variable

COUNTS = 'a number of GPUs (0 for CPU only; to choose which: AUTOGPU_DEVICES=1,2), or "all"'
SIZES = 'a size with its unit such as "6GiB", or "" for none'
LISTS = 'a list of indexes ("0"), ranges ("0-3"), UUID prefixes ("GPU-5d0f") and names ("*A100*")'
LIST = "(`autogpu config` lists the keys)"
USUAL = 'put text in quotes, as in "6GiB"; each key and table may appear only once'
PATH = "/home/eve/proj/autogpu.toml"
USE = f"AUTOGPU_POLICY={PATH}"
CHMOD = f"chmod go-w {PATH}, or set AUTOGPU_POLICY to that path"


def unquoted(mistake, written, nearest=""):
    return in_file(mistake, 3, key="select.need", written=written, nearest=nearest, detail="need")


CASES = [
    (
        in_file(Mistake.REFUSED_VALUE, 1, key="enabled", written='"maybe"'),
        f'{FILE}:1: enabled can\'t be "maybe"; allowed: true or false; the default true is used',
    ),
    (
        in_file(Mistake.REFUSED_ENTRY, 8, key="select.exclude", written="-1"),
        f"{FILE}:8: select.exclude can't contain -1; allowed: {LISTS}; the setting is ignored",
    ),
    (
        in_variable(Mistake.SYSTEM_ONLY, "AUTOGPU_PER_USER", key="limits.per_user"),
        "AUTOGPU_PER_USER: limits.per_user can be set only in the system file, /etc/autogpu/autogpu.toml; "
        "the default 0 is used",
    ),
    (
        in_file(Mistake.LOCKED, 2, key="select.count", detail="/etc/autogpu/autogpu.toml:1"),
        f"{FILE}:2: select.count is locked by /etc/autogpu/autogpu.toml:1; the default 1 is used",
    ),
    (
        in_file(Mistake.UNKNOWN_KEY, 2, written="cuont", nearest="select.count"),
        f"{FILE}:2: unknown key cuont, nearest is select.count ({COUNTS}); it is ignored",
    ),
    (in_file(Mistake.UNKNOWN_KEY, 2, written="qqq"), f"{FILE}:2: unknown key qqq {LIST}; it is ignored"),
    (
        in_file(Mistake.UNKNOWN_TABLE, 1, written="selct", nearest="select"),
        f"{FILE}:1: unknown table selct, nearest is [select]; it is ignored",
    ),
    (in_file(Mistake.UNKNOWN_TABLE, 1, written="gpu"), f"{FILE}:1: unknown table gpu {LIST}; it is ignored"),
    (
        in_variable(Mistake.UNKNOWN_VARIABLE, "AUTOGPU_CUONT", nearest="select.count"),
        f"AUTOGPU_CUONT is not a variable of autogpu, nearest is AUTOGPU_COUNT ({COUNTS}); it is ignored",
    ),
    (
        in_variable(Mistake.UNKNOWN_VARIABLE, "AUTOGPU_QQQ"),
        f"AUTOGPU_QQQ is not a variable of autogpu {LIST}; it is ignored",
    ),
    (
        in_file(Mistake.MUST_BE_TABLE, 1, written="select"),
        f"{FILE}:1: select is a table of keys, written [select] {LIST}; it is ignored",
    ),
    (
        in_file(Mistake.UNKNOWN_LOCK, 1, written='"select.exlude"', nearest="select.exclude"),
        f'{FILE}:1: locked contains "select.exlude", which is not a key, nearest is select.exclude; it is ignored',
    ),
    (
        in_file(Mistake.UNKNOWN_LOCK, 1, written='"qqq"'),
        f'{FILE}:1: locked contains "qqq", which is not a key {LIST}; it is ignored',
    ),
    (
        in_file(Mistake.UNKNOWN_GROUP, 2, written='"studnets"'),
        f'{FILE}:2: limits.per_user contains "studnets", which is not a group on this host; it is ignored',
    ),
    (
        in_variable(Mistake.NO_FILE, "AUTOGPU_POLICY", written="~/x.toml"),
        "AUTOGPU_POLICY is ~/x.toml, which does not exist or can't be reached; no project file is read",
    ),
    (in_file(Mistake.NOT_REGULAR), f"{FILE} is not a regular file; this file is ignored"),
    (
        in_file(Mistake.UNREADABLE, detail="Permission denied"),
        f"{FILE} can't be read (Permission denied); this file is ignored",
    ),
    (in_file(Mistake.TOO_LARGE), f"{FILE} is larger than 1024 KiB; this file is ignored"),
    (
        in_file(Mistake.TOO_DEEP),
        f"{FILE} can't be read: brackets are nested more than 100 deep; this file is ignored",
    ),
    (
        in_file(Mistake.TOO_MANY_DOTS),
        f"{FILE} can't be read: a name has more than 100 dots; this file is ignored",
    ),
    (
        in_file(Mistake.NO_PARSER),
        f"{FILE} can't be read: this Python has no parser for TOML; this file is ignored",
    ),
    (in_file(Mistake.NO_TABLE), f"{FILE} has no table [tool.autogpu]; this file is ignored"),
    (
        in_file(Mistake.NOT_TOML, 3, detail="Invalid {value}"),
        f"{FILE}:3 is not valid TOML: Invalid {{value}} ({USUAL}); this file is ignored",
    ),
    (
        in_file(Mistake.WRITTEN_TWICE, 3, written="[select]"),
        f"{FILE}:3 is not valid TOML: [select] is written twice; this file is ignored",
    ),
    (
        unquoted(Mistake.UNQUOTED, "6GiB", '"6GiB"'),
        f'{FILE}:3 is not valid TOML: write need = "6GiB", not need = 6GiB; this file is ignored',
    ),
    (
        unquoted(Mistake.REFUSED_UNQUOTED, "6 apples"),
        f"{FILE}:3 is not valid TOML: need can't be 6 apples; allowed: {SIZES}; this file is ignored",
    ),
]

# The reason not to trust a file, and the remedy.
UNTRUSTED = {
    Mistake.FILE_OF_OTHERS: ("it belongs to uid 7", USE),
    Mistake.FILE_OPEN_TO_ALL: ("it can be written by every user", CHMOD),
    Mistake.FILE_OPEN_TO_GROUP: ("it can be written by group 7", CHMOD),
    Mistake.FOLDER_OF_OTHERS: ("its folder /home/eve/proj belongs to uid 7", USE),
    Mistake.FOLDER_OPEN_TO_ALL: ("its folder /home/eve/proj can be written by every user", USE),
    Mistake.FOLDER_OPEN_TO_GROUP: ("its folder /home/eve/proj can be written by group 7", USE),
    Mistake.LINK: ("it is a link, or was replaced while it was read", USE),
}


def test_each_mistake_has_a_line():
    assert {problem.mistake for problem, _ in CASES} | UNTRUSTED.keys() == set(Mistake)


@pytest.mark.parametrize(("problem", "line"), CASES)
def test_line_about_a_mistake_has_its_cause_and_what_applies_instead(problem, line):
    assert policy_problem(problem) == line


@pytest.mark.parametrize("mistake", UNTRUSTED, ids=lambda mistake: mistake.name)
def test_line_about_an_untrusted_file_has_the_reason_and_a_remedy(mistake):
    why, remedy = UNTRUSTED[mistake]
    line = f"{FILE} is not used as a project file: {why} (to use it: {remedy})"
    assert policy_problem(in_file(mistake, written=PATH, detail="7")) == line


@pytest.mark.parametrize(
    ("key", "mistake", "written", "nearest", "hint"),
    [
        ("select.need", Mistake.REFUSED_VALUE, "8192", "", 'add the unit, as in "6GiB"'),
        ("select.need", Mistake.REFUSED_VALUE, '"8192"', "", 'add the unit, as in "6GiB"'),
        ("select.need", Mistake.REFUSED_VALUE, '"50%"', "", "did you mean limit?"),
        ("memory.limit", Mistake.REFUSED_VALUE, '"0.5"', "", 'add the unit, as in "6GiB"'),
        ("select.busy", Mistake.REFUSED_VALUE, '"waits"', '"wait"', 'nearest is "wait"'),
        ("select.devices", Mistake.REFUSED_ENTRY, '"1 2"', "", "write commas between them"),
        ("select.devices", Mistake.REFUSED_ENTRY, '"0-1 3"', "", "write commas between them"),
        ("select.devices", Mistake.REFUSED_ENTRY, '"3-1"', "", "the smaller number comes first"),
        ("select.devices", Mistake.REFUSED_ENTRY, '"3090"', "", 'write a name between stars, such as "*3090*"'),
        ("select.devices", Mistake.REFUSED_ENTRY, "3090", "", 'write a name between stars, such as "*3090*"'),
    ],
)
def test_refused_value_that_is_a_common_mistake_is_followed_by_advice(key, mistake, written, nearest, hint):
    verb = "contain" if mistake is Mistake.REFUSED_ENTRY else "be"
    line = what_is_wrong(in_file(mistake, 2, key=key, written=written, nearest=nearest))
    assert line.startswith(f"{FILE}:2: {key} can't {verb} {written} ({hint}); allowed: ")


@pytest.mark.parametrize(
    ("dotted", "value", "instead"),
    [
        ("select.count", 2, "2 from ~/.config/autogpu/autogpu.toml:2 is used"),
        ("select.exclude", ("0",), '["0"] from ~/.config/autogpu/autogpu.toml:2 is used'),
        ("select.count", None, "the default 1 is used"),
        ("select.need", None, "the setting is ignored"),
        ("select.exclude", None, "the setting is ignored"),
    ],
)
def test_line_ends_with_the_value_that_applies_instead(dotted, value, instead):
    origin = Origin(LayerName.USER, "~/.config/autogpu/autogpu.toml", 2)
    default = default_of(dotted)
    used = default if value is None else Setting(dotted, value, origin, default)
    locked = in_variable(Mistake.LOCKED, "AUTOGPU_X", key=dotted, detail="/etc/x:1", used=used)
    assert policy_problem(locked) == f"AUTOGPU_X: {dotted} is locked by /etc/x:1; {instead}"
    assert what_is_wrong(locked) == f"AUTOGPU_X: {dotted} is locked by /etc/x:1"
