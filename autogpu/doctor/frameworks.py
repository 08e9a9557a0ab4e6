"""The questions of ``autogpu doctor`` to the frameworks of an environment, and the checks of their answers."""

from __future__ import annotations

from typing import Any, Mapping

from autogpu.doctor.model import Cause, Facts, Finding, failed, failed_or_slow, not_applicable, passed

# Python source, keyed by top-level module, that runs after the module's import. It sets ``found["build"]`` to the
# framework's build for GPUs, or to ``""`` if it has none, and ``found["gpus"]`` to the number of GPUs. It must not
# create a context on a GPU. JAX would create one to list its devices, so its number of GPUs is ``None``.
QUESTIONS = {
    "tensorflow": """
found["build"] = "built with CUDA" if tensorflow.test.is_built_with_cuda() else ""
found["gpus"] = len(tensorflow.config.experimental.list_physical_devices("GPU"))
""",
    "torch": """
found["build"] = "built for CUDA %s" % torch.version.cuda if torch.version.cuda else ""
found["gpus"] = torch.cuda.device_count() if torch.cuda.is_available() else 0
""",
    "jax": """
import pkgutil
found["build"], found["gpus"] = "", None
try:
    import jax_plugins
    plugins = [name for _, name, _ in pkgutil.iter_modules(jax_plugins.__path__)]
    found["build"] = ", ".join("plug-in %s" % name for name in plugins if name.startswith("xla_cuda"))
except ImportError:
    pass
""",
}


def check_framework(module: str, facts: Facts) -> dict[str, Finding]:
    """Return the findings about an installed framework, keyed by check."""
    answer = facts.answer_of(module)
    obstacle = answer.get("obstacle")
    if answer.get("error"):
        is_slow = facts.frameworks[module].timed_out
        return {module: failed_or_slow(Cause.FRAMEWORK_UNUSABLE, module, is_slow=is_slow)}
    if obstacle:
        cause = Cause.FRAMEWORK_BUILT_FOR_ROCM if "ROCm" in obstacle else Cause.FRAMEWORK_UNSUPPORTED
        return {module: failed(cause, module)}
    return {module: _check_build(module, answer, facts), f"{module}-hooks": _check_hooks(module, answer)}


def _check_build(module: str, answer: Mapping[str, Any], facts: Facts) -> Finding:
    has_gpus = bool(facts.inventory.devices)
    if not answer["build"] and not has_gpus:
        return passed(Cause.FRAMEWORK_WITHOUT_CUDA_OR_GPU, module)
    if not answer["build"]:
        return failed(Cause.FRAMEWORK_WITHOUT_CUDA, module)
    if has_gpus and answer["gpus"] == 0 and not facts.are_all_gpus_hidden:
        return failed(Cause.FRAMEWORK_FINDS_NO_GPU, module)
    return passed(Cause.FRAMEWORK_BUILT_FOR_CUDA, module)


def _check_hooks(module: str, answer: Mapping[str, Any]) -> Finding:
    if not answer["build"]:
        return not_applicable(Cause.FRAMEWORK_HOOKS_NEED_CUDA, module)
    if answer["missing"]:
        return failed(Cause.FRAMEWORK_HOOKS_MISSING, module)
    return passed(Cause.FRAMEWORK_HOOKS_FOUND, module)
