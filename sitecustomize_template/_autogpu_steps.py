# autogpu start-up file, version 1. Part of autogpu-autoload: `autogpu uninstall` removes it, or says how.
"""Two steps of autogpu around the import of a framework, one before its body and one after.

Loaded by the finder in _autogpu_hook.py, as a part of it, when the first framework is imported.

The package may be of another version than this file. This file requires only ``before_import`` and ``after_import`` of
``autogpu.activation``, with two arguments each. No later version changes them. It does not require
``errors.raise_if_from_script``.
"""

import sys
from importlib.machinery import PathFinder

import _autogpu_hook as hook

if hook.started_with is not None:
    hook.started_with = sys.modules["os"].fsdecode(hook.started_with)

# Frameworks for which the step before_import was taken. It is taken once per process.
begun = set()

# Frameworks that get no further step: imported before this hook, or all of them after an error.
left_alone = set(hook.too_late)


def find(fullname, path, target):
    """Return the spec of a framework or of autogpu. Return ``None`` for a submodule, which later finders then load."""
    if fullname == "autogpu":
        return find_package()
    if fullname not in hook.frameworks:
        notice_bypass(fullname.partition(".")[0])
        return None
    if fullname in left_alone:
        return None
    try:
        # is_off() may raise: a script may have replaced os.environ by another object, or deleted it.
        return None if is_off() else find_later(fullname, path, target)
    except Exception as error:
        # A later finder has no find_spec, or forbids the import. Python calls that finder right after us, so
        # its error has a traceback without our frames.
        raise_if_from_script(error)
        return None


def is_off():
    return sys.modules["os"].environ.get("AUTOGPU", "").strip().lower() in ("0", "off", "false", "no")


def separate_parents_list():
    """Split ``CUDA_VISIBLE_DEVICES`` into the two values that it had in the parent process.

    os.environ gets the value that the parent's script saw. The environment of C, which CUDA reads, gets the list that
    autogpu wrote in the parent, except with AUTOGPU=0. This process may have inherited either value. If the list came
    from another host, the variable gets its value without autogpu. In that case, or if the variable now has a third
    value, CUDA_DEVICE_ORDER gets its value without autogpu too.
    """
    os = sys.modules["os"]
    environ = os.environ
    written, original = environ.get("AUTOGPU_ORIG_WRITTEN"), environ.get("AUTOGPU_ORIG_CUDA_VISIBLE_DEVICES")
    shown, order = environ.get("AUTOGPU_ORIG_SHOWN", original), environ.get("AUTOGPU_ORIG_CUDA_DEVICE_ORDER")
    if not written:
        return
    is_parents = hook.started_with in (written, shown)
    host = os.uname().nodename
    if environ.get("AUTOGPU_ORIG_HOST", host) != host:
        if is_parents:
            show(original)
        restore_order(order)
        for name in [name for name in environ if name.startswith("AUTOGPU_ORIG_")]:
            del environ[name]
    elif is_parents:
        show(shown)
        if not is_off():
            os.putenv("CUDA_VISIBLE_DEVICES", written)
    else:
        restore_order(order)


def show(visible):
    hook.started_with = visible
    put("CUDA_VISIBLE_DEVICES", visible)


def restore_order(order):
    if order is not None:
        put("CUDA_DEVICE_ORDER", order or None)


def put(name, value):
    if value is None:
        sys.modules["os"].environ.pop(name, None)
    else:
        sys.modules["os"].environ[name] = value


def notice_bypass(framework):
    """Report that a finder before this one has loaded the framework. This finder is asked only for submodules then."""
    if framework in begun or framework in left_alone:
        return
    try:
        spec = getattr(sys.modules.get(framework), "__spec__", None)
        # Ignore a stub that a test put into sys.modules, and a folder that happens to have the framework's name.
        if getattr(spec, "origin", None) and not is_off():
            give_up(framework, f"another import hook ({type(spec.loader).__module__}) loaded it first")
    except Exception as error:
        raise_if_from_script(error)


def find_later(fullname, path, target):
    """Return the spec from the finders after this one. Its loader runs autogpu's steps around the module's body."""
    # Not importlib.util.find_spec: it starts again at the first finder, which has deadlocked other hooks (ddtrace).
    finders = iter(list(sys.meta_path))
    for finder in finders:
        if getattr(finder, "find_spec", None) is hook.find_spec:
            break
    for finder in finders:
        spec = finder.find_spec(fullname, path, target)
        if spec is not None:
            break
    else:
        return None
    # Keep the loader's type. Set one attribute of this instance; our exec_module removes it again. Leave a loader
    # alone if it is a class, or if another hook has already set this attribute.
    own = getattr(spec.loader, "__dict__", None)
    if type(own) is dict and "exec_module" not in own and hasattr(type(spec.loader), "exec_module"):
        own["exec_module"] = exec_module.__get__(spec.loader)
    return spec


def exec_module(loader, module):
    """Run the module's body between the two steps, while the import system holds the framework's lock."""
    # One loader can serve many modules: a zipimporter does.
    name = module.__name__
    is_framework = name in hook.frameworks
    if is_framework:
        loader.__dict__.pop("exec_module", None)
        take_step("before_import", name, hook.started_with)
    try:
        type(loader).exec_module(loader, module)
    except BaseException as error:
        # From Python 3.11 on this leaves our frame out of the traceback.
        error.__traceback__ = error.__traceback__.tb_next
        raise
    if is_framework:
        take_step("after_import", name, module)


def is_package(spec):
    """True if the spec is that of autogpu's package, and not of another module or folder of that name."""
    folders = list((spec and spec.submodule_search_locations) or ())
    return bool(folders) and PathFinder.find_spec("autogpu.activation", folders) is not None


def find_package():
    """Return the spec of the autogpu that a folder on PYTHONPATH brings, unless another finder finds an autogpu."""
    for finder in list(sys.meta_path) if hook.folders else ():
        found = finder is not hook.this and hasattr(finder, "find_spec") and finder.find_spec("autogpu", None)
        # A folder without __init__.py, such as a clone, has no origin.
        if found and found.origin is not None:
            return None
    path = sys.modules["os"].path
    for folder in hook.folders:
        # A host's folder has the package in autogpu-private. The folder of `autogpu run` is two levels below the
        # project, or three levels below site-packages.
        is_of_run = folder.endswith("/sitecustomize_template/run")
        for place in (folder + "/../..", folder + "/../../..") if is_of_run else (folder + "/autogpu-private",):
            spec = PathFinder.find_spec("autogpu", [path.normpath(place)])
            if is_package(spec):
                return spec
    return None


def import_package():
    """Import autogpu from the folders of installed packages, or from a folder on PYTHONPATH that brings it.

    Never run a module named autogpu that belongs to the script. Return ``None`` if autogpu can be imported, the
    reason if it can't, and ``""`` if it was uninstalled.
    """
    loaded = sys.modules.get("autogpu")
    found = PathFinder.find_spec("autogpu") if loaded is None else getattr(loaded, "__spec__", None)
    spec = find_installed() or find_package()
    has_own = found is not None and found.origin is not None
    if has_own and (spec is None or not is_package(found)):
        return "a module of the script is named autogpu and hides the package" if spec or hook.folders else ""
    # Without a spec, the caller's import may still find autogpu, because an editable install has a finder of its own.
    if spec is not None and loaded is None:
        load(spec)
    return None


def find_installed():
    """Return the spec of the autogpu in the folders of installed packages; ``None`` if there is none."""
    for entry in sys.path:
        if entry in hook.started_path or str(entry).endswith(("site-packages", "dist-packages")):
            spec = PathFinder.find_spec("autogpu", [entry])
            if is_package(spec):
                return spec
    return None


def load(spec):
    from importlib.util import module_from_spec

    module = sys.modules["autogpu"] = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        # Let the next import start again.
        del sys.modules["autogpu"]
        raise


def take_step(step, framework, value):
    """Call a function of autogpu.activation. An error prints one line and never fails the framework's import.

    after_import is called again if the framework is reloaded or imported again, because it may have lost its hooks.
    """
    is_first = framework not in begun
    if framework in left_alone or is_first != (step == "before_import"):
        return
    begun.add(framework)
    try:
        why = import_package() if step == "before_import" else None
        if why is not None:
            give_up(framework, why)
            return
        from autogpu import activation

        getattr(activation, step)(framework, value)
    except BaseException as error:
        # After an interruption or sys.exit() the next import takes the step again.
        if is_first:
            begun.discard(framework)
        raise_if_from_script(error)
        if not isinstance(error, Exception):
            raise
        give_up(framework, "" if is_uninstalled(error) else repr(error))


def is_uninstalled(error):
    """True if the import failed because autogpu was uninstalled and only this file is left."""
    # If the uninstall left a folder called autogpu behind, Python imports it as a namespace package. The error has no
    # path in that case either.
    return isinstance(error, ImportError) and error.name == "autogpu" and not error.path and not hook.folders


def raise_if_from_script(error):
    """Raise the exception of the script, if a signal handler raised one in our code; see autogpu/errors.py."""
    try:
        if import_package() is not None:
            return
        from autogpu import errors
    except Exception:
        # The package is broken, which most likely caused ``error``.
        return
    errors.raise_if_from_script(error)


def give_up(framework, why):
    """Take no further step in this process. Print ``why``, unless it is empty."""
    left_alone.update(hook.frameworks)
    if why:
        try:
            if stderr_is_read():
                sys.stderr.write(f"autogpu: not applied to {framework}: {why}; AUTOGPU=0 turns autogpu off\n")
        except BaseException as error:
            # A script's own stderr may even call sys.exit().
            raise_if_from_script(error)


def stderr_is_read():
    """True if a write would neither end the script by SIGPIPE nor block forever; as in autogpu/stderr.py."""
    try:
        import select

        poll = select.poll()
        poll.register(sys.stderr.fileno(), select.POLLOUT)
    except Exception as error:
        raise_if_from_script(error)
        return True
    return [event for _, event in poll.poll(1000)] == [select.POLLOUT]


separate_parents_list()
