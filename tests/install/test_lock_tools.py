"""The wheel of the start-up files with the real uv, which keeps it only if the lock file lists it."""

import re
import subprocess
import sys

import pytest
import uv

from tests.install.test_environments import LOOK, ended
from tests.support import environments

pytestmark = pytest.mark.thorough

OURS = ("_autogpu_hook", "_autogpu_steps", "autogpu.pth", "autogpu_autoload")
UV = uv.find_uv_bin()
VERSION = f"{sys.version_info[0]}.{sys.version_info[1]}"


@pytest.fixture(scope="session")
def index(tmp_path_factory):
    """Return a folder with both wheels and their dependencies. It replaces a package index."""
    folder = tmp_path_factory.mktemp("index")
    pip = environments.environment(environments.interpreter(VERSION), ("pip",), with_autogpu=False)
    wheels = [str(environments.wheel(name)) for name in ("autogpu", "autogpu_autoload")]
    command = [str(pip), "-m", "pip", "download", "--quiet", "--dest", str(folder), *wheels]
    # ENVIRON has the machine's settings, such as its mirror of the package index.
    subprocess.run(command, env=environments.ENVIRON, timeout=300, check=True)
    return folder


def files_of_ours(python):
    site_packages = environments.site_packages(python)
    places = (site_packages, site_packages / "__pycache__")
    return {path.name for place in places for path in place.glob("*") if path.name.startswith(OURS)}


def loads_the_hook(python):
    """True if a start of Python loads this environment's hook. The start may write ``.pyc`` files."""
    started = ended([str(python), "-c", LOOK])
    assert started.stderr == ""
    hook = environments.site_packages(python) / "_autogpu_hook.py"
    assert started.stdout in (f"['{hook}'] []\n", "[] []\n")
    return started.stdout != "[] []\n"


def test_uv_sync_keeps_the_files_only_if_the_lock_lists_them(index, tmp_path):
    (tmp_path / "pyproject.toml").write_text(
        f'[project]\nname = "lab"\nversion = "0"\nrequires-python = ">={VERSION}"\n'
        f'[tool.uv]\nno-index = true\nfind-links = ["{index}"]\n'
    )

    def run(*arguments):
        project = ("--quiet", "--project", str(tmp_path), "--python", VERSION)
        ended([UV, *arguments, *project])

    run("add", "autogpu")
    python = tmp_path / ".venv" / "bin" / "python"
    said = ended([str(python), "-m", "autogpu", "install"]).stderr
    assert said.endswith(
        f"autogpu: {tmp_path / 'uv.lock'} does not list autogpu-autoload, so `uv sync` will remove these files; "
        "to keep them: uv add autogpu autogpu-autoload (from a clone: uv add CLONE CLONE/sitecustomize_template)\n"
    )
    assert loads_the_hook(python)
    run("sync")
    assert not loads_the_hook(python)

    run("add", "autogpu-autoload")
    assert loads_the_hook(python)
    run("sync", "--locked")
    refused = ended([str(python), "-B", "-m", "autogpu", "uninstall"], 1).stderr
    assert refused.endswith(" belong to uv\nautogpu: upgrade or remove autogpu-autoload with uv\n")
    assert loads_the_hook(python)
    run("remove", "autogpu-autoload")
    assert not loads_the_hook(python)
    # uv leaves the .pyc files of top-level modules. Python ignores them if the source is gone.
    compiled = {f"{name}.{sys.implementation.cache_tag}.pyc" for name in ("_autogpu_hook", "_autogpu_steps")}
    assert files_of_ours(python) == compiled
    ended([str(python), "-m", "autogpu", "uninstall"])
    assert files_of_ours(python) == set()


def test_command_printed_for_a_clone_makes_uv_keep_the_files(tmp_path):
    (tmp_path / "pyproject.toml").write_text(
        f'[project]\nname = "lab"\nversion = "0"\nrequires-python = ">={VERSION}"\n'
    )
    python = tmp_path / ".venv" / "bin" / "python"

    def run(*command):
        # ENVIRON has the machine's settings, such as its mirror of the package index.
        return ended([*map(str, command)], cwd=tmp_path, **environments.ENVIRON)

    run(UV, "sync", "--python", VERSION)
    run(UV, "pip", "install", "--python", python, environments.wheel())
    told = run(python, "-m", "autogpu", "install").stderr
    command = re.search(r"from a clone: (uv add [^)]*)\)", told)[1].replace("CLONE", str(environments.ROOT))
    run(UV, *command.split()[1:])
    run(UV, "sync", "--locked")
    assert loads_the_hook(python)
