"""Fixtures for tests on a real NVIDIA driver, with an environment that has PyTorch or JAX."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.gpu.jobs import Jobs, reading
from tests.support.framework_jobs import FRAMEWORKS

ROOT = Path(__file__).resolve().parents[2]

# The interpreter that has PyTorch, JAX or both.
PYTHON = os.environ.get("AUTOGPU_TEST_PYTHON", sys.executable)


def has_driver() -> bool:
    """True if the driver's libraries can be loaded. The simulated server's libraries count too."""
    try:
        ctypes.CDLL("libcuda.so.1")
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return False
    return True


def answer(*command: object, environ: dict[str, str] | None = None) -> str:
    """Run a command that must exit with 0. Return its standard output."""
    words = [str(word) for word in command]
    done = subprocess.run(words, env=environ, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


# Variables of the simulated server. It replaces the driver when these tests are themselves tested without a GPU.
SIMULATED = {name: value for name, value in os.environ.items() if name.startswith(("GPUSIM", "JAX_SKIP_CUDA"))}

needs_driver = pytest.mark.skipif(not has_driver(), reason="no NVIDIA driver on this machine")


@pytest.fixture(autouse=True)
def driver(clean_surroundings, monkeypatch):
    """Set the simulated server's variables again, which ``clean_surroundings`` removes."""
    for name, value in SIMULATED.items():
        monkeypatch.setenv(name, value)


@pytest.fixture(scope="session")
def python(tmp_path_factory):
    """Return the Python of a new environment with autogpu installed from this checkout and the packages of ``PYTHON``.

    Nothing is downloaded, because a machine with a GPU may not reach a package index.
    """
    folder = tmp_path_factory.mktemp("environment")
    ask = "import json, sys; print(json.dumps([sys._base_executable, *sys.path]))"
    real, *below = json.loads(answer(PYTHON, "-c", ask))
    answer(real, "-m", "venv", "--without-pip", folder)
    [packages] = folder.glob("lib/python*/site-packages")
    seen = [str(ROOT), *(path for path in below if path.endswith("-packages"))]
    # This name sorts before autogpu.pth, because the hook counts as installed only what is on sys.path when it starts.
    (packages / "_below.pth").write_text("\n".join(seen) + "\n")
    answer(folder / "bin" / "python", "-m", "autogpu", "install")
    return folder / "bin" / "python"


@pytest.fixture(scope="session")
def machine():
    return reading()


@pytest.fixture
def jobs(python, tmp_path):
    made = Jobs(python, tmp_path)
    yield made
    made.close()


@pytest.fixture(scope="session", params=FRAMEWORKS)
def framework(request):
    command = [PYTHON, "-c", f"import {request.param}"]
    if subprocess.run(command, stderr=subprocess.DEVNULL, timeout=240, check=False).returncode:
        pytest.skip(f"{PYTHON} has no {request.param}; AUTOGPU_TEST_PYTHON names one that has")
    return request.param
