"""autogpu keeps its hooks if a script reloads modules of JAX before it uses a GPU."""

import pytest

from tests.support.framework_machines import FOUR

pytestmark = [pytest.mark.framework, pytest.mark.timeout(600), pytest.mark.xdist_group("jax-reloaded")]

PROGRAMS = {
    "client-reloaded": "import importlib, jaxlib.xla_client\nimportlib.reload(jaxlib.xla_client)",
    "package-reloaded": "import importlib\nimportlib.reload(jax)",
    "client-imported-again": "import sys\ndel sys.modules['jaxlib.xla_client']\nimport jaxlib.xla_client",
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_reloaded_jax_gets_the_idlest_gpu(machine_of, program):
    script = f"import jax\n{PROGRAMS[program]}\nprint(len(jax.devices()))"
    ran = machine_of("jax", *FOUR).run(script, fresh=True)
    assert (ran.exit_status, ran.stdout, ran.contexts, len(ran.said)) == (0, "1\n", [3], 1), ran.stderr
