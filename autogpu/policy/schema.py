"""The JSON schema of a policy file, for editors."""

from __future__ import annotations

import json

from autogpu.policy.model import KEYS, SECTIONS, Key


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


def _schema_of(key: Key) -> dict[str, object]:
    description = f"{key.sentence}\n{key.more}\nAllowed: {key.kind.allowed}."
    return {**key.kind.schema(), "default": key.kind.plain(key.default), "description": description}
