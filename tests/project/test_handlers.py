"""Checks that handlers in a user's process let the exceptions of the user's script through."""

import ast
from pathlib import Path

import pytest

from tests.support.environments import ROOT

# Code that runs in autogpu's own commands and never in a user's process.
COMMANDS = ("cli", "doctor", "host", "status", "install.py", "__main__.py")

# NVML's probe runs in its own process or thread, where Python calls no signal handler. Its callers handle the errors of
# its import.
OF_THE_PROBE = "devices/nvml.py"

PASSES = "raise_if_from_script"

# The functions that tell exceptions of autogpu from exceptions of the script.
ANSWERS = (PASSES, "script_error_in")


def in_a_users_process():
    package, hook = ROOT / "autogpu", ROOT / "sitecustomize_template"
    for file in sorted(package.rglob("*.py")):
        place = file.relative_to(package)
        if place.parts[0] not in COMMANDS and str(place) != OF_THE_PROBE:
            yield file
    yield hook / "_autogpu_steps.py"


FILES = list(in_a_users_process())


def own_exceptions():
    """Return the names of all classes of autogpu, exceptions included. A script's own code raises none of them."""
    found = set()
    for file in (ROOT / "autogpu").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ClassDef):
                found.add(node.name)
    return found


OWN = own_exceptions()


def names(kinds):
    return {node.attr if isinstance(node, ast.Attribute) else node.id for node in kinds}


def caught(handler):
    if handler.type is None:
        return {"BaseException"}
    return names(handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type])


def lets_through(handler):
    calls = [node.func for node in ast.walk(handler) if isinstance(node, ast.Call)]
    passes = any(isinstance(call, ast.Name) and call.id == PASSES for call in calls)
    return passes or any(isinstance(node, ast.Raise) and node.exc is None for node in handler.body)


@pytest.mark.parametrize("file", FILES, ids=[str(file.relative_to(ROOT)) for file in FILES])
def test_handlers_let_exceptions_of_the_script_through(file: Path):
    tree = ast.parse(file.read_text())
    # At a module's top level, handlers catch only the import of a standard module that some systems lack.
    exempt: list[ast.AST] = [node for block in tree.body if isinstance(block, ast.Try) for node in block.handlers]
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef) and function.name in ANSWERS:
            exempt += ast.walk(function)
    wrong = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ExceptHandler) and node not in exempt:
            is_right = caught(node) <= OWN or lets_through(node)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "suppress":
            is_right = names(node.args) <= OWN
        else:
            continue
        if not is_right:
            wrong.append(node.lineno)
    assert wrong == [], f"{file}: call {PASSES} first, or use ignoring instead of suppress"
