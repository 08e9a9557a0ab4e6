"""``autogpu install --python`` and ``--target``, and the refusal to install if another environment is active."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from autogpu.cli import main as frame
from autogpu.install import ActiveEnvironment, active_elsewhere
from tests.install.test_install import tree
from tests.support import environments
from tests.support.environments import ROOT

LOOK = "import sys; print([f.__file__ for f in sys.meta_path if getattr(f, '__name__', '') == '_autogpu_hook'])"


def run(*command, **environ):
    given = {**os.environ, **environ}
    words = list(map(str, command))
    return subprocess.run(words, capture_output=True, text=True, timeout=120, check=False, cwd=ROOT, env=given)


@pytest.fixture
def base():
    return environments.interpreter("3.11") or pytest.skip("no Python 3.11 on this machine")


@pytest.mark.slow
def test_install_python_runs_the_autogpu_of_that_environment(base):
    other = environments.environment(base, name="install --python")
    hook = environments.site_packages(other) / "_autogpu_hook.py"
    made = run(sys.executable, "-m", "autogpu", "install", "--python", os.path.relpath(other, ROOT))
    assert made.returncode == 0, made.stderr
    assert f"A fresh python3.11 loads {hook}.\n" in made.stdout
    assert made.stdout.endswith(f"To undo: {other} -m autogpu uninstall\n")
    assert made.stderr == (
        f"autogpu: {other.parents[1]} contains none of tensorflow, jax, torch, so it is probably the wrong "
        "environment; for another environment: autogpu install --python PATH\n"
    )
    assert run(other, "-c", LOOK).stdout == f"['{hook}']\n"
    undone = run(sys.executable, "-m", "autogpu", "uninstall", "--python", other)
    assert (undone.returncode, f"removed {hook}\n" in undone.stdout) == (0, True)
    assert run(other, "-c", LOOK).stdout == "[]\n"


@pytest.mark.slow
def test_install_python_explains_how_to_add_a_missing_autogpu(base, capsys):
    other = environments.environment(base, with_autogpu=False)
    assert frame.run(["install", "--python", str(other)]) == 1
    assert capsys.readouterr().err.splitlines() == [
        f"autogpu: {other} can't import autogpu: ModuleNotFoundError: No module named 'autogpu'",
        "autogpu: install autogpu for that Python too, or pass another Python with --python",
    ]


# The empty path is tested with uninstall, because a faulty install would write into the tests' environment.
@pytest.mark.parametrize(("verb", "python"), [("install", "/no/such/python"), ("uninstall", "")])
def test_invalid_python_path_is_an_error_and_never_means_this_python(capsys, verb, python):
    assert frame.run([verb, "--python", python]) == 1
    assert f"{python} can't import autogpu: the process does not start: " in capsys.readouterr().err


def test_failure_in_another_python_is_reported_once(tmp_path, capfd):
    target = ["--target", str(tmp_path / "none")]
    alone = frame.run(["install", *target]), capfd.readouterr()
    assert (alone[0], alone[1].err.startswith("autogpu: ")) == (1, True)
    assert (frame.run(["install", *target, "--python", sys.executable]), capfd.readouterr()) == alone


# The tests with this mark write into the same environment.
IN_TURN = pytest.mark.xdist_group("found-on-path")


@pytest.fixture
def elsewhere(base):
    """Return the Python of an environment with autogpu, which a shell finds on PATH while another one is active."""
    python = environments.environment(base, name="found on PATH")
    yield python
    run(python, "-m", "autogpu", "uninstall")


@pytest.fixture
def active(base, tmp_path):
    """Return the variables of an active environment without pip and autogpu, as `uv venv` creates it."""
    folder = tmp_path / "active"
    subprocess.run([str(base), "-m", "venv", "--without-pip", str(folder)], timeout=120, check=True)
    # Compiled files would change the folders that the tests compare.
    return {"VIRTUAL_ENV": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}


@IN_TURN
@pytest.mark.slow
def test_environment_that_is_not_active_stays_unchanged(elsewhere, active):
    active["PATH"] = os.pathsep.join([f"{active['VIRTUAL_ENV']}/bin", str(elsewhere.parent), os.environ["PATH"]])
    there, here = active["VIRTUAL_ENV"], elsewhere.parents[1]
    site_packages = environments.site_packages(elsewhere)
    before = tree(site_packages)
    refused = run("sh", "-c", "autogpu install", **active)
    assert (refused.returncode, refused.stdout, tree(site_packages)) == (1, "", before)
    assert refused.stderr.splitlines() == [
        f"autogpu: VIRTUAL_ENV is {there}, but this autogpu is installed in {here}: nothing was written",
        f"autogpu: to install it for {there}: uv pip install . --python {there}/bin/python (in a clone of autogpu), "
        f"then {there}/bin/autogpu install",
        f"autogpu: to install it for {here}: {elsewhere} -m autogpu install --this-python",
    ]
    # The suggested command installs although another environment is active, and prints a command that uninstalls.
    made = run(*command_in(refused.stderr), **active)
    assert (made.returncode, run(elsewhere, "-c", LOOK).stdout == "[]\n") == (0, False), made.stderr
    before = tree(site_packages)
    refused = run("sh", "-c", "autogpu uninstall", **active)
    assert (refused.returncode, refused.stdout, tree(site_packages)) == (1, "", before)
    assert f"uv pip uninstall autogpu-autoload --python {there}/bin/python\n" in refused.stderr
    undone = run(*made.stdout.splitlines()[-1].partition("To undo: ")[2].split(), **active)
    assert (undone.returncode, run(elsewhere, "-c", LOOK).stdout) == (0, "[]\n"), undone.stderr


def command_in(message):
    """Return the command at the end of the last line."""
    return message.splitlines()[-1].rpartition(": ")[2].split()


@IN_TURN
@pytest.mark.slow
@pytest.mark.parametrize("options", ["--python", "--target"])
def test_explicit_python_or_target_overrides_the_active_environment(elsewhere, active, tmp_path, options):
    given = {"--python": (sys.executable, elsewhere), "--target": (elsewhere, tmp_path)}[options]
    made = run(given[0], "-m", "autogpu", "install", options, given[1], **active)
    assert made.returncode == 0, made.stderr
    undone = run(*made.stdout.splitlines()[-1].partition("To undo: ")[2].split(), **active)
    assert (undone.returncode, undone.stdout.startswith("removed ")) == (0, True), undone.stderr


@IN_TURN
@pytest.mark.slow
@pytest.mark.parametrize(
    ("folder", "programs", "said"),
    [
        pytest.param("gone", None, "/gone, which does not exist, but this ", id="gone"),
        pytest.param("empty", [], "/empty, which has no Python, but this ", id="no-python"),
        pytest.param("env", ["python", "pip"], "/env/bin/python -m pip install . (in a clone", id="has-pip"),
        pytest.param("env", ["python", "autogpu"], "/env/bin/autogpu install\n", id="has-autogpu"),
    ],
)
def test_error_has_a_remedy_for_the_active_environment(elsewhere, tmp_path, folder, programs, said):
    if programs is not None:
        (tmp_path / folder / "bin").mkdir(parents=True)
    for name in programs or ():
        (tmp_path / folder / "bin" / name).touch()
    refused = run(elsewhere, "-m", "autogpu", "install", VIRTUAL_ENV=str(tmp_path / folder))
    assert refused.returncode == 1
    assert said in refused.stderr


@pytest.mark.parametrize(
    ("environ", "base_prefix", "expected"),
    [
        pytest.param({}, "base", "", id="none-active"),
        pytest.param({"VIRTUAL_ENV": "env"}, "base", "", id="own-environment"),
        pytest.param({"VIRTUAL_ENV": "link"}, "base", "", id="own-environment-by-a-link"),
        pytest.param({"VIRTUAL_ENV": ""}, "base", "", id="empty-is-unset"),
        pytest.param({"VIRTUAL_ENV": "inner"}, "base", "VIRTUAL_ENV", id="environment-inside-own"),
        pytest.param({"VIRTUAL_ENV": "gone"}, "base", "VIRTUAL_ENV", id="gone"),
        pytest.param({"VIRTUAL_ENV": "inner", "CONDA_PREFIX": "env"}, "env", "VIRTUAL_ENV", id="venv-over-own-conda"),
        pytest.param({"VIRTUAL_ENV": "env", "CONDA_PREFIX": "base"}, "base", "", id="own-environment-over-conda"),
        pytest.param({"CONDA_PREFIX": "other"}, "env", "CONDA_PREFIX", id="other-conda"),
        pytest.param({"CONDA_PREFIX": "env"}, "env", "", id="own-conda"),
        pytest.param({"CONDA_PREFIX": "other"}, "base", "", id="own-environment-while-conda-is-active"),
    ],
)
def test_active_environment_that_is_not_the_one_of_this_python_is_found(tmp_path, environ, base_prefix, expected):
    for name in ("env", "base", "env/inner", "other"):
        (tmp_path / name).mkdir()
    (tmp_path / "link").symlink_to("env")
    folders = {"inner": tmp_path / "env" / "inner"}
    environ = {name: value and str(folders.get(value, tmp_path / value)) for name, value in environ.items()}
    found = active_elsewhere(environ, str(tmp_path / "env"), str(tmp_path / base_prefix))
    assert found == (ActiveEnvironment(expected, Path(environ[expected])) if expected else None)


def test_second_uninstall_has_nothing_to_do(tmp_path, capsys):
    assert frame.run(["install", "--target", str(tmp_path)]) == 0
    written = sorted(path for path in tmp_path.rglob("*") if path.is_file())
    capsys.readouterr()
    assert frame.run(["uninstall", "--target", str(tmp_path)]) == 0
    *removed, last = capsys.readouterr().out.splitlines()
    assert sorted(removed) == [f"removed {path}" for path in written]
    assert last == "From the next start on, Python no longer loads autogpu's hook."
    assert frame.run(["uninstall", "--target", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"autogpu has no start-up files in {tmp_path}; there is nothing to do.\n"


@pytest.mark.parametrize("before", ["", "/some/folder"], ids=["pythonpath-unset", "pythonpath-set"])
def test_install_target_prints_the_pythonpath_that_loads_the_hook(tmp_path, before):
    target = tmp_path / "my lib"
    target.mkdir()
    made = run(sys.executable, "-m", "autogpu", "install", "--target", target)
    assert "From now on" not in made.stdout
    (line,) = [line for line in made.stdout.splitlines() if "export PYTHONPATH=" in line]
    shown = f'{line}; "$0" -c "{LOOK}"; printf %s "$PYTHONPATH"'
    done = run("sh", "-c", shown, sys.executable, **({"PYTHONPATH": before} if before else {}))
    assert done.stdout == f"['{target}/sitecustomize.py']\n" + ":".join(filter(None, [str(target), before]))
