# autogpu start-up file, version 1. Part of autogpu-autoload: `autogpu uninstall` removes it, or says how.
"""autogpu's finder. When a framework is imported, it loads _autogpu_steps.py, which does the rest.

`autogpu install` writes this text as _autogpu_hook.py into site-packages, where a .pth or .start file imports it. The
text is also the first part of the sitecustomize.py for a folder on PYTHONPATH. Python 2 reads that file too, so the
text must parse on Python 2.

Every Python start runs this file, so it imports only ``sys``, and defines no class and as few functions as possible.
The module itself is the finder in ``sys.meta_path``. Nothing else happens before a framework is imported. ``AUTOGPU=0``
in the environment switches it off.
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

# Frameworks that other start-up files imported before this file ran.
too_late = tuple(filter(sys.modules.__contains__, frameworks))

this = sys.modules[__name__]

# find: the function of _autogpu_steps.py, once that file is loaded. complain: called if the file can't be loaded.
find = complain = None

# folders: entries of PYTHONPATH from which autogpu is imported if the environment has none. places: folders in which
# Python looks for _autogpu_steps.py; if there are none, the folder of this file.
folders = places = ()


def install():
    """Put this module into ``sys.meta_path``, but only once if several start-up files call this function."""
    global frameworks
    for finder in sys.meta_path:
        if getattr(finder, "__name__", "") == __name__:
            return
    sys.meta_path.insert(0, this)
    # In a worker process of Ray, autogpu passes the GPUs that Ray assigned to a task on to the programs of the task.
    if b"RAY_RAYLET_PID" in environ:
        frameworks += ("ray",)
    # If autogpu wrote a list of GPUs in the parent process, load _autogpu_steps.py now. It removes the list from
    # os.environ, but not from C's environ, which CUDA reads. "torch." is not a module; it only makes find_spec load the
    # file.
    if environ.get(b"AUTOGPU_ORIG_WRITTEN"):
        find_spec("torch.")


def find_spec(fullname, path=None, target=None):
    """Return the spec that a later finder returns for a framework. Only the loader in that spec is changed."""
    global __path__, frameworks, folders, find
    if fullname.partition(".")[0] not in frameworks and (fullname != "autogpu" or not folders):
        return None
    if find is None:
        try:
            # With a __path__ this module is a package, and Python looks for the submodule only there. Restore the
            # entry in sys.modules, because the script may have removed it, or imported this file again.
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


# Install on import, to keep the .pth line short. Every start of Python compiles that line, in a venv even twice.
if __name__ == "_autogpu_hook":
    install()


# The text above is that of _autogpu_hook.py; `make docs` copies it. The rest is for a folder on PYTHONPATH: the folder
# of `autogpu install --target`, of `autogpu run`, or of a host. A host's folder has all other files in autogpu-private.


def serve():
    """Install this module as the hook. If the environment has its own hook, only add the folder to its ``folders``."""
    global __file__, __name__, complain, places
    os = sys.modules["os"]
    folder = os.path.dirname(__file__)
    if __name__ == "_autogpu_host":
        # A base Python's sitecustomize.py has imported the copy of this file in autogpu-private.
        folder = os.path.dirname(folder)
    try:
        # A host's folder is a link, which an upgrade replaces. Follow it now, so that this process uses one version.
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
            # A host's folder does not serve root and the users of system services.
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
    """Print one line, unless stderr is closed, has no reader any more, or would block."""
    try:
        import select

        poll = select.poll()
        poll.register(sys.stderr.fileno(), select.POLLOUT)
        if [event for _, event in poll.poll(0)] == [select.POLLOUT]:
            gone = " was removed or changed; AUTOGPU=0 turns autogpu off\n"
            sys.stderr.write("autogpu: not applied: " + folders[0] + gone)
    except Exception:
        pass


def run_the_hidden_one(file):
    """Import the next ``sitecustomize`` on ``sys.path``. Its errors are reported as if this file did not exist."""
    here = file.replace("\\", "/").rpartition("/")[0]
    hiding = [folder for folder in sys.path if folder.replace("\\", "/") == here]
    if not hiding:
        # sys.path spells this folder in another way. It can't be removed below, and the import would find this file.
        return
    place = sys.path.index(hiding[0])
    # Change the list in place, and only these elements: the hidden file may also change sys.path.
    for folder in hiding:
        sys.path.remove(folder)
    del sys.modules["sitecustomize"]
    try:
        import sitecustomize  # noqa: F401
    except ImportError as error:
        if str(error).replace("'", "") != "No module named sitecustomize":
            raise
    finally:
        # The import system is still importing this module, and looks it up by its name afterwards.
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
