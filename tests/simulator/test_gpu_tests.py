"""The tests for a real GPU, run on the simulated server, so that they are known to work before there is one."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.gpusim import Gpu, Server
from tests.support import framework_environments
from tests.support.environments import environment

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [pytest.mark.framework, pytest.mark.timeout(900)]


def test_the_tests_for_a_real_gpu_pass_on_the_simulated_server(tmp_path):
    bases = [framework_environments.torch(), framework_environments.jax()]
    needs = ["click", "nvidia-ml-py", "rich"]
    both = environment(bases[0].resolve(), needs, on_top_of=bases, with_autogpu=False)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "gpu", "tests/gpu"]
    temporary = f"--basetemp={tmp_path / 'inside'}"
    with Server([Gpu(), Gpu()], folder=tmp_path, device_nodes=True) as server:
        done = server.run([*command, temporary], environ={"AUTOGPU_TEST_PYTHON": str(both)}, cwd=str(ROOT), timeout=800)
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout
    assert "skipped" not in done.stdout
