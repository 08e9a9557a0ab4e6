"""Programs that import TensorFlow, and the events that must follow (Python 3.7 to 3.15).

They import it in many ways, look up its spec, import it again, let the import fail, and inspect the module. Some add
finders and loaders of their own to the import system.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Mapping

ALL = "before body after"
NOT_APPLIED = "autogpu: not applied to tensorflow: {}; AUTOGPU=0 turns autogpu off\n"


@dataclass(frozen=True)
class Case:
    """A program for a new interpreter. ``steps`` are the events that the stand-in packages must log, in their order."""

    name: str
    code: str
    steps: str = ALL
    environ: Mapping[str, str] = field(default_factory=dict)
    options: tuple[str, ...] = ()
    since: tuple[int, int] = (3, 7)
    before: tuple[int, int] = (4, 0)
    stderr: str = ""


def programs():
    _, *parts = Path(__file__).with_name("programs.txt").read_text().split("\n#### ")
    for part in parts:
        head, _, code = part.partition("\n")
        name, steps, notes = re.fullmatch(r"([\w-]+): ([a-z ]+?)(?: \((.*)\))?", head).groups()
        environ = dict(re.findall(r"(\w+)=(\w+)", notes or ""))
        since = re.search(r"since 3\.(\d+)", notes or "")
        yield Case(name, code, steps.replace("nothing", ""), environ, since=(3, int(since[1]) if since else 7))


WRAPT_STYLE = """
import sys, importlib.util
class Chained:
    def __init__(self, loader):
        self.loader = loader
        self.exec_module = self._exec_module
    def create_module(self, spec):
        return self.loader.create_module(spec)
    def _exec_module(self, module):
        self.loader.exec_module(module)
        module.wrapped = True
class Restarting:
    busy = False
    def find_spec(self, name, path=None, target=None):
        if name != "tensorflow" or self.busy:
            return None
        self.busy = True
        try:
            spec = importlib.util.find_spec(name)
            spec.loader = Chained(spec.loader)
            return spec
        finally:
            self.busy = False
sys.meta_path.insert({place}, Restarting())
import tensorflow
assert tensorflow.wrapped and tensorflow.configured
"""

# This finder works like typeguard's: it asks only PathFinder, and leaves modules without source to other finders.
BYPASS = """
import py_compile, sys
from importlib.machinery import PathFinder, SourceFileLoader
class Instrumenting(SourceFileLoader):
    pass
class First:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "tensorflow":
            spec = PathFinder.find_spec(name, path, target)
            if spec is not None and isinstance(spec.loader, SourceFileLoader):
                spec.loader = Instrumenting(spec.loader.name, spec.loader.path)
                return spec
        return None
sys.meta_path.insert(0, First())
import tensorflow, tensorflow.python
import importlib.util
tensorflow.__path__.append(".")
with open("native.py", "w") as source:
    source.write("")
py_compile.compile("native.py", cfile="compiled.pyc")
import tensorflow.compiled, keras
"""

ZIP = """
import sys, zipfile
with zipfile.ZipFile("archive.zip", "w") as archive:
    archive.writestr("tensorflow/__init__.py", "from events import log; log('body')")
    archive.writestr("other.py", "from events import log; log('other')")
sys.path.insert(0, "archive.zip")
"""

ONE_LOADER = """
import importlib.util
spec = importlib.util.find_spec("tensorflow")
import other
assert not hasattr(other, "configured")
import tensorflow
"""

THREADS = """
import threading, sys
gate = threading.Barrier(8)
seen = []
def run(statement):
    gate.wait()
    exec(statement)
    seen.append(sys.modules["tensorflow"].configured)
statements = {statements}
threads = [threading.Thread(target=run, args=(statements[i % len(statements)],)) for i in range(8)]
[t.start() for t in threads]
[t.join() for t in threads]
assert seen == [True] * 8, seen
"""

CASES = [
    *programs(),
    *(
        Case(f"off-by-{value}", "import tensorflow", "body", {"AUTOGPU": value})
        for value in ("0", "off", "False", "no")
    ),
    Case("import", "import tensorflow as tf; assert tf.configured"),
    Case("keras-first", "import keras"),
    Case("submodule-first", "import tensorflow.python"),
    Case("from-import", "from tensorflow import keras_api"),
    Case("import-module", "import importlib; importlib.import_module('tensorflow')"),
    Case("dunder-import", "__import__('tensorflow.python')"),
    Case("run-module", "", options=("-m", "tensorflow.tool")),
    Case("path-of-objects", "import pathlib, sys; sys.path.insert(0, pathlib.Path('/nowhere')); import tensorflow"),
    Case("import-of-imported-modules", "import tensorflow, keras, tensorflow.python"),
    Case("invalidate-caches", "import importlib; importlib.invalidate_caches(); import tensorflow"),
    Case("meta-path-copied", "import sys; sys.meta_path = list(sys.meta_path); import tensorflow"),
    Case("isolated", "import tensorflow", options=("-I",)),
    Case("optimized", "import tensorflow", options=("-OO",)),
    Case("dev-mode-warnings-are-errors", "import tensorflow", options=("-X", "dev", "-W", "error")),
    Case("frozen-modules-off", "import tensorflow", options=("-X", "frozen_modules=off"), since=(3, 11)),
    Case("safe-path", "import tensorflow", options=("-P",), since=(3, 11)),
    Case(
        "lazy-imports-everywhere",
        "import tensorflow; from events import log; log('line'); assert tensorflow.configured",
        "line before body after",
        options=("-X", "lazy_imports=all"),
        since=(3, 15),
    ),
    Case("no-site", "import sys; assert '_autogpu_hook' not in sys.modules", "", options=("-S",)),
    Case("find-spec-of-a-submodule-imports-the-parent", "import importlib.util as u; u.find_spec('tensorflow.python')"),
    Case(
        "find-spec-of-other-packages",
        "import json; import importlib.util as u; assert u.find_spec('tensorflow_text') is None",
        "",
    ),
    *(
        Case(
            f"{when.lower()}-raises",
            "import tensorflow; assert tensorflow.keras_api",
            steps,
            {f"FAIL_{when}": "ZeroDivisionError"},
            stderr=NOT_APPLIED.format(f"ZeroDivisionError('{when}\\nfailed')"),
        )
        for when, steps in (("BEFORE", "before body"), ("AFTER", ALL))
    ),
    *(
        Case(name, code, "before body", {"FAIL_BEFORE": "ZeroDivisionError"})
        for name, code in {
            "no-stderr": "import sys; sys.stderr = None; import tensorflow",
            "closed-stderr": "import sys; sys.stderr.close(); import tensorflow; sys.stderr = None",
        }.items()
    ),
    Case(
        "eight-threads-import-in-different-ways",
        THREADS.format(statements=["import keras", "import tensorflow.python", "from tensorflow import keras_api"]),
    ),
    Case(
        "eight-threads-import-other-modules-too",
        THREADS.format(statements=["import tensorflow", "import json.tool, wave; import tensorflow"]),
    ),
    Case("wrapt-style-finder-before-us", WRAPT_STYLE.format(place=0)),
    Case("wrapt-style-finder-after-us", WRAPT_STYLE.format(place=1)),
    Case(
        "finder-before-us-that-asks-no-other",
        BYPASS,
        "body",
        stderr=NOT_APPLIED.format("another import hook (__main__) loaded it first"),
    ),
    Case("finder-before-us-that-asks-no-other-and-off", BYPASS, "body", {"AUTOGPU": "0"}),
    # Before 3.10 a zipimporter has no exec_module that the hook could wrap.
    Case("zip", ZIP + "import tensorflow", since=(3, 10)),
    Case("zip-without-steps", ZIP + "import tensorflow", "body", before=(3, 10)),
    Case("zip-shares-one-loader", ZIP + ONE_LOADER, "other before body after", since=(3, 10)),
]
