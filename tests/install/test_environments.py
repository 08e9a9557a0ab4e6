"""``autogpu install`` from the built wheel, in real environments of every supported Python and of Debian's Python."""

from __future__ import annotations

import fcntl
import os
import re
import subprocess
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest
import uv

from tests.conftest import each_python
from tests.install.test_install import TEMPLATES, tree
from tests.support import environments

DEBIAN = Path("/usr/bin/python3")
TIMEOUT_S = 300
LOOK = (
    "import sys; print([f.__file__ for f in sys.meta_path if getattr(f, '__name__', '') == '_autogpu_hook'],"
    " sorted({'autogpu', 'tensorflow'} & set(sys.modules)))"
)

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Env:
    """A virtual environment with autogpu installed from the wheel."""

    python: Path
    site_packages: Path
    debian: bool

    def run(self, *arguments, status=0, **environ):
        # -B: Python writes no .pyc files, which would appear as differences between the trees.
        return ended([str(self.python), "-B", *arguments], status, **environ)

    def autogpu(self, *arguments, status=0):
        return self.run("-m", "autogpu", *arguments, status=status)

    def hooks(self):
        """Return the output of LOOK: the loaded hook, and the modules that a start of Python should not load."""
        started = self.run("-c", LOOK)
        assert started.stderr == ""
        return started.stdout.strip()


def ended(command, status=0, cwd=None, **environ):
    given = {**os.environ, **environ}
    done = subprocess.run(command, cwd=cwd, env=given, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == status, f"{command}\n{done.stdout}\n{done.stderr}"
    return done


DEBIANS = pytest.param("debian", marks=[pytest.mark.xdist_group("debian"), pytest.mark.thorough])


@pytest.fixture(scope="session", params=[*each_python(pytest.mark.thorough), DEBIANS])
def env(request):
    is_debian = request.param == "debian"
    if is_debian and not (DEBIAN.exists() and list(Path("/usr/lib").glob("python3.*/sitecustomize.py"))):
        pytest.skip("needs Debian's or Ubuntu's own Python, which has a sitecustomize")
    # The cached environment has only the dependencies, because the wheel changes with each edit.
    requirements = ("click", "nvidia-ml-py", "pip", "rich")
    base = DEBIAN if is_debian else environments.interpreter(request.param)
    python = environments.environment(base, requirements, with_autogpu=False, name="start-up files")
    made = Env(python, environments.site_packages(python), is_debian)
    with (python.parent.parent / "in-use").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        install = [uv.find_uv_bin(), "pip", "install", "--quiet", "--python", str(python), "--link-mode=copy"]
        ended([*install, "--no-deps", "--reinstall", str(environments.wheel())])
        made.autogpu("uninstall")
        yield made


def test_wheel_has_the_start_up_files_but_does_not_activate_them():
    with zipfile.ZipFile(str(environments.wheel())) as wheel:
        names = wheel.namelist()
        modules = ("_autogpu_hook.py", "_autogpu_steps.py", "run/sitecustomize.py")
        for name in (*modules, "autogpu.pth.txt", "autogpu.start.txt"):
            assert wheel.read(f"autogpu/sitecustomize_template/{name}") == (TEMPLATES / name).read_bytes()
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"autogpu"}
    # Python 3.10 and earlier lack tomllib, so the wheel has tomli and its license.
    assert {f"autogpu/_vendor/tomli/{name}" for name in ("__init__.py", "_parser.py", "LICENSE")} <= {*names}
    assert [name for name in names if name.endswith((".pth", ".start"))] == []


def test_install_is_idempotent_and_uninstall_undoes_it(env):
    before = tree(env.site_packages)
    hook = env.site_packages / "_autogpu_hook.py"
    said = env.autogpu("install").stdout
    assert f"wrote {hook}\n" in said
    assert f"wrote {env.site_packages / 'autogpu.pth'}\n" in said
    assert f" loads {hook}.\n" in said
    assert said.endswith(f"To undo: {env.python} -m autogpu uninstall\n")
    assert env.hooks() == f"['{hook}'] []"
    installed = tree(env.site_packages)
    assert "All start-up files were already in" in env.autogpu("install").stdout
    assert tree(env.site_packages) == installed
    # A start that may write .pyc files adds none for the hook, because install has compiled it.
    ended([str(env.python), "-c", "pass"])
    assert {name for name in tree(env.site_packages) if "hook" in name} == {n for n in installed if "hook" in n}
    assert f"removed {hook}\n" in env.autogpu("uninstall").stdout
    assert tree(env.site_packages) == before
    assert "there is nothing to do" in env.autogpu("uninstall").stdout
    assert env.hooks() == "[] []"


def test_hook_loads_beside_a_sitecustomize_of_the_environment(env):
    cache = env.site_packages / "__pycache__"
    had_cache = cache.exists()
    own = env.site_packages / "sitecustomize.py"
    own.write_text("import sys\n")
    try:
        env.autogpu("install")
        assert env.hooks() == f"['{env.site_packages / '_autogpu_hook.py'}'] []"
        env.autogpu("uninstall")
        assert (env.hooks(), own.read_text()) == ("[] []", "import sys\n")
    finally:
        for path in (own, *cache.glob("sitecustomize.*.pyc")):
            path.unlink()
        if cache.exists() and not had_cache:
            cache.rmdir()


def test_every_method_works_and_pip_can_undo_it(env):
    before = tree(env.site_packages)
    for method in ("pth",) if env.debian else ("sitecustomize", "pth"):
        env.autogpu("install", "--method", method)
        hook = {"pth": "_autogpu_hook.py", "sitecustomize": "sitecustomize.py"}[method]
        assert env.hooks() == f"['{env.site_packages / hook}'] []"
        names = {path.name for path in env.site_packages.iterdir()}
        starter = {"pth": "autogpu.pth", "sitecustomize": "sitecustomize.py"}[method]
        assert names & {"autogpu.start", "autogpu.pth", "sitecustomize.py"} == {starter}
    pip = ("-m", "pip", "--disable-pip-version-check")
    shown = env.run(*pip, "show", "-f", "autogpu-autoload").stdout
    for name in ("_autogpu_hook.py", "autogpu.pth"):
        assert f"  {name}" in shown
    env.run(*pip, "check")
    env.run(*pip, "uninstall", "--yes", "--quiet", "autogpu-autoload")
    left = {name for name, content in tree(env.site_packages).items() if before.get(name) != content}
    # pip may or may not remove a folder that it emptied.
    assert left <= {"__pycache__"}
    env.autogpu("install")
    assert "removed " in env.autogpu("uninstall").stdout
    assert tree(env.site_packages).keys() - {"__pycache__"} == before.keys() - {"__pycache__"}


def test_uv_run_with_an_additional_package_loads_the_hook(env):
    env.autogpu("install")
    uv_run = [uv.find_uv_bin(), "run", "--quiet", "--no-project", "--active", "--with", "six"]
    environ = {**environments.ENVIRON, "VIRTUAL_ENV": str(env.python.parent.parent)}
    started = ended([*uv_run, "python", "-c", f"{LOOK}; print(sys.prefix)"], **environ)
    hook, prefix = started.stdout.splitlines()
    assert hook == f"['{env.site_packages / '_autogpu_hook.py'}'] []"
    assert prefix != str(env.python.parent.parent)
    env.autogpu("uninstall")


@pytest.mark.parametrize("env", [DEBIANS], indirect=True)
def test_sitecustomize_behind_another_is_refused_and_removed(env):
    before = tree(env.site_packages)
    said = env.autogpu("install", "--method", "sitecustomize", status=1)
    assert re.search(r"did not load .*/sitecustomize.py: /usr/lib/python3.*/sitecustomize.py comes first", said.stderr)
    assert "leave out --method" in said.stderr.splitlines()[1]
    assert (said.stdout, tree(env.site_packages)) == ("", before)


def test_target_folder_gets_a_sitecustomize_that_runs_the_next_one(env, tmp_path):
    target = tmp_path / "my lib"
    target.mkdir()
    said = env.autogpu("install", "--target", str(target)).stdout
    assert f"with {target} on PYTHONPATH loads {target / 'sitecustomize.py'}." in said
    assert said.endswith(f"To undo: {env.python} -m autogpu uninstall --target '{target}'\n")
    look = f"{LOOK}; print(getattr(sys.modules.get('sitecustomize'), '__file__', None))"
    loaded, sitecustomize = env.run("-c", look, PYTHONPATH=str(target)).stdout.splitlines()
    assert loaded == f"['{target / 'sitecustomize.py'}'] []"
    # Our sitecustomize runs Debian's and is replaced by it in sys.modules. Other Pythons have only ours.
    assert sitecustomize.startswith("/usr/lib" if env.debian else str(target))
    env.autogpu("uninstall", "--target", str(target))
    assert tree(target) == {}
