"""A machine with an NVIDIA driver, and an environment there with PyTorch and JAX as users have them."""

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
    """Whether there are the driver's libraries, of a real one or of the simulated server."""
    try:
        ctypes.CDLL("libcuda.so.1")
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return False
    return True


def answer(*command: object, environ: dict[str, str] | None = None) -> str:
    """What a program prints that has to do well."""
    words = [str(word) for word in command]
    done = subprocess.run(words, env=environ, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


# Of the simulated server, which answers for a driver where there is none: how these tests themselves are tested.
SIMULATED = {name: value for name, value in os.environ.items() if name.startswith(("GPUSIM", "JAX_SKIP_CUDA"))}

needs_driver = pytest.mark.skipif(not has_driver(), reason="no NVIDIA driver on this machine")


@pytest.fixture(autouse=True)
def driver(clean_surroundings, monkeypatch):
    """Let the driver answer that is there."""
    for name, value in SIMULATED.items():
        monkeypatch.setenv(name, value)


@pytest.fixture(scope="session")
def python(tmp_path_factory):
    """An environment on top of that of ``PYTHON``, where a user of this checkout has run ``autogpu install``.

    Nothing is fetched: a machine with a GPU may not reach a package index.
    """
    folder = tmp_path_factory.mktemp("environment")
    ask = "import json, sys; print(json.dumps([sys._base_executable, *sys.path]))"
    real, *below = json.loads(answer(PYTHON, "-c", ask))
    answer(real, "-m", "venv", "--without-pip", folder)
    [packages] = folder.glob("lib/python*/site-packages")
    seen = [str(ROOT), *(path for path in below if path.endswith("-packages"))]
    # In front of the hook's own file, which takes for installed what Python has found by then.
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
