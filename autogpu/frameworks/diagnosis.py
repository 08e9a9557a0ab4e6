"""``autogpu doctor`` asks and judges every framework alike, as far as that goes."""

from __future__ import annotations

import textwrap
from typing import Any, Mapping

from autogpu.doctor.model import Facts, Finding, failed, not_applicable, passed
from autogpu.reporting.text import printable

_PROGRAM = """
import importlib.util, json
found = None
if importlib.util.find_spec("{module}"):
    found = {{}}
    try:
        import {module}
        found["version"] = {module}.__version__
        from autogpu.frameworks.{module} import find_hooks
        hooks = find_hooks()
        found["missing"], found["obstacle"] = dict(hooks.missing), hooks.obstacle
{questions}
    except Exception as error:
        found["error"] = "%s: %s" % (type(error).__name__, error)
print()
print(json.dumps(found))
"""


def program(module: str, questions: str) -> str:
    """A program for a fresh interpreter; prints null or ``found``, which ``questions`` fill, as its last line."""
    return _PROGRAM.format(module=module, questions=textwrap.indent(questions.strip(), " " * 8))


def hooks(found: Mapping[str, Any], facts: Facts, framework: str, *, is_used: object = True) -> Finding:
    """The framework has all that autogpu hooks into."""
    if not is_used:
        return not_applicable("nothing to hook into")
    if not found["missing"]:
        return passed("autogpu finds all that it hooks into")
    lacks = "; ".join(f"{name}: {effect}" for name, effect in found["missing"].items())
    what = f"{framework} {found['version']} lacks {printable(lacks)}"
    return failed(what, facts.pip(f"install --upgrade {facts.source}"))
