# autogpu start-up file, version 1. `autogpu host-setup --undo`, as root, removes it.
"""Load the host's hook if PYTHONPATH has not done so, for example because Python was started with -E."""

import sys

if sys.version_info >= (3, 7) and "_autogpu_host" not in sys.modules:
    sys.path.insert(0, "/usr/local/lib/autogpu/autogpu-private")
    try:
        import _autogpu_host  # noqa: F401
    except Exception:
        # A start without autogpu is better than a message at every start.
        pass
    sys.path.remove("/usr/local/lib/autogpu/autogpu-private")


# host-setup leaves out the rest if it appends this text to Debian's sitecustomize.py.


def run_the_hidden_one():
    """Run the next ``sitecustomize`` on ``sys.path``, which this file hides."""
    external, bootstrap = sys.modules["_frozen_importlib_external"], sys.modules["_frozen_importlib"]
    here = __file__.rpartition("/")[0]
    later = sys.path[sys.path.index(here) + 1 :] if here in sys.path else []
    spec = external.PathFinder.find_spec(__name__, later)
    if spec is not None and spec.loader is not None:
        if not hasattr(spec.loader, "exec_module"):
            # Before Python 3.10 the loader of a zip archive has no exec_module.
            del sys.modules[__name__]
            spec.loader.load_module(__name__)
            return
        module = sys.modules[__name__] = bootstrap.module_from_spec(spec)
        spec.loader.exec_module(module)


run_the_hidden_one()
