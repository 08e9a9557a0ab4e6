"""What programs do with TensorFlow's import, and the steps that must come of it (facts of the import system, 3.7-3.13).

Each case runs in a fresh interpreter, which asserts what only it can see; the expected ``steps`` are the events of
the stand-ins in their order.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Mapping

ALL = "before body after"


@dataclass(frozen=True)
class Case:
    name: str
    code: str
    steps: str = ALL
    environ: Mapping[str, str] = field(default_factory=dict)
    options: tuple[str, ...] = ()
    since: tuple[int, int] = (3, 7)
    stderr: str = ""


FINDER_THAT_ASKS_ALL_OTHERS = """
import sys
class Curious:
    def find_spec(self, name, path=None, target=None):
        for finder in sys.meta_path:
            if finder is not self:
                spec = finder.find_spec(name, path, target)
                if spec is not None:
                    return spec
sys.meta_path.insert({place}, Curious())
import tensorflow
assert tensorflow.configured
"""

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

OFF = [
    Case(f"off-by-{value}", "import tensorflow", "body", {"AUTOGPU": value}) for value in ("0", "off", "False", "no")
]

DOORS = [
    Case("import", "import tensorflow as tf; assert tf.configured"),
    Case("keras-first", "import keras"),
    Case("submodule-first", "import tensorflow.python"),
    Case("from-import", "from tensorflow import keras_api"),
    Case("import-module", "import importlib; importlib.import_module('tensorflow')"),
    Case("dunder-import", "__import__('tensorflow.python')"),
    Case("run-module", "", options=("-m", "tensorflow.tool")),
    Case("twice", "import tensorflow, keras, tensorflow.python"),
    Case(
        "module-from-spec",
        """
import importlib.util, sys
spec = importlib.util.find_spec("tensorflow")
module = importlib.util.module_from_spec(spec)
sys.modules["tensorflow"] = module
spec.loader.exec_module(module)
assert module.configured
""",
    ),
    Case(
        "lazy-loader",
        """
import importlib.util, sys
spec = importlib.util.find_spec("tensorflow")
spec.loader = importlib.util.LazyLoader(spec.loader)
module = importlib.util.module_from_spec(spec)
sys.modules["tensorflow"] = module
spec.loader.exec_module(module)
from events import log
log("lazy")
assert module.keras_api == 1
""",
        "lazy before body after",
    ),
    Case("isolated", "import tensorflow", options=("-I",)),
    Case("optimized", "import tensorflow", options=("-OO",)),
    Case("dev-mode-warnings-are-errors", "import tensorflow", options=("-X", "dev", "-W", "error")),
    Case("frozen-modules-off", "import tensorflow", options=("-X", "frozen_modules=off"), since=(3, 11)),
    Case("safe-path", "import tensorflow", options=("-P",), since=(3, 11)),
    Case("no-site", "import sys; assert '_autogpu_hook' not in sys.modules", "", options=("-S",)),
]

QUESTIONS = [
    Case(
        "find-spec",
        """
import importlib.util, importlib.machinery, sys, pickle
spec = importlib.util.find_spec("tensorflow")
assert type(spec.loader) is importlib.machinery.SourceFileLoader
pickle.loads(pickle.dumps(spec.loader)).get_data(spec.origin)
assert "autogpu" not in sys.modules and "tensorflow" not in sys.modules
""",
        "",
    ),
    Case("find-spec-of-a-submodule-imports-the-parent", "import importlib.util as u; u.find_spec('tensorflow.python')"),
    Case("other-names", "import json; import importlib.util as u; assert u.find_spec('tensorflow_text') is None", ""),
    Case(
        "walk-packages",
        """
import pkgutil
assert {"tensorflow", "keras"} <= {info.name for info in pkgutil.iter_modules()}
""",
        "",
    ),
]

AGAIN = [
    Case(
        "reload-twice",
        """
import importlib, tensorflow
importlib.reload(tensorflow); importlib.reload(tensorflow)
""",
        "before body after body body",
    ),
    Case(
        "forgotten-and-imported-again",
        """
import sys, tensorflow
del sys.modules["tensorflow"]
import tensorflow
""",
        "before body after body",
    ),
    Case(
        "failing-import-then-retry",
        """
try:
    import tensorflow
except ImportError as error:
    assert type(error) is ModuleNotFoundError and error.name == "missing_library", error
    assert error.__cause__ is None and error.__context__ is None
else:
    raise AssertionError
import tensorflow
assert tensorflow.configured
""",
        "before body body after",
        {"FAIL_BODY": "ImportError"},
    ),
    Case(
        "interrupted-body",
        """
try:
    import tensorflow
except KeyboardInterrupt:
    pass
import keras
""",
        "before body body after",
        {"FAIL_BODY": "KeyboardInterrupt"},
    ),
    Case(
        "refused-by-the-policy-asks-again",
        """
import os
for _ in 1, 2:
    try:
        import tensorflow
    except SystemExit:
        pass
del os.environ["FAIL_BEFORE"]
import tensorflow
""",
        "before before before body after",
        {"FAIL_BEFORE": "SystemExit"},
    ),
    Case(
        "hook-imported-anew",
        """
import sys, importlib
del sys.modules["_autogpu_hook"]
import _autogpu_hook
_autogpu_hook.install()
importlib.reload(_autogpu_hook)
assert [getattr(f, "__name__", "") for f in sys.meta_path].count("_autogpu_hook") == 1
import tensorflow
""",
    ),
]

FAILURES = [
    Case(
        "before-raises",
        "import tensorflow",
        "before body",
        {"FAIL_BEFORE": "ZeroDivisionError"},
        stderr="autogpu: not applied to tensorflow: ZeroDivisionError('BEFORE\\nfailed'); "
        "AUTOGPU=0 turns autogpu off\n",
    ),
    Case(
        "after-raises",
        "import tensorflow; assert tensorflow.keras_api",
        ALL,
        {"FAIL_AFTER": "ZeroDivisionError"},
        stderr="autogpu: not applied to tensorflow: ZeroDivisionError('AFTER\\nfailed'); AUTOGPU=0 turns autogpu off\n",
    ),
    Case(
        "no-stderr",
        "import sys; sys.stderr = None; import tensorflow",
        "before body",
        {"FAIL_BEFORE": "ZeroDivisionError"},
    ),
    Case(
        "closed-stderr",
        "import sys; sys.stderr.close(); import tensorflow; sys.stderr = None",
        "before body",
        {"FAIL_BEFORE": "ZeroDivisionError"},
    ),
    Case(
        "not-there",
        """
import sys, os
sys.path[:] = [p for p in sys.path if not os.path.isdir(os.path.join(p, "tensorflow"))]
sys.path_importer_cache.clear()
try:
    import tensorflow
except ModuleNotFoundError as error:
    assert error.name == "tensorflow"
else:
    raise AssertionError
""",
        "",
    ),
    Case(
        "forbidden-by-none",
        """
import sys
sys.modules["tensorflow"] = None
try:
    import tensorflow
except ImportError:
    pass
""",
        "",
    ),
    Case(
        "replaced-by-a-mock",
        """
import sys, types
sys.modules["tensorflow"] = mock = types.ModuleType("tensorflow")
import tensorflow
assert tensorflow is mock
""",
        "",
    ),
]

UNCHANGED = [
    Case(
        "looks-like-itself",
        """
import importlib.machinery, inspect, pickle, pkgutil, sys
import tensorflow
spec, loader = tensorflow.__spec__, tensorflow.__loader__
assert type(loader) is importlib.machinery.SourceFileLoader and spec.loader is loader
assert set(vars(loader)) == {"name", "path"}, vars(loader)
plain = importlib.machinery.SourceFileLoader("tensorflow", tensorflow.__file__)
assert loader == plain and hash(loader) == hash(plain) and pickle.loads(pickle.dumps(loader)) == plain
assert "keras_api = 1" in inspect.getsource(tensorflow)
assert loader.is_package("tensorflow") and b"keras_api" in loader.get_data(tensorflow.__file__)
assert pkgutil.get_data("tensorflow", "data.txt") == b"data"
assert {"python", "tool"} == {info.name for info in pkgutil.iter_modules(tensorflow.__path__)}
assert all(info.name.startswith("tensorflow.") for info in
           pkgutil.walk_packages(tensorflow.__path__, "tensorflow."))
""",
    ),
    Case(
        "resources",
        """
import importlib.resources, tensorflow
assert importlib.resources.files("tensorflow").joinpath("data.txt").read_text() == "data"
""",
        since=(3, 9),
    ),
    Case(
        "metadata",
        """
import importlib.metadata
list(importlib.metadata.distributions())
""",
        "",
        since=(3, 8),
    ),
    Case(
        "namespace-folder",
        """
import os, sys
os.makedirs("here/tensorflow")
sys.path[:] = ["here"] + [p for p in sys.path if not os.path.isdir(os.path.join(p, "tensorflow"))]
import tensorflow
assert tensorflow.__spec__.origin in (None, "namespace")
""",
        "",
    ),
    Case("invalidate-caches", "import importlib; importlib.invalidate_caches(); import tensorflow"),
    Case("finder-that-asks-all-others", FINDER_THAT_ASKS_ALL_OTHERS.format(place=0)),
    Case(
        "finder-before-us-is-asked-once",
        """
import sys
asked = []
class Counting:
    @staticmethod
    def find_spec(name, path=None, target=None):
        asked.append(name)
sys.meta_path.insert(0, Counting)
import tensorflow
assert asked.count("tensorflow") == 1, asked
""",
    ),
    Case("wrapt-style-finder-before-us", WRAPT_STYLE.format(place=0)),
    Case("wrapt-style-finder-after-us", WRAPT_STYLE.format(place=1)),
    Case(
        "finder-that-forbids",
        """
import sys, traceback
class Forbidding:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "tensorflow":
            raise ImportError("forbidden")
sys.meta_path.insert(1, Forbidding)
try:
    import tensorflow
except ImportError as error:
    assert str(error) == "forbidden" and "_autogpu_hook" not in traceback.format_exc()
else:
    raise AssertionError
""",
        "",
    ),
    Case(
        "loader-that-is-a-class",
        """
import sys, importlib.util
class Static:
    @staticmethod
    def find_spec(name, path=None, target=None):
        return importlib.util.spec_from_loader(name, Static) if name in ("tensorflow", "other") else None
    @staticmethod
    def create_module(spec):
        return None
    @staticmethod
    def exec_module(module):
        module.mine = True
sys.meta_path.insert(1, Static)
before = dict(vars(Static))
import tensorflow, other
assert tensorflow.mine and other.mine and dict(vars(Static)) == before
""",
        "",
    ),
    Case(
        "loader-changed-by-others",
        """
import importlib.util, sys
class Own:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name != "tensorflow":
            return None
        spec = sys.meta_path[-1].find_spec(name, path, target)
        real = spec.loader.exec_module
        def exec_module(module):
            real(module)
            module.theirs = True
        spec.loader.exec_module = exec_module
        return spec
sys.meta_path.insert(1, Own)
import tensorflow
assert tensorflow.theirs
""",
        "body",
    ),
    Case("meta-path-copied", "import sys; sys.meta_path = list(sys.meta_path); import tensorflow"),
    Case(
        "taken-out-of-meta-path",
        """
import sys
sys.meta_path = [f for f in sys.meta_path if getattr(f, "__name__", "") != "_autogpu_hook"]
import tensorflow
""",
        "body",
    ),
    Case(
        "import-at-exit",
        """
import atexit
atexit.register(lambda: __import__("tensorflow"))
""",
    ),
    Case(
        "import-in-a-late-destructor",
        """
import sys
class Late:
    def __del__(self):
        try:
            import tensorflow
        except ImportError:
            pass
sys.late = Late()
""",
        "",
    ),
]

ZIP = """
import sys, zipfile
with zipfile.ZipFile("archive.zip", "w") as archive:
    archive.writestr("tensorflow/__init__.py", "from events import log; log('body')")
    archive.writestr("other.py", "from events import log; log('other')")
sys.path.insert(0, "archive.zip")
"""

THREADS = """
import threading, sys
gate = threading.Barrier(8)
seen = []
def door(statement):
    gate.wait()
    exec(statement)
    seen.append(sys.modules["tensorflow"].configured)
doors = {doors}
threads = [threading.Thread(target=door, args=(doors[i % len(doors)],)) for i in range(8)]
[t.start() for t in threads]
[t.join() for t in threads]
assert seen == [True] * 8, seen
"""

TOGETHER = [
    Case("eight-threads", THREADS.format(doors=["import tensorflow"])),
    Case(
        "eight-threads-different-doors",
        THREADS.format(doors=["import keras", "import tensorflow.python", "from tensorflow import keras_api"]),
    ),
    Case(
        "threads-import-other-things-meanwhile",
        THREADS.format(doors=["import tensorflow", "import json.tool, wave; import tensorflow", "import tensorflow"]),
    ),
    Case(
        "body-waits-for-an-importing-thread",
        """
import threading
def import_beside():
    import csv, wave
def beside(name):
    thread = threading.Thread(target=import_beside)
    thread.start(); thread.join()
import events
real = events.log
events.log = lambda *words: (beside(words), real(*words))
import tensorflow
""",
    ),
    Case("zip", ZIP + "import tensorflow\n", since=(3, 10)),
    # Before 3.10 a zipimporter has no exec_module to stand before.
    Case(
        "zip-shares-one-loader",
        ZIP
        + """
import importlib.util
spec = importlib.util.find_spec("tensorflow")
import other
assert not hasattr(other, "configured")
import tensorflow
""",
        "other before body after",
        since=(3, 10),
    ),
]

GROUPS = {
    "off": OFF,
    "doors": DOORS,
    "questions": QUESTIONS,
    "again": AGAIN,
    "failures": FAILURES,
    "unchanged": UNCHANGED,
    "together": TOGETHER,
}
CASES = [case for group in GROUPS.values() for case in group]
