"""A simulated server, an environment in which a user has run ``autogpu install``, and programs that hold GPUs."""

import itertools
import subprocess
import textwrap
import zipfile
from contextlib import ExitStack

import pytest

from tests.failure_modes.holding import AutoGpu
from tests.frameworks.tensorflow import conftest as jobs
from tests.gpusim import Server
from tests.support import environments
from tests.support.tensorflow_runner import CONTEXT, Runner

# Jobs of real TensorFlow that live side by side.
host, installed = jobs.host, jobs.installed


@pytest.fixture(scope="session")
def hooked():
    """The Python of an environment with pip, the wheel and the hook, and without TensorFlow."""
    return environments.environment(environments.interpreter("3.11"), ["pip"], with_hook=True)


@pytest.fixture
def machine(tmp_path):
    """Start a server of these GPUs."""
    with ExitStack() as servers:
        folders = map("machine{}".format, itertools.count())

        def started(*gpus, **faults):
            folder = tmp_path / next(folders)
            folder.mkdir()
            return servers.enter_context(Server(gpus, folder=folder, context=CONTEXT, **faults))

        yield started


@pytest.fixture
def commands(hooked, lease_folder):
    """The commands of autogpu on a server."""
    return lambda server: AutoGpu(server, hooked)


@pytest.fixture
def lab(machine, commands):
    """The commands of autogpu on a server of these GPUs."""
    return lambda *gpus, **faults: commands(machine(*gpus, **faults))


@pytest.fixture
def train(machine, lease_folder, tmp_path, forks):
    """Run scripts of real TensorFlow on a server of these GPUs."""
    python = environments.tensorflow_with_autogpu()
    return lambda *gpus, **faults: Runner(python, machine(*gpus, **faults), tmp_path / "project", forks)


@pytest.fixture
def run_fresh(host, installed, tmp_path):
    """Run a script of TensorFlow from the start of Python on a server of these GPUs.

    Returns:
        What it printed, the lines of autogpu, and the GPUs on which it has computed.
    """

    def run(script, *gpus, prefix=(), **environ):
        server = host(*gpus).server
        file = tmp_path / "train.py"
        file.write_text(script)
        environ = {"TF_CPP_MIN_LOG_LEVEL": "3", **environ}
        done = server.run([*prefix, str(installed), str(file)], environ=environ, timeout=300)
        assert done.returncode == 0, done.stderr
        said = [line for line in done.stderr.splitlines() if line.startswith("autogpu: ")]
        return done.stdout, said, {call.gpu for call in server.calls(call="context")}

    return run


class OwnEnvironment:
    """An environment of one test, which may break it: the wheel in a folder, and what it requires elsewhere."""

    def __init__(self, folder, requirements):
        subprocess.run(
            [str(requirements.resolve()), "-m", "venv", "--without-pip", str(folder)], check=True, timeout=120
        )
        self.python = folder / "bin" / "python"
        self.packages = environments.site_packages(self.python)
        with zipfile.ZipFile(environments.wheel()) as wheel:
            wheel.extractall(self.packages)
        (self.packages / "on_top_of.pth").write_text(f"{environments.site_packages(requirements)}\n")
        assert self.run("-m", "autogpu", "install").returncode == 0

    def run(self, *arguments):
        command = [str(self.python), "-B", *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture
def own_environment(tmp_path):
    wanted, python = ("click", "nvidia-ml-py", "pip", "rich"), environments.interpreter("3.11")
    requirements = environments.environment(python, wanted, with_autogpu=False, name="requirements")
    return OwnEnvironment(tmp_path / "environment", requirements)


# A framework that autogpu does not know: it gets its GPU at the import, by the environment.
@pytest.fixture
def stand_in(tmp_path):
    """Write a script beside a ``tensorflow`` of one line; returns the path of the script."""

    def written(script):
        folder = tmp_path / "scripts"
        (folder / "tensorflow").mkdir(parents=True)
        (folder / "tensorflow" / "__init__.py").write_text("__version__ = '9.0'\n")
        (folder / "train.py").write_text(textwrap.dedent(script))
        return str(folder / "train.py")

    return written
