"""Fixtures: a simulated server, an environment with autogpu installed, and programs that hold GPUs."""

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

# For jobs of real TensorFlow that run on one server at the same time.
host, installed = jobs.host, jobs.installed


@pytest.fixture(scope="session")
def hooked():
    """Return the Python of an environment that has pip, the wheel and the hook, but no TensorFlow."""
    return environments.environment(environments.interpreter("3.11"), ["pip"], with_hook=True)


@pytest.fixture
def machine(tmp_path):
    with ExitStack() as servers:
        folders = map("machine{}".format, itertools.count())

        def started(*gpus, **faults):
            folder = tmp_path / next(folders)
            folder.mkdir()
            return servers.enter_context(Server(gpus, folder=folder, context=CONTEXT, **faults))

        yield started


@pytest.fixture
def commands(hooked, lease_folder):
    return lambda server: AutoGpu(server, hooked)


@pytest.fixture
def lab(machine, commands):
    return lambda *gpus, **faults: commands(machine(*gpus, **faults))


@pytest.fixture
def train(machine, lease_folder, tmp_path, forks):
    """Return a function that starts a server with the given GPUs, and returns a runner of TensorFlow scripts."""
    python = environments.tensorflow_with_autogpu()
    return lambda *gpus, **faults: Runner(python, machine(*gpus, **faults), tmp_path / "project", forks)


@pytest.fixture
def run_fresh(host, installed, tmp_path):
    """Return a function that runs a TensorFlow script in a new Python, on a server with the given GPUs.

    The function returns the script's stdout, autogpu's lines on stderr, and the GPUs with a context.
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
    """An environment that a test may break. It holds the wheel; the wheel's requirements are in another one."""

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


# autogpu does not support TensorFlow 9.0, so it only sets CUDA_VISIBLE_DEVICES when the script imports it.
@pytest.fixture
def stand_in(tmp_path):
    """Return a function that writes a script next to a one-line ``tensorflow``, and returns the script's path."""

    def written(script):
        folder = tmp_path / "scripts"
        (folder / "tensorflow").mkdir(parents=True)
        (folder / "tensorflow" / "__init__.py").write_text("__version__ = '9.0'\n")
        (folder / "train.py").write_text(textwrap.dedent(script))
        return str(folder / "train.py")

    return written
