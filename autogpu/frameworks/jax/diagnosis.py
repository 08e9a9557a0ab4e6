"""What ``autogpu doctor`` asks of the JAX of an environment, and how it judges the answer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Mapping

from autogpu.doctor.model import Finding, failed, not_applicable, passed
from autogpu.frameworks.diagnosis import hooks_finding
from autogpu.reporting.text import printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from autogpu.doctor.model import Surroundings

# Run by a fresh interpreter of the environment; prints null or an object as the last line. JAX is not asked for its
# devices: it would make a context on each.
PROGRAM = """
import importlib.util, json, pkgutil
found = None
if importlib.util.find_spec("jax"):
    found = {}
    try:
        import jax
        found["version"] = jax.__version__
        from autogpu.frameworks.jax import find_hooks
        hooks = find_hooks()
        found["missing"], found["obstacle"] = dict(hooks.missing), hooks.obstacle
        import jax_plugins
        found["plugins"] = [name for _, name, _ in pkgutil.iter_modules(jax_plugins.__path__)]
    except ImportError as error:
        if error.name != "jax_plugins":
            found["error"] = "%s: %s" % (type(error).__name__, error)
    except Exception as error:
        found["error"] = "%s: %s" % (type(error).__name__, error)
print()
print(json.dumps(found))
"""

ENVIRONMENT: Mapping[str, str] = {}


@dataclass(frozen=True)
class Jax:
    """The JAX of an environment.

    Attributes:
        plugins: The back-ends that are installed beside it, such as ``xla_cuda12``.
        missing: What autogpu hooks into and this version lacks, with what is not in force.
        obstacle: Why autogpu does not touch this version; empty if it does.
        error: Why it can't be imported; empty if it can.
    """

    version: str = "?"
    plugins: tuple[str, ...] = ()
    missing: Mapping[str, str] = field(default_factory=dict)
    obstacle: str = ""
    error: str = ""

    @property
    def cuda_plugins(self) -> list[str]:
        """Those of NVIDIA's GPUs."""
        return [name for name in self.plugins if name.startswith("xla_cuda")]


def examine(answer: Any, error: str, facts: Surroundings) -> tuple[Finding, ...]:
    """The findings about JAX; see :class:`autogpu.frameworks.base.Diagnosis`."""
    found = Jax(error=error) if error else Jax(**(answer or {}))
    hooks = not_applicable("jax-hooks", "nothing to hook into")
    if not found.error and found.cuda_plugins:
        hooks = hooks_finding("jax-hooks", "JAX", found.version, facts, obstacle=found.obstacle, missing=found.missing)
    return (_check_build(found, facts), hooks)


def _check_build(found: Jax, facts: Surroundings) -> Finding:
    version = printable(found.version)
    if found.error:
        return failed("jax", f"JAX can't be used: {printable(found.error)}", "repair JAX first")
    if found.cuda_plugins:
        return passed("jax", f"JAX {version} with {printable(', '.join(found.cuda_plugins))}")
    if not facts.inventory.devices:
        return passed("jax", f"JAX {version} without a plug-in for CUDA, as there is no GPU")
    what = f"JAX {version} has no plug-in for CUDA and uses no GPU"
    return failed("jax", what, f"{facts.executable} -m pip install 'jax[cuda12]=={version}'")
