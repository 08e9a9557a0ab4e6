"""What ``autogpu doctor`` asks of the TensorFlow of an environment, and how it judges the answer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Mapping

from autogpu.doctor.model import Finding, failed, not_applicable, passed
from autogpu.frameworks.diagnosis import hooks_finding
from autogpu.frameworks.tensorflow.settings import FORCE_GROWTH
from autogpu.reporting.text import counted, printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from autogpu.doctor.model import Surroundings

# Run by a fresh interpreter of the environment; prints null or an object as the last line.
PROGRAM = """
import importlib.util, json
found = None
if importlib.util.find_spec("tensorflow"):
    found = {}
    try:
        import tensorflow as tf
        found["version"] = tf.__version__
        found["has_cuda"] = bool(tf.test.is_built_with_cuda())
        found["has_rocm"] = bool(getattr(tf.test, "is_built_with_rocm", bool)())
        from autogpu.frameworks.tensorflow import find_hooks
        hooks = find_hooks()
        found["missing"] = dict(hooks.missing)
        found["gpus"] = len(tf.config.experimental.list_physical_devices("GPU"))
        try:
            from importlib import metadata  # not in Python 3.7
            metadata.version("tensorflow-cpu")
            found["is_cpu_package"] = True
        except ImportError:  # PackageNotFoundError is one
            pass
    except Exception as error:
        found["error"] = "%s: %s" % (type(error).__name__, error)
print()
print(json.dumps(found))
"""

# Its log is not what doctor shows.
ENVIRONMENT = {"TF_CPP_MIN_LOG_LEVEL": "3"}

_PIP_EXTRA = "'tensorflow[and-cuda]'"


@dataclass(frozen=True)
class TensorFlow:
    """The TensorFlow of an environment.

    Attributes:
        error: Why it can't be imported or asked; empty if it can.
        is_cpu_package: It was installed as ``tensorflow-cpu``.
        gpus: How many it lists; ``None`` where it could not be asked.
        missing: What autogpu hooks into and this version lacks, with what is not in force.
    """

    version: str = "?"
    error: str = ""
    has_cuda: bool = False
    has_rocm: bool = False
    is_cpu_package: bool = False
    gpus: int | None = None
    missing: Mapping[str, str] = field(default_factory=dict)


def examine(answer: Any, error: str, facts: Surroundings) -> tuple[Finding, ...]:
    """The findings about TensorFlow.

    Args:
        answer: What :data:`PROGRAM` printed; ``None`` where no TensorFlow is installed.
        error: Why it printed nothing; empty if it did.
        facts: About the machine.
    """
    found = TensorFlow(error=error) if error else None if answer is None else TensorFlow(**answer)
    return (
        _check_growth(facts),
        _check_build(found, facts),
        _check_libraries(found, facts),
        _check_hooks(found, facts),
    )


def _check_growth(facts: Surroundings) -> Finding:
    value = facts.environ.get(FORCE_GROWTH)
    if value is None:
        return not_applicable("growth", f"{FORCE_GROWTH} is not set")
    if value in ("true", "false"):
        return passed("growth", f"{FORCE_GROWTH}={value} overrides the policy's memory.growth")
    meant = "false" if value.strip().lower() in ("0", "false", "no", "off", "") else "true"
    what = f'{FORCE_GROWTH}="{printable(value)}" has no effect: TensorFlow accepts only "true" and "false"'
    return failed("growth", what, f"export {FORCE_GROWTH}={meant}")


def _check_build(found: TensorFlow | None, facts: Surroundings) -> Finding:
    install = f"{facts.executable} -m pip install {_PIP_EXTRA}"
    if found is None:
        what = f"no TensorFlow, PyTorch or JAX in this environment ({facts.executable})"
        return failed("tensorflow", what, install)
    if found.error:
        return failed("tensorflow", f"TensorFlow can't be used: {printable(found.error)}", "repair TensorFlow first")
    if found.has_rocm:
        what = f"TensorFlow {found.version} is built for AMD GPUs, and autogpu does nothing for it"
        return failed("tensorflow", what, "set HIP_VISIBLE_DEVICES to choose a GPU")
    if not found.has_cuda and facts.inventory.has_no_driver:
        return passed("tensorflow", f"TensorFlow {found.version}, built without CUDA, as there is no GPU")
    if not found.has_cuda:
        what = f"TensorFlow {found.version} is built without CUDA and uses no GPU"
        # Both packages write into one folder: the second over the first, and the first's removal takes that away.
        remove = f"{facts.executable} -m pip uninstall -y tensorflow-cpu && " if found.is_cpu_package else ""
        return failed("tensorflow", what, remove + install)
    return passed("tensorflow", f"TensorFlow {found.version}, built with CUDA")


def _check_libraries(found: TensorFlow | None, facts: Surroundings) -> Finding:
    if found is None or found.error or not found.has_cuda or not facts.inventory.devices:
        return not_applicable("libraries", "nothing to compare")
    if found.gpus or facts.hides_all_gpus:
        return passed("libraries", f"TensorFlow lists {counted(found.gpus or 0, 'GPU')}")
    count = len(facts.inventory.devices)
    what = f"TensorFlow {found.version} lists no GPU of {count}: it finds no CUDA libraries that fit"
    remedy = (
        f"{facts.executable} -m pip install 'tensorflow[and-cuda]=={found.version}'; "
        f"TF_CPP_MIN_LOG_LEVEL=0 {facts.executable} -c 'import tensorflow as tf; tf.config.list_physical_devices()' "
        "names the libraries that it looks for"
    )
    return failed("libraries", what, remedy)


def _check_hooks(found: TensorFlow | None, facts: Surroundings) -> Finding:
    if found is None or found.error or found.has_rocm:
        return not_applicable("hooks", "nothing to hook into")
    return hooks_finding("hooks", "TensorFlow", found.version, facts, missing=found.missing)
