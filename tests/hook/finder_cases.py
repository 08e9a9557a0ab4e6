"""Other finders and loaders in a program's import system, beside the hook's (facts of 3.7 to 3.13)."""

from __future__ import annotations

from tests.hook.case import Case

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

FINDERS = [
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
]

ZIP = """
import sys, zipfile
with zipfile.ZipFile("archive.zip", "w") as archive:
    archive.writestr("tensorflow/__init__.py", "from events import log; log('body')")
    archive.writestr("other.py", "from events import log; log('other')")
sys.path.insert(0, "archive.zip")
"""

ZIPS = [
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

FINDER_CASES = [*FINDERS, *ZIPS]
