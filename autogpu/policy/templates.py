"""Texts generated from the model: the example file with every key, and a template for a project's policy file."""

from __future__ import annotations

import textwrap
from typing import Iterator, Sequence

from autogpu.policy.model import KEYS, Key

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
    return _EXAMPLE_HEAD + "".join(listing(KEYS))


def template() -> str:
    """Return a policy file for a project. It has each key that such a file can set, commented out."""
    return _TEMPLATE_HEAD + "".join(listing([key for key in KEYS if not key.system_only], "# "))


def listing(keys: Sequence[Key], mark: str = "") -> Iterator[str]:
    """Yield the lines of each key with its default.

    Each line begins with ``mark``, except the table headers. So a user who removes the mark of a key sets that key.
    """
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
