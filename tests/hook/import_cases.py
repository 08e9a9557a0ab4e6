"""How programs come to TensorFlow's import, ask about it, repeat it, fail in it, and look at what they got."""

from __future__ import annotations

from tests.hook.case import ALL, Case

OFF = [
    Case(f"off-by-{value}", "import tensorflow", "body", {"AUTOGPU": value}) for value in ("0", "off", "False", "no")
]

IMPORTS = [
    Case("import", "import tensorflow as tf; assert tf.configured"),
    Case("keras-first", "import keras"),
    Case("submodule-first", "import tensorflow.python"),
    Case("from-import", "from tensorflow import keras_api"),
    Case("import-module", "import importlib; importlib.import_module('tensorflow')"),
    Case("dunder-import", "__import__('tensorflow.python')"),
    Case("run-module", "", options=("-m", "tensorflow.tool")),
    Case("path-of-objects", "import pathlib, sys; sys.path.insert(0, pathlib.Path('/nowhere')); import tensorflow"),
    Case(
        "stderr-that-exits",
        """
import sys
class Stderr:
    def write(self, text):
        sys.exit(3)
    def flush(self):
        pass
sys.stderr = Stderr()
import tensorflow
""",
        "before body",
        {"FAIL_BEFORE": "ZeroDivisionError"},
    ),
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

TOGETHER = [
    Case("eight-threads", THREADS.format(statements=["import tensorflow"])),
    Case(
        "eight-threads-different-doors",
        THREADS.format(statements=["import keras", "import tensorflow.python", "from tensorflow import keras_api"]),
    ),
    Case(
        "threads-import-other-things-meanwhile",
        THREADS.format(
            statements=["import tensorflow", "import json.tool, wave; import tensorflow", "import tensorflow"]
        ),
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
]

IMPORT_CASES = [*OFF, *IMPORTS, *QUESTIONS, *AGAIN, *FAILURES, *UNCHANGED, *TOGETHER]
