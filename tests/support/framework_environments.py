"""Environments with the unmodified CUDA wheels of PyTorch, JAX and Keras 3, without the CUDA libraries beside them.

The nvidia-* wheels, several GB, stay out: the simulated server stands in for what is in them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tests.gpusim import imports
from tests.support.environments import environment, interpreter, tensorflow


@dataclass(frozen=True)
class Torch:
    """One PyTorch from PyPI, whose plain wheel for Linux is the one with CUDA.

    Attributes:
        version: As pip takes it after ``torch==``.
        python: The Python that it is tested on.
        requirements: What ``import torch`` needs, since pip has to leave out all that the wheel asks for.
    """

    version: str
    python: str
    requirements: tuple[str, ...] = (
        *("filelock", "fsspec", "jinja2", "networkx", "numpy", "setuptools<82", "sympy", "typing_extensions"),
    )


@dataclass(frozen=True)
class Jax:
    """One JAX from PyPI, with its plugin for one major version of CUDA.

    Attributes:
        version: As pip takes it after ``jax==``.
        python: The Python that it is tested on.
        cuda: Which of the plugins.
        requirements: What pip has to be told beside the wheel's own requirements.
    """

    version: str
    python: str
    cuda: int = 12
    requirements: tuple[str, ...] = ()


# The newest first.
TORCHES = (Torch("2.15.0", "3.12"), Torch("2.6.0", "3.11"))
JAXES = (Jax("0.12.0.1", "3.12"), Jax("0.10.2", "3.12", cuda=13), Jax("0.4.30", "3.10"))
KERAS = "3.15.1"
TORCH_LIBRARIES = ("lightning==2.6.6", "torchmetrics==1.9.0", "accelerate==1.15.0", "transformers==5.23.0")


def torch(wanted: Torch = TORCHES[0]) -> Path:
    """An environment with PyTorch and nothing of ours; made once, 1.5 GB.

    A server that is to carry it has to be started after this was called once: it is built for what this wants.
    """
    python = environment(
        _interpreter(wanted.python),
        wanted.requirements,
        without_dependencies=[f"torch=={wanted.version}"],
        with_autogpu=False,
    )
    imports.record(python, "torch")
    return python


def torch_libraries_with_autogpu() -> Path:
    """Lightning, accelerate and transformers on the newest PyTorch, where a user has run ``autogpu install``."""
    base = torch()
    libraries = environment(
        base.resolve(),
        (
            *("huggingface_hub", "lightning_utilities", "packaging", "psutil", "pyyaml"),
            *("regex", "safetensors", "tokenizers", "tqdm"),
        ),
        # They ask for PyTorch, with all that it asks for.
        without_dependencies=TORCH_LIBRARIES,
        with_autogpu=False,
        on_top_of=base,
    )
    # What is on top of an environment is not seen through it.
    return environment(base.resolve(), on_top_of=(libraries, base), with_hook=True)


def jax(wanted: Jax = JAXES[0]) -> Path:
    """An environment with JAX and nothing of ours; made once, 1 GB."""
    # Only the plugin's extra "with-cuda" asks for nvidia-* wheels.
    version = wanted.version
    wheels = (f"jax=={version}", f"jaxlib=={version}", f"jax-cuda{wanted.cuda}-plugin=={version}")
    return environment(
        _interpreter(wanted.python),
        (*wheels, f"jax-cuda{wanted.cuda}-pjrt=={version}", *wanted.requirements),
        with_autogpu=False,
    )


def keras() -> Path:
    """An environment with Keras 3, the newest of each framework under it, and nothing of ours; TensorFlow's is 2 GB."""
    bases = (tensorflow("2.21.*", TORCHES[0].python), torch(), jax())
    return environment(
        _interpreter(TORCHES[0].python),
        without_dependencies=[f"keras=={KERAS}"],
        with_autogpu=False,
        on_top_of=bases,
    )


def with_autogpu(base: Path) -> Path:
    """The same packages in an environment where a user has run ``autogpu install``.

    Args:
        base: What ``torch`` or ``jax`` gave.
    """
    return environment(base.resolve(), on_top_of=base, with_hook=True)


def keras_with_autogpu() -> Path:
    """Keras 3 and its frameworks in an environment where a user has run ``autogpu install``."""
    bases = (keras(), tensorflow("2.21.*", TORCHES[0].python), torch(), jax())
    # What is on top of an environment is not seen through it.
    return environment(_interpreter(TORCHES[0].python), on_top_of=bases, with_hook=True)


def _interpreter(version: str) -> Path:
    found = interpreter(version)
    if found is None:
        raise RuntimeError(f"no Python {version} on this machine")
    return found
