# autogpu start-up file, version 1. Part of autogpu-autoload: `autogpu uninstall` removes it, or says how.
"""Load autogpu's hook, then the sitecustomize that this file hides: Python runs only the first one it finds.

A folder on PYTHONPATH reaches every Python that a command starts, so this file parses on Python 2 as well and
does nothing on a Python that autogpu does not support.
"""

# ruff: noqa: ANN201  (annotations do not parse on Python 2)
import sys

try:
    if sys.version_info >= (3, 7):
        import _autogpu_hook

        _autogpu_hook.install()
except Exception:
    # The hook's file is missing or broken: a start without autogpu is better than a message at every start.
    pass


def run_the_hidden_one():
    """Import the next ``sitecustomize`` on ``sys.path`` in this one's place; its errors are its own."""
    here = __file__.replace("\\", "/").rpartition("/")[0]
    hiding = [folder for folder in sys.path if folder.replace("\\", "/") == here]
    if not hiding:
        # Without its own folder to leave out, this file would only find itself again.
        return
    place = sys.path.index(hiding[0])
    # The list is changed in place and only by these elements: the hidden one may well edit sys.path itself.
    for folder in hiding:
        sys.path.remove(folder)
    this = sys.modules.pop(__name__)
    try:
        import sitecustomize  # noqa: F401
    except ImportError as error:
        if str(error).replace("'", "") != "No module named sitecustomize":
            raise
    finally:
        # The import system that is busy with this module expects to find one by its name.
        sys.modules.setdefault(__name__, this)
        sys.path.insert(min(place, len(sys.path)), hiding[0])


if __name__ == "sitecustomize":
    run_the_hidden_one()
