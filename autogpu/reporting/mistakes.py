"""Sentences about mistakes in the policy. A process imports this module only if it has a mistake to report."""

from __future__ import annotations

import re

from autogpu.policy.model import BY_DOTTED, SYSTEM_FILE, Mistake, Problem
from autogpu.policy.parsing import DEEPEST_BRACKETS, MOST_DOTS
from autogpu.policy.sources import LARGEST_FILE_BYTES
from autogpu.variables import POLICY_FILE

_NOTHING_NEAR = " (`autogpu config` lists the keys)"
_USUAL = 'put text in quotes, as in "6GiB"; each key and table may appear only once'
_NOT_USED = "{origin} is not used as a project file:"
_BY_PATH = f"(to use it: {POLICY_FILE}={{written}})"
_BY_MODE = f"(to use it: chmod go-w {{written}}, or set {POLICY_FILE} to that path)"

# Mistakes in a value or a name. The rest of the layer applies.
_ENTRIES = {
    Mistake.REFUSED_VALUE: "{origin}: {key} can't be {written}{hint}; allowed: {allowed}",
    Mistake.REFUSED_ENTRY: "{origin}: {key} can't contain {written}{hint}; allowed: {allowed}",
    Mistake.SYSTEM_ONLY: f"{{origin}}: {{key}} can be set only in the system file, {SYSTEM_FILE}",
    Mistake.LOCKED: "{origin}: {key} is locked by {detail}",
    Mistake.UNKNOWN_KEY: "{origin}: unknown key {written}{hint}",
    Mistake.UNKNOWN_TABLE: "{origin}: unknown table {written}{hint}",
    Mistake.UNKNOWN_VARIABLE: "{origin} is not a variable of autogpu{hint}",
    Mistake.MUST_BE_TABLE: f"{{origin}}: {{written}} is a table of keys, written [{{written}}]{_NOTHING_NEAR}",
    Mistake.UNKNOWN_LOCK: "{origin}: locked contains {written}, which is not a key{hint}",
    Mistake.UNKNOWN_GROUP: "{origin}: limits.per_user contains {written}, which is not a group on this host",
    Mistake.NO_FILE: "{origin} is {written}, which does not exist or can't be reached",
}

# Mistakes that make autogpu ignore the whole file.
_FILES = {
    Mistake.NOT_REGULAR: "{origin} is not a regular file",
    Mistake.UNREADABLE: "{origin} can't be read ({detail})",
    Mistake.TOO_LARGE: f"{{origin}} is larger than {LARGEST_FILE_BYTES // 1024} KiB",
    Mistake.TOO_DEEP: f"{{origin}} can't be read: brackets are nested more than {DEEPEST_BRACKETS} deep",
    Mistake.TOO_MANY_DOTS: f"{{origin}} can't be read: a name has more than {MOST_DOTS} dots",
    Mistake.NO_PARSER: "{origin} can't be read: this Python has no parser for TOML",
    Mistake.NO_TABLE: "{origin} has no table [tool.autogpu]",
    Mistake.NOT_TOML: f"{{origin}} is not valid TOML: {{detail}} ({_USUAL})",
    Mistake.WRITTEN_TWICE: "{origin} is not valid TOML: {written} is written twice",
    Mistake.UNQUOTED: "{origin} is not valid TOML: write {detail} = {nearest}, not {detail} = {written}",
    Mistake.REFUSED_UNQUOTED: "{origin} is not valid TOML: {detail} can't be {written}; allowed: {allowed}",
}

# Reasons why autogpu does not trust a project file, and ignores it.
_UNTRUSTED = {
    Mistake.FILE_OF_OTHERS: f"{_NOT_USED} it belongs to uid {{detail}} {_BY_PATH}",
    Mistake.FILE_OPEN_TO_ALL: f"{_NOT_USED} it can be written by every user {_BY_MODE}",
    Mistake.FILE_OPEN_TO_GROUP: f"{_NOT_USED} it can be written by group {{detail}} {_BY_MODE}",
    Mistake.FOLDER_OF_OTHERS: f"{_NOT_USED} its folder {{folder}} belongs to uid {{detail}} {_BY_PATH}",
    Mistake.FOLDER_OPEN_TO_ALL: f"{_NOT_USED} its folder {{folder}} can be written by every user {_BY_PATH}",
    Mistake.FOLDER_OPEN_TO_GROUP: f"{_NOT_USED} its folder {{folder}} can be written by group {{detail}} {_BY_PATH}",
    Mistake.LINK: f"{_NOT_USED} it is a link, or was replaced while it was read {_BY_PATH}",
}

_SENTENCES = {**_ENTRIES, **_FILES, **_UNTRUSTED}

# The known name that is most similar to an unknown one.
_KNOWN = {
    Mistake.UNKNOWN_KEY: "{key.dotted} ({key.kind.allowed})",
    Mistake.UNKNOWN_VARIABLE: "{key.variable} ({key.kind.allowed})",
    Mistake.UNKNOWN_TABLE: "[{name}]",
    Mistake.UNKNOWN_LOCK: "{name}",
}


def policy_problem(problem: Problem) -> str:
    """Return the line about a mistake: what is wrong, and what autogpu uses instead."""
    what = what_is_wrong(problem)
    # The sentence about an untrusted file already states that the file is not used.
    return what if problem.mistake in _UNTRUSTED else f"{what}; {_instead(problem)}"


def what_is_wrong(problem: Problem) -> str:
    """Return the text about a mistake for a command that stops, so without the value that applies instead."""
    key = BY_DOTTED.get(problem.key)
    facts = {
        **vars(problem),
        "allowed": key.kind.allowed if key else "",
        "hint": _correction(problem) if key else _nearest(problem),
        "folder": problem.written.rpartition("/")[0] or "/",
    }
    return _SENTENCES[problem.mistake].format(**facts)


def _correction(problem: Problem) -> str:
    """Return advice about a refused value, in brackets; ``""`` if there is none."""
    text = problem.written.strip('"')
    hints = [hint for pattern, hint in BY_DOTTED[problem.key].kind.hints if re.fullmatch(pattern, text)]
    hints += [f"nearest is {problem.nearest}"] if problem.nearest else []
    return f" ({hints[0]})" if hints else ""


def _nearest(problem: Problem) -> str:
    """Return the most similar known name, or the command that lists the keys."""
    if not problem.nearest:
        return _NOTHING_NEAR
    facts = {"name": problem.nearest, "key": BY_DOTTED.get(problem.nearest)}
    return ", nearest is " + _KNOWN[problem.mistake].format(**facts)


def _instead(problem: Problem) -> str:
    if problem.mistake in _FILES:
        return "this file is ignored"
    if problem.mistake is Mistake.NO_FILE:
        return "no project file is read"
    used = problem.used
    if used is None:
        return "it is ignored"
    if used.is_set:
        return f"{used.text} from {used.origin} is used"
    # The default may be empty; then there is no value to print.
    is_unset = used.text in ('""', "[]")
    return "the setting is ignored" if is_unset else f"the default {used.text} is used"
