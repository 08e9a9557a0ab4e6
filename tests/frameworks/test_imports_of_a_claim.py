"""A claim imports no module. If another thread forked a child during an import, the child would wait forever."""

import json

import pytest

from tests.support.framework_machines import FOUR

pytestmark = [pytest.mark.framework, pytest.mark.timeout(600)]

PROGRAM = """
import json, sys
{imports}
before = set(sys.modules)
{use}
print(json.dumps(sorted(set(sys.modules) - before)))
"""

USES = {
    "tensorflow": "tensorflow.zeros([1])",
    "torch": "torch.ones(3, device='cuda')",
    "jax": "jax.numpy.ones(3)",
}


@pytest.mark.parametrize("framework", USES)
def test_first_use_of_a_gpu_imports_no_additional_module(framework, on):
    machine = on(*FOUR)
    imports = "import jax, jax.numpy" if framework == "jax" else f"import {framework}"
    program = PROGRAM.format(imports=imports, use=USES[framework])
    plain, ours = (machine.run(program, fresh=True, **environ) for environ in ({"AUTOGPU": "0"}, {}))
    assert (plain.exit_status, ours.exit_status, len(ours.said)) == (0, 0, 1), ours.stderr
    assert set(json.loads(ours.stdout)) - set(json.loads(plain.stdout)) == set()
