"""Which environment ``autogpu install`` serves: doubts about this one, and another one by ``--python``."""

import os
import subprocess
import sys

import pytest

from autogpu.cli import main as frame
from tests.support import environments
from tests.support.environments import ROOT

LOOK = "import sys; print([f.__file__ for f in sys.meta_path if getattr(f, '__name__', '') == '_autogpu_hook'])"


def run(*command):
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=120, check=False, cwd=ROOT)


@pytest.fixture
def base():
    return environments.interpreter("3.11") or pytest.skip("no Python 3.11 on this machine")


@pytest.mark.slow
def test_another_environment_is_served_by_its_own_autogpu(base):
    other = environments.environment(base, name="install --python")
    hook = environments.site_packages(other) / "_autogpu_hook.py"
    made = run(sys.executable, "-m", "autogpu", "install", "--python", os.path.relpath(other, ROOT))
    assert made.returncode == 0, made.stderr
    assert f"A fresh python3.11 loads {hook}.\n" in made.stdout
    assert made.stdout.endswith(f"To undo: {other} -m autogpu uninstall\n")
    assert made.stderr == (
        f"autogpu: {other.parents[1]} has none of tensorflow, jax, torch; probably it is not the one that you mean; "
        "to serve another environment: autogpu install --python PATH\n"
    )
    assert run(other, "-c", LOOK).stdout == f"['{hook}']\n"
    undone = run(sys.executable, "-m", "autogpu", "uninstall", "--python", other)
    assert (undone.returncode, f"removed {hook}\n" in undone.stdout) == (0, True)
    assert run(other, "-c", LOOK).stdout == "[]\n"


@pytest.mark.slow
def test_environment_that_has_no_autogpu_is_told_how_to_get_it(base, capsys):
    other = environments.environment(base, with_autogpu=False)
    assert frame.run(["install", "--python", str(other)]) == 1
    assert capsys.readouterr().err.splitlines() == [
        f"autogpu: {other} can't import autogpu: ModuleNotFoundError: No module named 'autogpu'",
        "autogpu: install autogpu for that Python as it is for this one, or name another by --python",
    ]


# The empty one by uninstall: install would write into this environment where that is wrong.
@pytest.mark.parametrize(("verb", "python"), [("install", "/no/such/python"), ("uninstall", "")])
def test_python_that_is_none_is_named_and_is_not_this_one(capsys, verb, python):
    assert frame.run([verb, "--python", python]) == 1
    assert f"{python} can't import autogpu: it does not start: " in capsys.readouterr().err
