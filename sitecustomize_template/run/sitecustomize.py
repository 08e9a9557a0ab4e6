# autogpu start-up file, version 1. Part of autogpu-autoload: `autogpu uninstall` removes it, or says how.
"""The finder of autogpu: it notices the import of a framework, and leaves what then happens to _autogpu_steps.py.

As _autogpu_hook.py it lies where an environment has its packages, and a .pth or .start file imports it. The
sitecustomize.py of a folder on PYTHONPATH begins with the same text, which therefore parses on Python 2.

Every Python start runs this file, so it imports only ``sys``, defines no class (the module itself is the finder in
``sys.meta_path``) and no function more than it needs: Python loads each of them at every start. Nothing else happens
before a framework is imported. ``AUTOGPU=0`` in the environment switches it off.
"""

import sys

# The top-level modules whose import matters: those of autogpu/frameworks/__init__.py.
frameworks = ("tensorflow", "jax", "torch")

# What this process inherited, as bytes, to tell it from what the script writes later. posix.environ is a plain
# dictionary; reading os.environ takes ten times as long. A reference to os is never kept: a finder lives until the very
# end of the interpreter, and keeps all of os alive beside it, which adds 1.3 % of a bare start to that end (3.11).
environ = getattr(sys.modules.get("posix"), "environ", {})
started_with = environ.get(b"CUDA_VISIBLE_DEVICES")

# Where packages are installed, and PYTHONPATH: a script's own folder comes after this.
started_path = tuple(sys.path)

# Frameworks that were imported before.
too_late = tuple(filter(sys.modules.__contains__, frameworks))

# This module, what it asks when a framework is imported, of the other file, and what it calls if that can't be read.
this = sys.modules[__name__]
find = complain = None

# Folders on PYTHONPATH that bring autogpu to a Python whose environment has none; where theirs has the other file.
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
            # A package's path, so that Python looks for the file there and nowhere else; and the name is
            # taken back, since a script may have emptied sys.modules or imported this file once more.
            __path__ = places or [sys.modules["os"].path.dirname(__file__)]
            sys.modules[__name__] = this
            from _autogpu_hook._autogpu_steps import find
        except Exception as error:
            trace = error.__traceback__
            while trace.tb_next is not None:
                trace = trace.tb_next
            importing = (__name__, "importlib.", "_frozen_importlib")
            if not trace.tb_frame.f_globals["__name__"].startswith(importing):
                # A signal handler of the script has come in between.
                raise
            # The file is missing or broken: imports go on as if this one were not here either.
            if complain is not None:
                complain()
            frameworks = folders = ()
            return None
    return find(fullname, path, target)


# On import, so that the .pth line is as short as it can be: every start compiles it, twice in a venv.
if __name__ == "_autogpu_hook":
    install()


# The text above is that of _autogpu_hook.py; `make docs` copies it. What follows is for a folder on PYTHONPATH: that of
# `autogpu install --target`, that of `autogpu run`, or a host's, which keeps all other files in autogpu-private.


def serve():
    """Be the hook of this Python; if its environment has one, only bring the package, which may be gone there."""
    global __file__, __name__, complain, places
    os = sys.modules["os"]
    folder = os.path.dirname(__file__)
    if __name__ == "_autogpu_host":
        # This file again, in the private part: a base Python's own sitecustomize has imported it.
        folder = os.path.dirname(folder)
    try:
        # A host's is a link, which an upgrade points elsewhere: this process keeps to the version it began with.
        folder = os.path.join(os.path.dirname(folder), os.readlink(folder))
    except OSError:
        pass
    user = os.getuid()
    try:
        private = os.stat(folder + "/autogpu-private")
    except OSError:
        is_own, found = True, [folder, os.path.dirname(folder)]
    else:
        if not (1000 <= user < 60000 or user > 65535):
            # A host's folder serves people, and neither root nor services.
            return
        is_own = private.st_uid in (0, user) and not private.st_mode & 0o22
        found = [folder + "/autogpu-private"] if is_own else [folder]
    hook = sys.modules.setdefault("_autogpu_hook", this)
    if hook is this:
        __file__, __name__, places = folder + "/sitecustomize.py", "_autogpu_hook", found
        complain = say_that_it_is_gone
        install()
    if hook is this or is_own:
        hook.folders += (folder,)


def say_that_it_is_gone():
    """Say so on stderr, unless it is closed, nobody reads it any more, or a write would block."""
    try:
        select = __import__("select")
        poll = select.poll()
        poll.register(sys.stderr.fileno(), select.POLLOUT)
        if [event for _, event in poll.poll(0)] == [select.POLLOUT]:
            sys.stderr.write("autogpu: not applied: " + folders[0] + " was removed or changed\n")
    except Exception:
        pass


def run_the_hidden_one(file):
    """Import the next ``sitecustomize`` on ``sys.path`` in the place of this one; its errors are its own."""
    here = file.replace("\\", "/").rpartition("/")[0]
    hiding = [folder for folder in sys.path if folder.replace("\\", "/") == here]
    if not hiding:
        # Without its own folder to leave out, this file would only find itself again.
        return
    place = sys.path.index(hiding[0])
    # The list is changed in place and only by these elements: the hidden one may well edit sys.path itself.
    for folder in hiding:
        sys.path.remove(folder)
    del sys.modules["sitecustomize"]
    try:
        import sitecustomize  # noqa: F401
    except ImportError as error:
        if str(error).replace("'", "") != "No module named sitecustomize":
            raise
    finally:
        # The import system that is busy with this module expects to find one by its name.
        sys.modules.setdefault("sitecustomize", this)
        sys.path.insert(min(place, len(sys.path)), hiding[0])


name, file = __name__, __file__
try:
    if sys.version_info >= (3, 7):
        serve()
except Exception:
    # A start without autogpu is better than a message at every start.
    pass
if name == "sitecustomize":
    run_the_hidden_one(file)
