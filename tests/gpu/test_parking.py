"""The driver of a real GPU moves the memory of a PyTorch or JAX job to the host and back."""

import json
import os
import subprocess
import sys

import pytest

from tests.gpu.conftest import PYTHON, ROOT, needs_driver
from tests.gpu.park import NOT_SUPPORTED

pytestmark = [pytest.mark.gpu, needs_driver, pytest.mark.timeout(150), pytest.mark.xdist_group("gpu")]

HELD_GIB = 4


def test_parked_job_gives_its_memory_back_and_computes_on(framework, record_property):
    command = [sys.executable, "-m", "tests.gpu.park", PYTHON, framework, str(HELD_GIB)]
    # Without this variable JAX allocates three quarters of the GPU at its first array.
    environ = {**os.environ, "AUTOGPU": "0", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    done = subprocess.run(command, env=environ, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode == NOT_SUPPORTED:
        pytest.skip(done.stdout.strip())
    assert done.returncode == 0, done.stderr
    rounds = json.loads(done.stdout)
    record_property("measured", in_words(rounds))
    for each in rounds:
        before, parked, after = each["mib"]
        assert each["codes"] == [0, 0, 0, 0]
        assert each["is_same"]
        assert before - parked >= HELD_GIB * 1024
        assert after - parked >= HELD_GIB * 1024


def in_words(rounds):
    """Return the seconds of the slowest round, and the MiB in use before, during and after the first parking."""
    park_s, restore_s = (max(each[key] for each in rounds) for key in ("park_s", "restore_s"))
    value = "same value" if all(each["is_same"] for each in rounds) else "ANOTHER VALUE"
    mib = " -> ".join(map(str, rounds[0]["mib"]))
    return f"{HELD_GIB} GiB: park {park_s:.2f} s, restore {restore_s:.2f} s, {value}, {mib} MiB in use"
