"""Tests of README.md: its commands typed into a terminal, in a new clone."""

import hashlib
import os
import re
import shutil
import subprocess

import pytest

from tests.gpusim import Server
from tests.gpusim.fleets import FLEETS
from tests.support import environments
from tests.support.environments import ROOT, files_of_the_project, site_packages
from tests.support.terminal import Terminal

README = (ROOT / "README.md").read_text(encoding="utf-8")

# Both limits are generous: TensorFlow is two gigabytes, and this machine may be busy.
SET_UP_S, RUN_S = 2400, 600

pytestmark = [pytest.mark.readme, pytest.mark.tensorflow, pytest.mark.timeout(4 * SET_UP_S)]


def blocks(section):
    """Yield the console blocks under a heading, each as its commands without comments and its lines of output."""
    part = re.split(rf"^##+ {re.escape(section)}$", README, flags=re.MULTILINE)[1]
    part = re.split(r"^##+ ", part, maxsplit=1, flags=re.MULTILINE)[0]
    for block in re.findall(r"^```console\n(.*?)^```$", part, re.MULTILINE | re.DOTALL):
        lines = block.splitlines()
        commands = [re.split(r"\s+# ", line[2:])[0] for line in lines if line.startswith("$ ")]
        yield commands, [line for line in lines if not line.startswith("$ ")]


def a_clone(folder):
    """Copy the project's files, with uncommitted changes, to ``folder``. Return ``folder``."""
    for name in files_of_the_project():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, folder / name)
    return folder


@pytest.fixture
def surroundings():
    """Return the environment of a person who has just logged in, without the variables that ``make`` sets."""
    own = ("MAKE", "MFLAGS", "VIRTUAL_ENV", "PYTEST", "AUTOGPU")
    environ = {name: value for name, value in os.environ.items() if not name.startswith(own)}
    # The cache of the tests has a TensorFlow, so these tests don't install two gigabytes.
    environ["AUTOGPU_TEST_CACHE"] = str(environments.CACHE)
    environ["PYTHON"] = str(environments.interpreter())
    return environ


def test_demo_shows_two_jobs_without_and_with_autogpu(tmp_path, surroundings):
    (commands, _), *_ = blocks("See it")
    folder = a_clone(tmp_path / "autogpu")
    surroundings["XDG_STATE_HOME"] = str(tmp_path / "state")
    with Terminal(folder, surroundings) as terminal:
        terminal.type("stty cols 80")
        shown = terminal.type(next(line for line in commands if line == "make demo"), SET_UP_S)
    assert shown.status == 0, shown.text
    # A terminal of 80 columns would break a longer line inside a word.
    below = shown.lines[shown.lines.index("What autogpu printed:") :]
    assert max(map(len, below)) <= 80, below
    words = " ".join(" ".join(below).split())
    assert "Without autogpu both jobs worked on GPU 0, where a colleague's job was running" in words
    assert "With it each job had a GPU to itself (GPUs 1 and 3), touched no other GPU" in words
    assert not (tmp_path / "state").exists(), "the person's own history has no simulated runs"


@pytest.fixture
def with_tensorflow(tmp_path):
    """Return the command that activates a new environment with TensorFlow and without autogpu."""
    base, folder = environments.tensorflow(), tmp_path / "env"
    # The environment has its own pip, because the commands of README need it.
    subprocess.run([str(base.resolve()), "-m", "venv", str(folder)], timeout=RUN_S, check=True)
    (site_packages(folder / "bin" / "python") / "tensorflow.pth").write_text(f"{site_packages(base)}\n")
    return f". {folder}/bin/activate"


def test_autogpu_is_installed_used_and_removed_as_readme_shows(tmp_path, surroundings, with_tensorflow):
    clone = a_clone(tmp_path / "autogpu")
    (install, _), (start, printed), *_ = blocks("Use it")
    assert (install[-1], start) == ("autogpu install", ["python train.py"])
    shutil.copy(ROOT / "demo" / "train.py", clone)
    (tmp_path / "server").mkdir()
    with Server(FLEETS["rtx-2080-ti"].gpus, folder=tmp_path / "server") as server, Terminal(
        clone, server.environ_of_child(surroundings)
    ) as terminal:

        def typed(line, timeout_s=RUN_S):
            shown = terminal.type(line, timeout_s)
            assert shown.status == 0, f"{line}: {shown.text}"
            return shown.lines

        typed(with_tensorflow)
        for line in install[:-1]:
            typed(line, SET_UP_S)
        before = files_in(tmp_path / "env")
        typed(install[-1])
        assert files_in(tmp_path / "env") != before
        assert said_by_autogpu(typed(start[0])) == printed
        page = typed("autogpu status")
        assert [line.split()[1] for line in page if line.startswith("GPU ")] in (["0-3"], ["0", "1", "2", "3"])
        typed("autogpu uninstall")
        assert files_in(tmp_path / "env") == before
        assert said_by_autogpu(typed(start[0])) == []


def said_by_autogpu(lines):
    return [line for line in lines if line.startswith("autogpu: ")]


def files_in(folder):
    """Return the SHA-256 of each file, keyed by relative path. Files in ``__pycache__`` are left out."""
    return {
        str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(folder.rglob("*"))
        if file.is_file() and "__pycache__" not in file.parts
    }
