"""Rules for imports between the modules of autogpu, and for words that some modules may not contain."""

import ast
import functools
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# A package imports only from the packages in rows above its own, and from any module named `model`.
ROWS = (
    {"errors", "frozen", "variables", "atomic_file", "text"},
    {"process", "stderr", "caps", "_vendor"},
    {"uncaught", "users", "snippet", "devices.enumeration"},
    {"devices", "policy", "lease", "selection"},
    {"history", "frameworks.model", "engines"},
    {"reporting", "acquire", "visibility", "install"},
    {"allocation", "status"},
    {"out_of_memory"},
    {"frameworks"},
    {"activation", "host"},
    {"doctor"},
    {"reporting.doctor", "reporting.host_setup", "reporting.installation"},
    {"cli"},
    {"__main__"},
)


def modules():
    """Return each module's file, keyed by dotted name without ``autogpu.``."""
    found = {}
    for file in sorted((ROOT / "autogpu").rglob("*.py")):
        parts = file.relative_to(ROOT / "autogpu").with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return found


MODULES = modules()


@functools.lru_cache(maxsize=None)
def imports(file, with_types=False):
    """Return the names that ``file`` imports; those under ``TYPE_CHECKING`` only if ``with_types``."""
    return set(_names(ast.parse(file.read_text(encoding="utf-8")), with_types))


def _names(node, with_types):
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING" and not with_types:
            for other in child.orelse:
                yield from _names(other, with_types)
        elif isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            yield from (f"{child.module}.{alias.name}" for alias in child.names)
        else:
            yield from _names(child, with_types)


def ours(file, with_types=False):
    """Return the modules of autogpu that ``file`` imports."""
    names = {name[len("autogpu.") :] for name in imports(file, with_types) if name.startswith("autogpu.")}
    return {name if name in MODULES else name.rpartition(".")[0] for name in names} - {""}


def row_of(module):
    for number, row in enumerate(ROWS):
        if module in row:
            return number
    parent = module.rpartition(".")[0] or module
    return next(number for number, row in enumerate(ROWS) if parent.partition(".")[0] in row)


def package_of(module):
    return module if module in ROWS[0] else module.partition(".")[0]


def test_packages_import_only_from_rows_above_their_own():
    pairs = [(module, other) for module, file in MODULES.items() if module for other in ours(file)]
    across = [pair for pair in pairs if package_of(pair[0]) != package_of(pair[1]) and not pair[1].endswith(".model")]
    assert [(module, other) for module, other in across if row_of(other) >= row_of(module)] == []


@pytest.mark.parametrize("with_types", [False, True])
def test_imports_have_no_cycle(with_types):
    # A package's `__init__` imports its modules, so a module that imports from its own package closes a cycle.
    graph = {name: ours(file, with_types) for name, file in MODULES.items()}
    done = set()

    def visit(name, path):
        assert name not in path, " -> ".join([*path[path.index(name) :], name])
        if name not in done:
            for other in graph[name]:
                visit(other, [*path, name])
            done.add(name)

    for name in graph:
        visit(name, [])


def test_modules_of_selection_import_few_of_each_other():
    inside = {name: file for name, file in MODULES.items() if name.startswith("selection.")}
    pairs = [(name, other) for name, file in inside.items() for other in ours(file, with_types=True) & inside.keys()]
    assert 0 < len(pairs) <= 20, pairs


def test_pure_modules_import_nothing_that_reads_the_machine():
    acting = {"subprocess", "socket", "fcntl", "ctypes", "threading", "pwd"}
    pure = [name for name in MODULES if name.startswith("selection.") or name.endswith((".model", ".enumeration"))]
    assert [(name, imports(MODULES[name]) & acting) for name in pure if imports(MODULES[name]) & acting] == []


def test_framework_names_occur_only_in_framework_packages():
    named = re.compile(r"tensorflow|keras|\btf\b|\bjax\b|torch(?!run)", re.IGNORECASE)
    inside = re.compile(r"frameworks\.\w+\.|frameworks\.(?!base)\w+$|doctor\.frameworks$|reporting\.installation$")
    outside = {
        name: sorted(set(named.findall(file.read_text(encoding="utf-8"))))
        for name, file in MODULES.items()
        if not inside.match(name)
    }
    # The exceptions are autogpu's own docstring and the list of frameworks.
    assert {name for name, words in outside.items() if words} == {"", "frameworks"}


# Packages and modules that decide or act for a process or a host. They return facts, and `reporting` turns these into
# sentences.
WITHOUT_SENTENCES = {
    "selection",
    "acquire",
    "allocation",
    "visibility",
    "engines",
    "out_of_memory",
    "history",
    "doctor",
    "policy",
    "status.remote",
    "host",
    "install",
}
# The keys of a policy have descriptions, from which the example file, the schema and the reference are generated.
DESCRIPTIONS = {"policy.model", "policy.kinds", "policy.templates"}
DECIDING = [name for name in MODULES if {name, name.partition(".")[0]} & WITHOUT_SENTENCES]

# Constants with the source of programs that run in a fresh process, or with the content of a file.
PROGRAMS = {
    "QUESTIONS",
    "_COMPILE",
    "_FRAMEWORK_QUESTION",
    "_METADATA",
    "_PREFIX_QUESTION",
    "_PYTHON_QUESTION",
    "_QUESTION",
}


def _makes_an_error(node):
    return isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("Error", "Unavailable"))


def texts(file):
    """Yield the string literals in a file, except docstrings, programs, and the messages of exceptions."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    errors = [node for node in ast.walk(tree) if _makes_an_error(node)]
    programs = [node for node in tree.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) in PROGRAMS]
    skipped = [child for node in (*errors, *programs) for child in ast.walk(node)]
    skipped += [node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)]
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in skipped:
            yield node.value


def test_modules_that_decide_contain_no_sentence():
    sentence = re.compile(r"[\w'-]+ [\w'-]+ [\w'-]+")
    modules = [name for name in DECIDING if name not in DESCRIPTIONS]
    found = [(name, text) for name in modules for text in texts(MODULES[name]) if sentence.search(text)]
    assert found == []


def test_allocation_is_the_only_module_that_decides_and_prints():
    imported = {name: ours(MODULES[name], with_types=True) for name in DECIDING}
    printing = {name for name, others in imported.items() if any(package_of(other) == "reporting" for other in others)}
    assert printing == {"allocation"}
