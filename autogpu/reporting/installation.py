"""Sentences about a failed installation, and commands and web pages for installing autogpu or a framework."""

from __future__ import annotations

import re
import shlex
from typing import Mapping, Sequence

from autogpu.frozen import Value
from autogpu.install import NAME, UNKNOWN_INSTALLER, InstallFault, InstallProblem, pip_command

TYPE_CHECKING = False
if TYPE_CHECKING:
    from autogpu.doctor.model import Facts


class CudaBuild(Value):
    """A package with which pip installs the GPU build of a framework.

    Attributes:
        since: The first version of the framework for which the package exists.
        requirement: Name of the package with its extra, without a version.
        has_libraries: True if pip installs the libraries of CUDA with it.
    """

    since: tuple[int, ...]
    requirement: str
    has_libraries: bool = True


# Packages keyed by module, the latest first. Source: PyPI's metadata of these versions. Since 2.1 the package
# ``tensorflow`` serves CPUs and GPUs. PyPI has no JAX for GPUs before 0.4.23.
_CUDA_BUILDS: Mapping[str, Sequence[CudaBuild]] = {
    "tensorflow": (
        CudaBuild((2, 14), "tensorflow[and-cuda]"),
        CudaBuild((2, 1), "tensorflow", has_libraries=False),
        CudaBuild((0,), "tensorflow-gpu", has_libraries=False),
    ),
    "jax": (CudaBuild((0, 4, 23), "jax[cuda12]"),),
}
_PAGES = {
    "tensorflow": "https://www.tensorflow.org/install/source#gpu lists the CUDA and cuDNN for each TensorFlow",
    "jax": "https://docs.jax.dev/en/latest/installation.html lists the wheels for each CUDA version",
    "torch": "https://pytorch.org/get-started/locally lists the wheels for each CUDA version",
}

# Commands that print on stderr why the framework finds no GPU. JAX needs none: the doctor does not count its GPUs.
_REASON_COMMANDS = {
    "tensorflow": "TF_CPP_MIN_LOG_LEVEL=0 {} -c "
    "'import tensorflow as tf; tf.config.experimental.list_physical_devices()'",
    "torch": "{} -c 'import torch; torch.cuda.init()'",
}

_OWN_ENVIRONMENT = "run this as the owner of the environment, or in one of your own: python3 -m venv .venv"

# Description and remedy of each fault.
_FAULTS = {
    InstallFault.NO_FOLDER: ("{path} is not a folder", "make it first: mkdir -p {quoted}"),
    InstallFault.NOT_WRITTEN: ("can't write {path}: {detail}", _OWN_ENVIRONMENT),
    InstallFault.NOT_REMOVED: ("can't remove {path}: {detail}", _OWN_ENVIRONMENT),
    InstallFault.OTHER_INSTALLER: (
        "the start-up files in {path} belong to {detail}",
        "upgrade or remove autogpu-autoload with {installer}",
    ),
    InstallFault.NOT_OURS: (
        "{path} exists and was not written by autogpu",
        "move it away, or choose another method with --method",
    ),
    InstallFault.NOT_LOADED: (
        f"a fresh {NAME} did not load {{path}}{{reason}}",
        "leave out --method, or remove the file that comes first; to find it: {executable} -v -c pass",
    ),
}


def install_problem(problem: InstallProblem) -> tuple[str, str]:
    """Return why the start-up files can't be installed or removed, and the remedy."""
    reason = problem.detail or (f"{problem.first} comes first" if problem.first else "")
    facts = {
        **vars(problem),
        "quoted": shlex.quote(str(problem.path)),
        "installer": "that installer" if problem.detail == UNKNOWN_INSTALLER else problem.detail,
        "reason": f": {reason}" if reason else "",
    }
    what, remedy = _FAULTS[problem.fault]
    return what.format(**facts), remedy.format(**facts)


def autogpu_from_a_clone(executable: str, *, has_pip: bool) -> str:
    """Return the command that installs autogpu itself, which no package index has yet."""
    return f"{pip_command(executable, 'install .', has_pip=has_pip)} (in a clone of autogpu)"


def framework_to_install(version: tuple[int, int]) -> str:
    """Return the package that ``doctor`` suggests for this Python version if no framework is installed.

    TensorFlow has wheels up to Python 3.14. Its extra ``and-cuda`` exists since 2.14, which needs Python 3.9.
    """
    if version > (3, 14):
        return "torch"
    return "'tensorflow[and-cuda]'" if version >= (3, 9) else "tensorflow"


def cuda_build(module: str, version: str, facts: Facts, *, lacks_libraries: bool) -> str:
    """Return the command or web page by which a user gets a build for CUDA, or the CUDA libraries for the build.

    Args:
        lacks_libraries: True if the installed build is for CUDA and finds no CUDA libraries.
    """
    # Package indexes don't have the builds of other vendors, such as NVIDIA's 1.15.5+nv22.10.
    public, _, _ = version.partition("+")
    numbers = tuple(map(int, re.findall(r"\d+", public)))
    build = next((build for build in _CUDA_BUILDS.get(module, ()) if build.since <= numbers), None)
    page = _PAGES[module]
    if build is None or (lacks_libraries and not build.has_libraries):
        return page
    install = facts.pip(f"install '{build.requirement}=={public}'")
    return install if build.has_libraries else f"{install}; {page}"


def reason_command(module: str, executable: str) -> str:
    """Return a command that prints on stderr why the framework finds no GPU."""
    return _REASON_COMMANDS[module].format(executable)
