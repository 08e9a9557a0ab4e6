"""Mistakes in a policy, as the values that tests expect."""

from __future__ import annotations

from typing import Any

from autogpu.policy.model import BY_DOTTED, LayerName, Mistake, Origin, Problem, Setting

FILE = "~/proj/autogpu.toml"


def default_of(dotted: str) -> Setting:
    return Setting(dotted, BY_DOTTED[dotted].default, Origin(LayerName.DEFAULT, "default"))


def problem(mistake: Mistake, origin: Origin, **facts: Any) -> Problem:
    """Return a problem. If it has a key and no setting, the key's default is used instead."""
    used = default_of(facts["key"]) if "key" in facts else None
    return Problem(mistake, origin, **{"used": used, **facts})


def in_file(mistake: Mistake, line: int | None = None, place: str = FILE, **facts: Any) -> Problem:
    """Return a problem in a project file."""
    return problem(mistake, Origin(LayerName.PROJECT, place, line), **facts)


def in_variable(mistake: Mistake, name: str, **facts: Any) -> Problem:
    return problem(mistake, Origin(LayerName.ENVIRONMENT, name), **facts)
