"""The JSON schema of a policy file, for editors."""

from __future__ import annotations

import json
from pathlib import Path

from autogpu.policy.model import KEYS, SECTIONS, Key

NAME = "autogpu.schema.json"


def schema() -> str:
    """The text of ``docs/autogpu.schema.json``, for editors."""
    top: dict[str, object] = {}
    for section, title in SECTIONS.items():
        found = {key.name: _schema_of(key) for key in KEYS if key.section == section}
        if section:
            top[section] = {
                "type": "object",
                "title": title,
                "additionalProperties": False,
                "properties": found,
            }
        else:
            top.update(found)
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
    for folder in (package, package.parent / "docs"):
        if (folder / NAME).is_file():
            return folder / NAME
    return None


def _schema_of(key: Key) -> dict[str, object]:
    description = f"{key.sentence}\n{key.more}\nAllowed: {key.kind.allowed}."
    return {**key.kind.schema, "default": key.kind.plain(key.default), "description": description}
