"""The wheel of the start-up files under the real uv: kept if a lock names it, and removed whole."""

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
    """A folder with both wheels and all that they require, in place of a package index."""
    folder = tmp_path_factory.mktemp("index")
    pip = environments.environment(environments.interpreter(VERSION), ("pip",), with_autogpu=False)
    wheels = [str(environments.wheel(name)) for name in ("autogpu", "autogpu_autoload")]
    command = [str(pip), "-m", "pip", "download", "--quiet", "--dest", str(folder), *wheels]
    # With the settings of the machine, such as its mirror of a package index.
    subprocess.run(command, env=environments.ENVIRON, timeout=300, check=True)
    return folder


def files_of_ours(python):
    site_packages = environments.site_packages(python)
    places = (site_packages, site_packages / "__pycache__")
    return {path.name for place in places for path in place.glob("*") if path.name.startswith(OURS)}


def loads_the_hook(python):
    """Whether a start, which may compile, loads the hook that is in this environment, and is silent."""
    started = ended([str(python), "-c", LOOK])
    assert started.stderr == ""
    hook = environments.site_packages(python) / "_autogpu_hook.py"
    assert started.stdout in (f"['{hook}'] []\n", "[] []\n")
    return started.stdout != "[] []\n"


def test_uv_keeps_what_the_lock_names(index, tmp_path):
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
        f"autogpu: {tmp_path / 'uv.lock'} does not name autogpu-autoload, so `uv sync` will remove these files; "
        "to keep them: uv add autogpu autogpu-autoload (from a clone: uv add CLONE CLONE/sitecustomize_template)\n"
    )
    assert loads_the_hook(python)
    run("sync")
    assert not loads_the_hook(python)

    run("add", "autogpu-autoload")
    assert loads_the_hook(python)
    run("sync", "--locked")
    refused = ended([str(python), "-B", "-m", "autogpu", "uninstall"], 1).stderr
    assert refused.endswith(" belong to uv\nautogpu: upgrade or remove autogpu-autoload by what installed it\n")
    assert loads_the_hook(python)
    run("remove", "autogpu-autoload")
    assert not loads_the_hook(python)
    # uv leaves what a start has compiled of a module that is no package's; without its source no Python reads it.
    compiled = {f"{name}.{sys.implementation.cache_tag}.pyc" for name in ("_autogpu_hook", "_autogpu_steps")}
    assert files_of_ours(python) == compiled
    ended([str(python), "-m", "autogpu", "uninstall"])
    assert files_of_ours(python) == set()


def test_project_keeps_what_it_was_told_to_add_from_a_clone(tmp_path):
    (tmp_path / "pyproject.toml").write_text(
        f'[project]\nname = "lab"\nversion = "0"\nrequires-python = ">={VERSION}"\n'
    )
    python = tmp_path / ".venv" / "bin" / "python"

    def run(*command):
        # With the settings of the machine, such as its mirror of a package index.
        return ended([*map(str, command)], cwd=tmp_path, **environments.ENVIRON)

    run(UV, "sync", "--python", VERSION)
    run(UV, "pip", "install", "--python", python, environments.wheel())
    told = run(python, "-m", "autogpu", "install").stderr
    command = re.search(r"from a clone: (uv add [^)]*)\)", told)[1].replace("CLONE", str(environments.ROOT))
    run(UV, *command.split()[1:])
    run(UV, "sync", "--locked")
    assert loads_the_hook(python)
