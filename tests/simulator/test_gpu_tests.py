"""The tests for a real GPU (``tests/gpu``), run on the simulated server because a real GPU is seldom there."""

import sys

import pytest

from tests.gpusim import Gpu
from tests.support import framework_environments
from tests.support.environments import ROOT, environment

pytestmark = [pytest.mark.framework, pytest.mark.timeout(900)]


@pytest.mark.turns(2)
@pytest.mark.parametrize(("framework", "other"), [("torch", "jax"), ("jax", "torch")])
def test_tests_for_a_real_gpu_pass_on_the_simulated_server(server_of, tmp_path, framework, other):
    base = getattr(framework_environments, framework)()
    python = environment(base.resolve(), ["click", "nvidia-ml-py", "rich"], on_top_of=base, with_autogpu=False)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "gpu", "-k", f"not {other}"]
    done = server_of(Gpu(), Gpu(), device_nodes=True).run(
        [*command, "tests/gpu", f"--basetemp={tmp_path / 'inside'}"],
        environ={"AUTOGPU_TEST_PYTHON": str(python)},
        cwd=str(ROOT),
        timeout=800,
    )
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout
    assert f"has no {framework}" not in done.stdout
