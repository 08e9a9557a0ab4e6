"""The text of policy files: the example with every key, and a project's own to start from."""

from __future__ import annotations

import textwrap

from autogpu.policy.model import KEYS, SECTIONS, Key

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
    parts = [_EXAMPLE_HEAD]
    for section in SECTIONS:
        parts.append(f"\n[{section}]\n" if section else "\n")
        parts.append(_example_lines([key for key in KEYS if key.section == section]))
    return "".join(parts)


def template(schema: str = "") -> str:
    """A project's own file to start from, in which nothing is set.

    Args:
        schema: The address of the JSON schema, for the line by which editors find it.
    """
    parts = [f"#:schema {schema}\n" if schema else "", _TEMPLATE_HEAD]
    for section in SECTIONS:
        keys = [key for key in KEYS if key.section == section and not key.system_only]
        if keys:
            lines = _example_lines(keys).splitlines()
            parts.append(f"\n[{section}]\n" if section else "\n")
            parts += [f"# {line}\n" for line in lines]
    return "".join(parts)


def _example_lines(keys: list[Key]) -> str:
    said = [f"{key.name} = {key.written(key.default)}" for key in keys]
    column = max(_COLUMN, *(len(text) + 3 for text in said))
    lines = []
    for key, text in zip(keys, said):
        for comment in key.about.split("\n"):
            for part in textwrap.wrap(comment, _WIDTH - column - len("# ")):
                lines.append(text.ljust(column) + "# " + part)
                text = ""
    return "".join(line + "\n" for line in lines)
