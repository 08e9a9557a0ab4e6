"""Texts made from the model: the example with every key, a project's own file to start from, and the JSON schema."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Iterator, Sequence

from autogpu.policy.model import KEYS, SECTIONS, Key

SCHEMA_NAME = "autogpu.schema.json"

_COLUMN = 24
_WIDTH = 110

_EXAMPLE_HEAD = """\
# Every key of an autogpu policy, with its default. Put this into autogpu.toml beside your scripts, or into
# ~/.config/autogpu/autogpu.toml for all of them, and keep only the lines that you change.
"""

_TEMPLATE_HEAD = """\
# Which GPU the scripts in and below this folder get, and how much of its memory: a policy for autogpu.
# Every line shows a default. Remove the first "# " from those that you change, and delete the others.
# `autogpu config` shows the values in use, and `autogpu config check` whether this file is valid.
"""


def example() -> str:
    """The text of ``autogpu.toml.example``: every key with its default."""
    return _EXAMPLE_HEAD + "".join(_sections(KEYS))


def template(schema: str = "") -> str:
    """A project's own file to start from, in which nothing is set; ``schema`` is the address of the JSON schema."""
    keys = [key for key in KEYS if not key.system_only]
    return (f"#:schema {schema}\n" if schema else "") + _TEMPLATE_HEAD + "".join(_sections(keys, "# "))


def _sections(keys: Sequence[Key], mark: str = "") -> Iterator[str]:
    for section in dict.fromkeys(key.section for key in keys):
        yield f"\n[{section}]\n" if section else "\n"
        yield from (mark + line for line in _example_lines([key for key in keys if key.section == section]))


def _example_lines(keys: Sequence[Key]) -> Iterator[str]:
    settings = [f"{key.name} = {key.written(key.default)}" for key in keys]
    column = max(_COLUMN, *(len(text) + 3 for text in settings))
    for key, text in zip(keys, settings):
        for comment in key.about.split("\n"):
            for part in textwrap.wrap(comment, _WIDTH - column - len("# ")):
                yield f"{text:{column}}# {part}\n"
                text = ""


def schema() -> str:
    """The text of ``docs/autogpu.schema.json``, for editors."""
    tables = {section: {key.name: _schema_of(key) for key in KEYS if key.section == section} for section in SECTIONS}
    top: dict[str, object] = dict(tables.pop(""))
    for section, keys in tables.items():
        title = SECTIONS[section]
        top[section] = {"type": "object", "title": title, "additionalProperties": False, "properties": keys}
    whole = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "autogpu.toml",
        "description": "Which GPU a process gets, and how much of its memory.",
        "type": "object",
        "additionalProperties": False,
        "properties": top,
    }
    return json.dumps(whole, indent=2, ensure_ascii=False) + "\n"


def schema_file() -> Path | None:
    """The file of the same text that came with this autogpu: inside the package, in ``docs`` in a checkout."""
    package = Path(__file__).resolve().parent.parent
    files = (package / SCHEMA_NAME, package.parent / "docs" / SCHEMA_NAME)
    return next((file for file in files if file.is_file()), None)


def _schema_of(key: Key) -> dict[str, object]:
    description = f"{key.sentence}\n{key.more}\nAllowed: {key.kind.allowed}."
    return {**key.kind.schema, "default": key.kind.plain(key.default), "description": description}
