# autogpu start-up file, version 1. Part of autogpu-autoload: `autogpu uninstall` removes it, or says how.
"""autogpu's finder. When a framework is imported, it loads _autogpu_steps.py, which does the rest.

`autogpu install` writes this text as _autogpu_hook.py into site-packages, where a .pth or .start file imports it. The
text is also the first part of the sitecustomize.py for a folder on PYTHONPATH. Python 2 reads that one too, so the text
must parse on Python 2.

Every Python start runs this file, so it imports only ``sys``, defines no class (the module itself is the finder in
``sys.meta_path``) and no function more than it needs: Python loads each of them at every start. Nothing else happens
before a framework is imported. ``AUTOGPU=0`` in the environment switches it off.
"""

import sys

# The top-level modules whose import matters: those of autogpu/frameworks/__init__.py.
frameworks = ("tensorflow", "jax", "torch")

# The value of CUDA_VISIBLE_DEVICES that this process inherited, as bytes; the script may change it later. To read it
# from os.environ takes ten times as long. Keep no reference to os: this module lives until the interpreter ends, and
# would keep os alive until then, which costs 1.3 % of a bare start (3.11).
environ = getattr(sys.modules.get("posix"), "environ", {})
started_with = environ.get(b"CUDA_VISIBLE_DEVICES")

# The folders of installed packages and PYTHONPATH. Python adds the script's own folder later.
started_path = tuple(sys.path)

# Frameworks that start-up files imported before this one.
too_late = tuple(filter(sys.modules.__contains__, frameworks))

this = sys.modules[__name__]

# The function find of _autogpu_steps.py, once it is loaded; the function to call if it can't be loaded.
find = complain = None

# Folders on PYTHONPATH from which autogpu can be imported if the environment has none; folders of _autogpu_steps.py.
folders = places = ()


def install():
    """Put this module into ``sys.meta_path``, once, however often start-up files name it."""
    global frameworks
    for finder in sys.meta_path:
        if getattr(finder, "__name__", "") == __name__:
            return
    sys.meta_path.insert(0, this)
    # In a worker process of Ray, autogpu tells the programs that a task starts what Ray assigned to the task.
    if b"RAY_RAYLET_PID" in environ:
        frameworks += ("ray",)
    # If autogpu wrote a list of GPUs in the parent process, load _autogpu_steps.py now: it leaves the list in the
    # environment of C, where only CUDA reads it. "torch." is not a module; the name only makes find_spec load the file.
    if environ.get(b"AUTOGPU_ORIG_WRITTEN"):
        find_spec("torch.")


def find_spec(fullname, path=None, target=None):
    """Find what the finders after this one find: a question, with no effect but on the loader it returns."""
    global __path__, frameworks, folders, find
    if fullname.partition(".")[0] not in frameworks and (fullname != "autogpu" or not folders):
        return None
    if find is None:
        try:
            # With a __path__ this module is a package, and Python looks for the submodule only there. Restore the
            # entry in sys.modules: the script may have emptied it, or imported this file again.
            __path__ = places or [sys.modules["os"].path.dirname(__file__)]
            sys.modules[__name__] = this
            from _autogpu_hook._autogpu_steps import find
        except Exception as error:
            trace = error.__traceback__
            while trace.tb_next is not None:
                trace = trace.tb_next
            importing = (__name__, "importlib.", "_frozen_importlib")
            if not trace.tb_frame.f_globals["__name__"].startswith(importing):
                # A signal handler of the script raised it.
                raise
            # The file is missing or broken: do nothing more in this process.
            if complain is not None:
                complain()
            frameworks = folders = ()
            return None
    return find(fullname, path, target)


# On import, so that the .pth line is as short as it can be: every start compiles it, twice in a venv.
if __name__ == "_autogpu_hook":
    install()
