"""``autogpu install`` from the built wheel, in real environments of every Python and of Debian's."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Iterator

import pytest

from tests.conftest import each_python
from tests.hook import throwaway
from tests.install.test_install import tree
from tests.support import environments

DEBIAN = Path("/usr/bin/python3")
TIMEOUT_S = 300
LOOK = (
    "import sys; print([f.__file__ for f in sys.meta_path if getattr(f, '__name__', '') == '_autogpu_hook'],"
    " sorted({'autogpu', 'tensorflow'} & set(sys.modules)))"
)


@dataclass(frozen=True)
class Env:
    """An environment with autogpu from the wheel and no start-up files.

    Attributes:
        pip: How to run pip for it; Debian's venvs come without.
    """

    python: Path
    pip: tuple
    debian: bool = False

    @property
    def site_packages(self) -> Path:
        return next((self.python.parent.parent / "lib").glob("python3*")) / "site-packages"

    def run(self, *arguments: str, status: int = 0, **environ: str) -> subprocess.CompletedProcess:
        return self._run([str(self.python), *arguments], status, environ)

    def autogpu(self, *arguments: str, status: int = 0) -> subprocess.CompletedProcess:
        # -B: what is compiled on the way is no start-up file, and would differ in the comparison of the trees.
        return self._run([str(self.python), "-B", "-m", "autogpu", *arguments], status, {})

    def run_pip(self, *arguments: str) -> str:
        return self._run([*self.pip, "--disable-pip-version-check", *arguments], 0, {}).stdout

    def hooks(self) -> str:
        """The hook that a fresh start has, and which modules that start should not have loaded."""
        started = self.run("-B", "-c", LOOK)
        assert started.stderr == ""
        return started.stdout.strip()

    @staticmethod
    def _run(command: list, status: int, environ: dict) -> subprocess.CompletedProcess:
        done = subprocess.run(
            command, env={**os.environ, **environ}, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
        assert done.returncode == status, f"{command}\n{done.stdout}\n{done.stderr}"
        return done


DEBIANS = pytest.param("debian", marks=pytest.mark.xdist_group("debian"))


@pytest.fixture(scope="session", params=[*each_python(), DEBIANS])
def env(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Env]:
    if request.param == "debian":
        yield _of_debian(tmp_path_factory.mktemp("debian") / "env")
        return
    # The dependencies stay in the cache; the wheel, which changes with each edit, is put into them here.
    requirements = ("click", "nvidia-ml-py", "rich", "tomli; python_version < '3.11'")
    python = environments.environment(
        environments.interpreter(request.param), requirements, with_autogpu=False, name="start-up files"
    )
    with (python.parent.parent / "in-use").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        made = Env(python, (str(python), "-m", "pip"))
        put_autogpu_in(made)
        made.autogpu("uninstall")
        yield made


def put_autogpu_in(env: Env) -> None:
    env.run_pip("install", "--quiet", "--no-deps", "--force-reinstall", str(environments.wheel()))


def _of_debian(folder: Path) -> Env:
    hidden = [path for path in Path("/usr/lib").glob("python3.*/sitecustomize.py") if path.exists()]
    if not DEBIAN.exists() or not hidden:
        pytest.skip("needs Debian's or Ubuntu's own Python, which has a sitecustomize")
    # Without pip, since Debian keeps ensurepip in a package of its own; the pip of the running Python serves.
    made = subprocess.run(
        [str(DEBIAN), "-m", "venv", "--without-pip", str(folder)], capture_output=True, timeout=TIMEOUT_S, check=False
    )
    if made.returncode:
        pytest.skip("Debian's Python has no venv module: apt-get install python3-venv")
    python = folder / "bin" / "python"
    env = Env(python, (sys.executable, "-m", "pip", "--python", str(python)), debian=True)
    env.run_pip("install", "--quiet", str(environments.wheel()))
    return env


def test_wheel_holds_the_start_up_files_and_switches_nothing_on_by_itself() -> None:
    with zipfile.ZipFile(str(environments.wheel())) as wheel:
        names = wheel.namelist()
        for name in ("_autogpu_hook.py", "autogpu.pth", "autogpu.start", "sitecustomize.py"):
            content = wheel.read(f"autogpu/sitecustomize_template/{name}")
            assert content == (throwaway.TEMPLATES / name).read_bytes()
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"autogpu"}


def test_install_proves_itself_changes_nothing_twice_and_is_undone(env: Env) -> None:
    before = tree(env.site_packages)
    hook = env.site_packages / "_autogpu_hook.py"
    said = env.autogpu("install").stdout
    assert f"wrote {hook}\n" in said
    assert f"wrote {env.site_packages / 'autogpu.pth'}\n" in said
    assert f" loads {hook}.\n" in said
    assert said.endswith("To undo: autogpu uninstall\n")
    assert env.hooks() == f"['{hook}'] []"
    installed = tree(env.site_packages)
    assert "Everything was in place" in env.autogpu("install").stdout
    assert tree(env.site_packages) == installed
    # Nothing was left for Python to compile: the same tree after a start that may write.
    env.run("-c", "pass")
    assert {name for name in tree(env.site_packages) if "hook" in name} == {n for n in installed if "hook" in n}
    removed = env.autogpu("uninstall").stdout
    assert f"removed {hook}\n" in removed
    assert tree(env.site_packages) == before
    assert "there is nothing to do" in env.autogpu("uninstall").stdout
    assert env.hooks() == "[] []"


def test_start_files_lie_beside_pth_and_every_method_is_undone(env: Env) -> None:
    before = tree(env.site_packages)
    for method in ("start", "pth") if env.debian else ("start", "sitecustomize", "pth"):
        done = json.loads(env.autogpu("install", "--method", method, "--json").stdout)
        assert done["method"] == method
        assert env.hooks() == f"['{env.site_packages / '_autogpu_hook.py'}'] []"
        names = {path.name for path in env.site_packages.iterdir()}
        expected = {"start": {"autogpu.start", "autogpu.pth"}, "pth": {"autogpu.pth"}}
        ours = {"autogpu.start", "autogpu.pth", "sitecustomize.py"}
        assert names & ours == expected.get(method, {"sitecustomize.py"})
    assert json.loads(env.autogpu("uninstall", "--json").stdout)["removed"]
    assert tree(env.site_packages) == before


def test_shadowed_sitecustomize_is_refused_by_name_and_taken_back(env: Env) -> None:
    if not env.debian:
        pytest.skip("only a distribution's Python has a sitecustomize of its own")
    before = tree(env.site_packages)
    said = env.autogpu("install", "--method", "sitecustomize", status=1)
    assert "/sitecustomize.py and so never " in said.stderr
    assert "/usr/lib/python3" in said.stderr
    assert "--method pth" in said.stderr.splitlines()[1]
    assert (said.stdout, tree(env.site_packages)) == ("", before)


def test_folder_on_pythonpath_gets_a_sitecustomize_that_chains(env: Env, tmp_path: Path) -> None:
    target = tmp_path / "lib"
    target.mkdir()
    said = env.autogpu("install", "--target", str(target)).stdout
    assert f"with {target} on PYTHONPATH loads {target / '_autogpu_hook.py'}." in said
    assert said.endswith(f"To undo: autogpu uninstall --target {target}\n")
    started = env.run(
        "-B",
        "-c",
        f"{LOOK}; print(getattr(sys.modules.get('sitecustomize'), '__file__', None))",
        PYTHONPATH=str(target),
    )
    loaded, sitecustomize = started.stdout.splitlines()
    assert loaded == f"['{target / '_autogpu_hook.py'}'] []"
    # Debian's own has run in our place; elsewhere ours stays alone.
    assert sitecustomize.startswith("/usr/lib" if env.debian else str(target))
    env.autogpu("uninstall", "--target", str(target))
    assert tree(target) == {}


def test_pip_knows_the_files_and_removes_them(env: Env) -> None:
    if env.debian:
        pytest.skip("has no pip of its own")
    before = tree(env.site_packages)
    env.autogpu("install")
    assert "autogpu-autoload" in env.run_pip("list")
    shown = env.run_pip("show", "-f", "autogpu-autoload")
    for name in ("_autogpu_hook.py", "__pycache__/_autogpu_hook.", "autogpu.pth"):
        assert f"  {name}" in shown
    env.run_pip("check")
    env.run_pip("uninstall", "--yes", "--quiet", "autogpu-autoload")
    after = tree(env.site_packages)
    # Whether pip removes a folder that it emptied is its own affair.
    assert {k: v for k, v in after.items() if k != "__pycache__"} == {
        k: v for k, v in before.items() if k != "__pycache__"
    }


def test_files_stay_silent_when_only_the_package_is_removed(env: Env, tmp_path: Path) -> None:
    if env.debian:
        pytest.skip("has no pip of its own")
    throwaway.write(tmp_path, {"tensorflow/__init__.py": "print('tensorflow')"})
    env.autogpu("install")
    try:
        env.run_pip("uninstall", "--yes", "--quiet", "autogpu")
        assert env.hooks() == f"['{env.site_packages / '_autogpu_hook.py'}'] []"
        imported = env.run("-c", "import tensorflow", PYTHONPATH=str(tmp_path))
        assert (imported.stdout, imported.stderr) == ("tensorflow\n", "")
        # And installing the package anew finds them in place.
        put_autogpu_in(env)
        assert "Everything was in place" in env.autogpu("install").stdout
    finally:
        put_autogpu_in(env)
        env.autogpu("uninstall")


def test_python_of_the_operating_system_is_known_as_managed(env: Env) -> None:
    if not env.debian:
        pytest.skip("needs Debian's own Python")
    code = "from autogpu.install import this_interpreter as i; print(i().externally_managed)"
    managed = subprocess.run(
        [str(DEBIAN), "-B", "-c", code],
        env={**os.environ, "PYTHONPATH": str(env.site_packages)},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert managed.stdout == f"{any(Path('/usr/lib').glob('python3*/EXTERNALLY-MANAGED'))}\n", managed.stderr
    assert env.run("-B", "-c", code).stdout == "False\n"
