"""The start-up hook in real interpreters: it must not disturb a program, whatever the program does."""

import importlib.util
import itertools
import re
import shutil
import subprocess
import sys
from contextlib import contextmanager

import pytest

from autogpu.install import template_file
from tests.conftest import each_python
from tests.hook import throwaway
from tests.hook.cases import ALL, CASES
from tests.hook.throwaway import TEMPLATES, Ran
from tests.support import environments
from tests.support.environments import interpreter

HOOK = TEMPLATES / "_autogpu_hook.py"


@pytest.fixture(scope="session", params=each_python())
def place(request, tmp_path_factory):
    """One environment per Python, which no test may write to."""
    major, minor = (int(part) for part in request.param.split("."))
    return throwaway.make(interpreter(request.param), (major, minor), tmp_path_factory.mktemp(f"py{major}{minor}"))


@pytest.fixture
def own_place(place):
    """The environment of ``place``, for a test that changes its stand-in packages. They are restored after the test."""
    yield place
    shutil.rmtree(str(place.site_packages / "autogpu"), ignore_errors=True)
    throwaway.write(place.site_packages, throwaway.PACKAGES)
    for cache in place.site_packages.rglob("__pycache__"):
        shutil.rmtree(str(cache))


@contextmanager
def without_hook(place):
    """Replace the hook's ``.pth`` in an environment by one that does nothing, and restore it at the end."""
    pth = place.site_packages / "autogpu.pth"
    switch = pth.read_text()
    # Python 3.13 imports a codec if any .pth has a line in it.
    pth.write_text("# idle\n")
    try:
        yield
    finally:
        pth.write_text(switch)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_import_takes_the_expected_steps(place, case, tmp_path):
    if not case.since <= place.version < case.before:
        pytest.skip("this case is for other Python versions")
    ran = place.run(case.code, tmp_path, options=case.options, environ=case.environ)
    assert ran.stderr == case.stderr
    assert (ran.returncode, ran.steps) == (0, case.steps)


@pytest.mark.parametrize(
    ("by", "name"),
    [
        *itertools.product(["the-script", "PYTHONPATH"], ["autogpu.py", "autogpu/__init__.py"]),
        ("the-script", "autogpu/activation.py"),
    ],
)
def test_autogpu_module_of_the_project_is_not_run(place, tmp_path, name, by):
    project = tmp_path / "project"
    throwaway.write(project, {"autogpu/__init__.py": ""} if "/" in name else {})
    throwaway.write(project, {name: "from events import log\nlog('theirs')\nmine = 1\n"})
    script = (tmp_path if by == "PYTHONPATH" else project) / "script.py"
    script.write_text("import tensorflow\nimport autogpu")
    ran = place.run(script, tmp_path, environ={by: str(project)})
    if name == "autogpu/activation.py":
        # The project holds a copy of the package, as a checkout does. The installed package must run.
        assert (ran.returncode, ran.steps, ran.stderr) == (0, ALL, "")
    else:
        # The project's autogpu runs only when the script itself imports it, after TensorFlow.
        assert (ran.returncode, ran.steps) == (0, "body theirs")
        assert "a module of the script is named autogpu and hides the package" in ran.stderr


def test_steps_file_is_never_loaded_from_the_script_folder(place, tmp_path):
    for folder in ("project", "project/_autogpu_hook"):
        throwaway.write(tmp_path / folder, {"_autogpu_steps.py": "raise SystemExit('theirs')\n"})
    script = tmp_path / "project" / "script.py"
    script.write_text("import tensorflow")
    ran = place.run(script, tmp_path, environ={"PYTHONPATH": str(script.parent)})
    assert (ran.returncode, ran.steps, ran.stderr) == (0, ALL, "")


@pytest.mark.parametrize(
    "text",
    [None, "", "def find(:\n", "import _autogpu_gone\n", "\0"],
    ids=["missing", "empty", "cut-off", "import-error", "null-byte"],
)
def test_hook_with_a_missing_or_broken_steps_file_is_silent(place, tmp_path, text):
    # Put a copy of the hook on PYTHONPATH, before the installed hook.
    ours = tmp_path / "ours"
    throwaway.write(ours, {"_autogpu_hook.py": HOOK.read_text()})
    if text is not None:
        throwaway.write(ours, {"_autogpu_steps.py": text})
    code = f"import sys, tensorflow, tensorflow.python; assert sys.meta_path[0].__file__.startswith({str(ours)!r})"
    ran = place.run(code, tmp_path, environ={"PYTHONPATH": str(ours)})
    assert (ran.returncode, ran.steps, ran.stderr) == (0, "body", "")


def test_inherited_gpu_list_is_kept_when_the_script_changes_it(place, tmp_path):
    code = "import os; os.environ['CUDA_VISIBLE_DEVICES'] = '7'; import tensorflow"
    for number, (inherited, remembered) in enumerate([({}, "None"), ({"CUDA_VISIBLE_DEVICES": "3,1"}, "3,1")]):
        ran = place.run(code, tmp_path, environ=inherited)
        assert ran.events[3 * number] == f"before {remembered}"


@pytest.mark.parametrize("failure", ["ImportError", "ZeroDivisionError"])
def test_traceback_is_the_same_as_without_the_hook(place, tmp_path, failure):
    script = tmp_path / "script.py"
    script.write_text("import keras")
    environ = {"FAIL_BODY": failure, "PYTHONPATH": str(place.site_packages)}
    with_hook = place.run(script, tmp_path, environ=environ)
    with without_hook(place):
        without = place.run(script, tmp_path, environ=environ)
    assert (with_hook.returncode, with_hook.stderr.count("Traceback")) == (1, 1)
    # Both runs append to the same file of events.
    assert (with_hook.steps, without.steps) == ("before body", "before body body")
    if place.version >= (3, 11):
        assert with_hook.stderr == without.stderr
    else:
        # Before 3.11 the hook can't remove its lines from the traceback. The lines of the program must all be there.
        assert set(without.stderr.splitlines()) <= set(with_hook.stderr.splitlines())


CHILD_PROCESSES = """
import multiprocessing
from events import log

def work():
    import tensorflow
    assert tensorflow.configured
    log("child")

if __name__ == "__main__":
    if {imports_first}:
        import tensorflow
    context = multiprocessing.get_context("{method}")
    child = context.Process(target=work)
    child.start()
    child.join()
    assert child.exitcode == 0
"""


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver", "fork-after-the-import"])
def test_child_process_takes_its_own_steps_or_inherits_them(place, tmp_path, method):
    script = tmp_path / "script.py"
    script.write_text(CHILD_PROCESSES.format(method=method.partition("-")[0], imports_first="-" in method))
    ran = place.run(script, tmp_path)
    assert (ran.returncode, ran.steps, ran.stderr) == (0, "before body after child", "")


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        pytest.param("activation.py", "def before_import(", "SyntaxError", id="syntax-error"),
        pytest.param("activation.py", "", "AttributeError", id="function-missing"),
        pytest.param("activation.py", "import gone_dependency", "ModuleNotFoundError", id="missing-dependency"),
        pytest.param("__init__.py", "import gone_dependency", "ModuleNotFoundError", id="package-dependency"),
        pytest.param("__init__.py", "from autogpu import gone_part", "ImportError", id="missing-submodule"),
        pytest.param("__init__.py", "1 / 0", "ZeroDivisionError", id="exception"),
    ],
)
def test_broken_autogpu_prints_one_line_and_tensorflow_is_imported(own_place, tmp_path, name, text, complaint):
    throwaway.write(own_place.site_packages / "autogpu", {name: text})
    ran = own_place.run("import tensorflow, keras; print(tensorflow.keras_api)", tmp_path)
    assert (ran.returncode, ran.stdout, ran.steps) == (0, "1\n", "body")
    assert re.fullmatch(rf"autogpu: not applied to tensorflow: {complaint}\(.*\); AUTOGPU=0 .*\n", ran.stderr)
    silenced = own_place.run("import tensorflow", tmp_path, environ={"AUTOGPU": "0"})
    assert (silenced.returncode, silenced.stderr) == (0, "")


@pytest.mark.parametrize("leftover", [False, True], ids=["removed", "empty-folder-left"])
def test_removed_autogpu_is_silent(own_place, tmp_path, leftover):
    shutil.rmtree(own_place.site_packages / "autogpu")
    if leftover:
        (own_place.site_packages / "autogpu").mkdir()
    for code, events in (("pass", ()), ("import tensorflow", ("body",))):
        assert own_place.run(code, tmp_path) == Ran(0, "", "", events)


def test_bare_start_loads_the_hook_and_nothing_else(place, tmp_path):
    code = "import sys; print(*sorted(sys.modules))"
    with_hook = set(place.run(code, tmp_path).stdout.split())
    with without_hook(place):
        without = set(place.run(code, tmp_path).stdout.split())
    assert with_hook - without == {"_autogpu_hook"}


def test_finder_keeps_no_part_of_another_module_alive():
    # A reference to os.environ would lengthen the exit of each interpreter by 1.3 % of a bare start.
    spec = importlib.util.spec_from_file_location("_autogpu_hook", HOOK)
    module = importlib.util.module_from_spec(spec)
    before = list(sys.meta_path)
    sys.modules["_autogpu_hook"] = module
    try:
        spec.loader.exec_module(module)
        assert sys.meta_path[0] is module
    finally:
        sys.meta_path[:] = before
        del sys.modules["_autogpu_hook"]
    held = {name: value for name, value in vars(module).items() if not name.startswith("__")}
    functions = {name for name, value in held.items() if callable(value)}
    # Each function costs time at every start. So code for the import of a framework is in _autogpu_steps.py.
    assert functions == {"install", "find_spec"}
    kept = {
        "frameworks",
        "environ",
        "started_with",
        "started_path",
        "too_late",
        "this",
        "find",
        "complain",
        "folders",
        "places",
    }
    assert set(held) - functions == {"sys", *kept}


def test_start_up_files_are_ascii_with_marker_and_one_import():
    names = ("_autogpu_hook.py", "_autogpu_steps.py", "autogpu.pth", "autogpu.start")
    texts = {name: template_file(TEMPLATES, name).read_bytes().decode("ascii") for name in names}
    assert all(text.startswith("# autogpu start-up file, version 1.") for text in texts.values())
    lines = [line for line in texts["autogpu.pth"].splitlines() if not line.startswith("#")]
    assert lines == ["import _autogpu_hook"]
    # Python 3.15 resolves the last line of a .start file as module:function.
    assert texts["autogpu.start"].splitlines()[-1] == "_autogpu_hook:install"


@pytest.mark.parametrize("starters", [("autogpu.start",), ("autogpu.start", "autogpu.pth")], ids=" and ".join)
def test_start_file_loads_the_hook_once(tmp_path, starters):
    newest = environments.SUPPORTED[-1]
    if interpreter(newest) is None:
        pytest.skip(f"no Python {newest} on this machine")
    version = tuple(map(int, newest.split(".")))
    place = throwaway.make(interpreter(newest), version, tmp_path / "venv", starters)
    code = "import sys; print(*[f.__name__ for f in sys.meta_path if f.__name__ == '_autogpu_hook']); import tensorflow"
    ran = place.run(code, tmp_path, options=("-X", "dev", "-W", "error"))
    assert (ran.returncode, ran.stdout, ran.steps, ran.stderr) == (0, "_autogpu_hook\n", ALL, "")


def test_python_2_runs_the_hidden_sitecustomize_without_the_hook(tmp_path):
    python = interpreter("2.7")
    if python is None:
        pytest.skip("no Python 2.7 on this machine")
    hidden = tmp_path / "hidden"
    throwaway.write(hidden, {"sitecustomize.py": "print('hidden')"})
    ours = tmp_path / "ours"
    throwaway.write(ours, {"sitecustomize.py": (TEMPLATES / "run" / "sitecustomize.py").read_text()})
    command = [str(python), "-c", "import sys; print('_autogpu_hook' in sys.modules)"]
    path = {"PYTHONPATH": f"{ours}:{hidden}"}
    done = subprocess.run(command, env=path, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "hidden\nFalse\n", "")


@pytest.mark.parametrize("stderr", throwaway.UNREAD)
def test_unread_stderr_neither_kills_nor_blocks_the_script(place, tmp_path, stderr):
    ran = place.run(throwaway.UNREAD[stderr], tmp_path, environ={"FAIL_BEFORE": "ZeroDivisionError"})
    assert (ran.returncode, ran.stdout, ran.steps) == (0, "alive", "before body")
