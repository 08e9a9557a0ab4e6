"""``autogpu doctor`` asks the JAX of an environment, and judges the answer."""

from __future__ import annotations

from typing import Any, Mapping

from autogpu.doctor.model import Facts, Finding, failed, passed
from autogpu.frameworks.diagnosis import hooks, program
from autogpu.reporting.text import printable

# JAX is not asked for its devices: it would make a context on each.
PROGRAM = program(
    "jax",
    """
import pkgutil
found["plugins"] = []
try:
    import jax_plugins
    found["plugins"] = [name for _, name, _ in pkgutil.iter_modules(jax_plugins.__path__)]
except ImportError:
    pass
""",
)


def _plugins(found: Mapping[str, Any]) -> list[str]:
    return [name for name in found.get("plugins", ()) if name.startswith("xla_cuda")]


def _check_build(found: Mapping[str, Any], facts: Facts) -> Finding:
    version = printable(found["version"])
    if _plugins(found):
        return passed(f"JAX {version} with {printable(', '.join(_plugins(found)))}")
    if not facts.inventory.devices:
        return passed(f"JAX {version} without a plug-in for CUDA, as there is no GPU")
    what = f"JAX {version} has no plug-in for CUDA and uses no GPU"
    return failed(what, facts.pip(f"install 'jax[cuda12]=={version}'"))


CHECKS = {
    "jax": _check_build,
    "jax-hooks": lambda found, facts: hooks(found, facts, "JAX", is_used=_plugins(found)),
}
