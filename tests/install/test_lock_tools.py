"""The wheel of the start-up files under the real uv, pip-tools, pip and pipx: kept where named, and removed whole.

And ``autogpu install`` in the environments that uvx, uv and pipx make for a tool.
"""

import subprocess
import sys
from pathlib import Path

import pytest
import uv

from tests.install.test_environments import LOOK, ended
from tests.support import environments

pytestmark = pytest.mark.thorough

OURS = ("_autogpu_hook", "_autogpu_steps", "autogpu.pth", "autogpu.start", "autogpu_autoload")
UV = uv.find_uv_bin()
VERSION = f"{sys.version_info[0]}.{sys.version_info[1]}"


@pytest.fixture(scope="session")
def tools():
    """The folder of pip, pip-compile, pip-sync and pipx."""
    python = environments.interpreter(VERSION)
    return environments.environment(python, ("pip", "pip-tools", "pipx"), with_autogpu=False).parent


@pytest.fixture(scope="session")
def index(tools, tmp_path_factory):
    """A folder with both wheels, all that they require, and pip, which pipx renews; in place of a package index."""
    folder = tmp_path_factory.mktemp("index")
    wheels = [str(environments.wheel(name)) for name in ("autogpu", "autogpu_autoload")]
    command = [str(tools / "python"), "-m", "pip", "download", "--quiet", "--dest", str(folder), "pip", *wheels]
    # With the settings of the machine, such as its mirror of a package index.
    done = subprocess.run(command, env=environments.ENVIRON, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return folder


def virtual_environment(folder, index):
    python = folder / ".venv" / "bin" / "python"
    ended([UV, "venv", "--quiet", "--python", VERSION, str(folder / ".venv")])
    ended([UV, "pip", "install", "--quiet", "--python", str(python), "--no-index", "--find-links", str(index), "pip"])
    return python


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


def assert_left_to(owner, python):
    """``autogpu install`` finds all in place, ``uninstall`` names whose the files are, and both leave them."""
    before, command = files_of_ours(python), [str(python), "-B", "-m", "autogpu"]
    done = ended([*command, "install"]).stdout
    assert done.startswith("Everything was in place in ")
    assert done.endswith(f"\nTo undo: remove autogpu-autoload by what installed it ({owner})\n")
    refused = ended([*command, "uninstall"], 1).stderr
    assert refused.endswith(f" belong to {owner}\nautogpu: upgrade or remove autogpu-autoload by what installed it\n")
    # The start that proves it has compiled them.
    assert {name for name in files_of_ours(python) ^ before if not name.endswith(".pyc")} == set()
    assert loads_the_hook(python)


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
        f"autogpu: {tmp_path / 'uv.lock'} does not name these files, so `uv sync` will remove them; "
        "to keep them: uv add autogpu-autoload (from a clone: its folder sitecustomize_template)\n"
    )
    assert loads_the_hook(python)
    run("sync")
    assert not loads_the_hook(python)

    run("add", "autogpu-autoload")
    assert loads_the_hook(python)
    run("sync", "--locked")
    assert_left_to("uv", python)
    run("remove", "autogpu-autoload")
    assert not loads_the_hook(python)
    # uv leaves what a start has compiled of a module that is no package's; without its source no Python reads it.
    compiled = {f"{name}.{sys.implementation.cache_tag}.pyc" for name in ("_autogpu_hook", "_autogpu_steps")}
    assert files_of_ours(python) == compiled
    ended([str(python), "-m", "autogpu", "uninstall"])
    assert files_of_ours(python) == set()


def test_the_lock_of_a_project_whose_environment_is_elsewhere_is_named(index, tmp_path, monkeypatch):
    project, environment = tmp_path / "app", tmp_path / "venv"
    project.mkdir()
    (project / "pyproject.toml").write_text(
        f'[project]\nname = "app"\nversion = "0"\nrequires-python = ">={VERSION}"\ndependencies = ["autogpu"]\n'
        f'[tool.uv]\nno-index = true\nfind-links = ["{index}"]\n'
    )
    monkeypatch.chdir(project)
    monkeypatch.setenv("UV_PROJECT_ENVIRONMENT", str(environment))
    sync = [UV, "sync", "--quiet", "--python", VERSION]
    ended(sync)
    python = environment / "bin" / "python"
    said = ended([str(python), "-m", "autogpu", "install"]).stderr
    assert f"autogpu: {project / 'uv.lock'} does not name these files, so `uv sync` will remove them; " in said
    ended(sync)
    assert not loads_the_hook(python)


def test_pip_takes_over_what_install_wrote(index, tmp_path):
    python = virtual_environment(tmp_path, index)
    local = ("--quiet", "--no-index", "--find-links", str(index))

    def run(*arguments):
        return ended([str(python), "-m", *arguments]).stdout

    run("pip", "install", *local, "--no-compile", "autogpu")
    run("autogpu", "install")
    # The same version: pip has nothing to do, and the files stay whose they are.
    run("pip", "install", *local, "autogpu", "autogpu-autoload")
    assert "Everything was in place" in run("autogpu", "install")
    run("pip", "install", *local, "--force-reinstall", "--no-deps", "autogpu-autoload")
    assert_left_to("pip", python)
    run("pip", "check")
    run("pip", "uninstall", "--quiet", "--yes", "autogpu-autoload")
    assert files_of_ours(python) == set()


@pytest.mark.parametrize("tool", ["pip-tools", "uv"])
def test_pip_sync_keeps_what_the_lock_names(index, tools, tmp_path, monkeypatch, tool):
    """In an environment that is elsewhere, as conda's and pyenv's are, and in the one beside the lock."""
    project, local = tmp_path / "project", ("--quiet", "--no-index", "--find-links", str(index))
    python = virtual_environment(project if tool == "pip-tools" else tmp_path, index)
    project.mkdir(exist_ok=True)
    monkeypatch.chdir(project if tool == "uv" else tmp_path)
    source, lock = project / "requirements.in", project / "requirements.txt"
    compiling, sync = [UV, "pip", "compile", *local], [UV, "pip", "sync", *local, "--python", str(python), str(lock)]
    if tool == "pip-tools":
        compiling = [str(tools / "pip-compile"), *local, "--no-emit-find-links"]
        to_python = ("--pip-args=--no-compile", "--python-executable", str(python))
        sync = [str(tools / "pip-sync"), *local, *to_python, str(lock)]

    def compile_and_sync(*requirements):
        source.write_text("\n".join(requirements))
        ended([*compiling, "--output-file", str(lock), str(source)])
        ended(sync)

    compile_and_sync("autogpu")
    said = ended([str(python), "-m", "autogpu", "install"]).stderr
    assert f"autogpu: {lock} does not name these files, so `pip-sync` will remove them; " in said
    assert loads_the_hook(python)
    ended(sync)
    assert not loads_the_hook(python)

    compile_and_sync("autogpu", "autogpu-autoload")
    assert loads_the_hook(python)
    ended(sync)
    assert_left_to("pip" if tool == "pip-tools" else "uv", python)
    compile_and_sync("autogpu")
    assert not loads_the_hook(python)
    if tool == "pip-tools":
        assert files_of_ours(python) == set()


def test_pipx_injects_it_beside_an_application(index, tools, tmp_path):
    def pipx(*arguments):
        ended([str(tools / "pipx"), *arguments], PIPX_HOME=str(tmp_path / "pipx"), PIPX_BIN_DIR=str(tmp_path / "bin"))

    local = f"--pip-args=--no-compile --no-index --find-links {index}"
    pipx("install", local, "autogpu")
    pipx("inject", local, "autogpu", "autogpu-autoload")
    python = tmp_path / "pipx" / "venvs" / "autogpu" / "bin" / "python"
    assert_left_to("pip", python)
    pipx("uninject", "autogpu", "autogpu-autoload")
    assert not loads_the_hook(python)
    assert files_of_ours(python) == set()


# How a person comes to such an environment, and what is said of it.
UVX = ["uvx", "--quiet", "--python", VERSION, "--no-index", "--find-links", "{index}"]
PIPX = ["--pip-args=--no-index --find-links {index}", "autogpu"]
OF_TOOLS = {
    "uvx": [*UVX, "autogpu"],
    "uv-tool-install": ["uv", "tool", "install", *UVX[1:], "autogpu"],
    "pipx-run": ["pipx", "run", *PIPX],
    "pipx-install": ["pipx", "install", *PIPX],
}


@pytest.mark.parametrize("words", OF_TOOLS.values(), ids=list(OF_TOOLS))
def test_install_in_a_tools_environment_doubts_it_and_serves_the_one_that_is_named(index, tools, tmp_path, words):
    # Of the test alone: the hook would come into an environment that others share.
    folders = dict.fromkeys(("UV_TOOL_BIN_DIR", "PIPX_BIN_DIR"), str(tmp_path / "bin"))
    for name in ("UV_CACHE_DIR", "UV_TOOL_DIR", "PIPX_HOME"):
        folders[name] = str(tmp_path / "a tool" / name.lower())
    program = {"pipx": tools / "pipx", "uv": Path(UV), "uvx": Path(UV).with_name("uvx")}[words[0]]
    command = [str(program), *(word.format(index=index) for word in words[1:])]
    if "install" in words:
        ended(command, **folders)
        command = [str(tmp_path / "bin" / "autogpu")]

    installed = ended([*command, "install"], **folders)
    (said,) = (line for line in installed.stderr.splitlines() if line.startswith("autogpu: "))
    prefix, _, remedy = said[len("autogpu: ") :].partition(" has none of tensorflow, jax, torch; ")
    assert remedy == (
        "probably it is not the one that you mean; to serve another environment: autogpu install --python PATH"
    )
    assert prefix.startswith(str(tmp_path / "a tool"))
    assert f"wrote {prefix}/" in installed.stdout

    mine = virtual_environment(tmp_path / "mine", index)
    local = ("--no-index", "--find-links", str(index))
    ended([str(mine), "-m", "pip", "install", "--quiet", *local, "autogpu"])
    served = ended([*command, "install", "--python", str(mine)], **folders)
    assert prefix not in served.stderr
    assert loads_the_hook(mine)
