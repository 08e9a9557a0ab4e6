"""``autogpu doctor`` asks the JAX of an environment, and judges the answer."""

from __future__ import annotations

from typing import Any, Mapping

from autogpu.doctor.model import Facts, Finding, failed, passed
from autogpu.reporting.text import printable

# JAX is not asked for its devices: it would make a context on each.
QUESTIONS = """
import pkgutil
found["plugins"] = []
try:
    import jax_plugins
    plugins = [name for _, name, _ in pkgutil.iter_modules(jax_plugins.__path__)]
    found["plugins"] = [name for name in plugins if name.startswith("xla_cuda")]
except ImportError:
    pass
found["uses_gpus"] = bool(found["plugins"])
"""


def judge(found: Mapping[str, Any], facts: Facts) -> Finding:
    """JAX has the plug-in by which it uses a GPU."""
    version = printable(found["version"])
    if found["plugins"]:
        return passed(f"JAX {version} with {printable(', '.join(found['plugins']))}")
    if not facts.inventory.devices:
        return passed(f"JAX {version} without a plug-in for CUDA, as there is no GPU")
    what = f"JAX {version} has no plug-in for CUDA and uses no GPU"
    return failed(what, facts.pip(f"install 'jax[cuda12]=={version}'"))
