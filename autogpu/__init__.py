"""Every TensorFlow script gets the idlest GPU and a memory policy, unchanged.

Importing this package only adds a finder for its own modules. The start-up files call :mod:`autogpu.activation` when a
framework is imported.
"""

import sys
from importlib import machinery

__version__ = "0.1.0"

_LOADERS = (
    (machinery.SourceFileLoader, machinery.SOURCE_SUFFIXES),
    (machinery.SourcelessFileLoader, machinery.BYTECODE_SUFFIXES),
)
_finders = {}  # type: ignore[var-annotated]


def find_spec(fullname: str, path: object = None, target: object = None) -> object:
    """Return the spec of a module of this package, before an import hook can change the module's code.

    Hooks such as ``beartype_all()`` evaluate annotations at run time. Many names in our annotations exist only for
    mypy, so their evaluation would fail.
    """
    if not fullname.startswith("autogpu."):
        return None
    for folder in path or ():  # type: ignore[attr-defined]
        if folder not in _finders:
            _finders[folder] = machinery.FileFinder(folder, *_LOADERS)
        spec = _finders[folder].find_spec(fullname)
        if spec is not None:
            return spec
    return None


if not any(finder is sys.modules[__name__] for finder in sys.meta_path):
    sys.meta_path.insert(0, sys.modules[__name__])
