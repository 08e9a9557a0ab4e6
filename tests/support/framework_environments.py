"""Environments with the unmodified CUDA wheels of PyTorch, JAX and Keras 3, without the CUDA libraries beside them.

The nvidia-* wheels, several GB, stay out: the simulated server stands in for what is in them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Sequence

import pytest

from tests.gpusim import imports
from tests.support.environments import environment, interpreter, tensorflow


@dataclass(frozen=True)
class Release:
    """One PyTorch, whose plain wheel for Linux is the one with CUDA, or one JAX, from PyPI.

    Attributes:
        version: As an installer takes it.
        python: The Python that it is tested on.
        cuda: Of JAX, for which major version of CUDA its plugin is.
    """

    version: str
    python: str
    cuda: int = 12

    def __str__(self) -> str:
        return f"{self.version}-python{self.python}"


# The first is in every run. It is on a Python that TensorFlow and all libraries below have wheels for.
TORCHES = (Release("2.15.0", "3.12"), Release("2.15.0", "3.15"), Release("2.6.0", "3.11"))
JAXES = (
    *(Release("0.12.0.1", "3.12"), Release("0.12.0.1", "3.15")),
    *(Release("0.10.2", "3.14", cuda=13), Release("0.4.30", "3.10")),
)
# Each of the others is in one run of this many, because its installation takes a minute.
TURNS = 6
KERAS = "3.15.1"
TORCH_LIBRARIES = ("lightning==2.6.6", "torchmetrics==1.9.0", "accelerate==1.15.0", "transformers==5.23.0")
# The names of packages that Lightning had before, and an older Trainer; on the oldest PyTorch above.
OLD_TORCH_LIBRARIES = (
    *("pytorch-lightning==2.0.9.post0", "lightning-fabric==2.0.9.post0", "torchmetrics==1.2.1"),
    *("accelerate==0.30.1", "transformers==4.40.2"),
)
# What reads CUDA_VISIBLE_DEVICES to find a program's GPUs in NVML.
TORCH_MONITORS = ("nvitop==1.7.2", "codecarbon==3.3.2", "zeus==0.16.0", "deepspeed==0.19.8")
# What they import, since the installer has to leave out all that the wheels ask for: that has the nvidia-* wheels.
NEEDED_BY_TORCH = (
    *("filelock", "fsspec", "jinja2", "networkx", "numpy", "setuptools<82", "sympy", "typing_extensions"),
)
NEEDED_BY_TORCH_LIBRARIES = (
    *("huggingface_hub", "lightning_utilities", "packaging", "psutil", "pyyaml"),
    *("regex", "safetensors", "tokenizers", "tqdm"),
)
NEEDED_BY_OLD_TORCH_LIBRARIES = (
    *("huggingface_hub<0.30", "lightning_utilities", "numpy<2", "packaging", "psutil", "pyyaml"),
    *("regex", "requests", "safetensors", "tokenizers<0.20", "tqdm"),
)

NEEDED_BY_TORCH_MONITORS = (
    *("arrow", "click", "einops", "hjson", "httpx", "joblib", "msgpack", "packaging", "pandas"),
    *("prometheus_client", "psutil", "py-cpuinfo", "pydantic", "python-dateutil", "rapidfuzz", "requests"),
    *("rich", "tqdm"),
)


def torch(wanted: Release = TORCHES[0]) -> Path:
    """An environment with PyTorch and nothing of ours; made once, 1.5 GB.

    A server that is to carry it has to be started after this was called once: it is built for what this wants.
    """
    wheels = [f"torch=={wanted.version}"]
    python = environment(_interpreter(wanted), NEEDED_BY_TORCH, without_dependencies=wheels, with_autogpu=False)
    imports.record(python, "torch")
    return python


def torch_libraries_with_autogpu() -> Path:
    """Lightning, accelerate and transformers on the newest PyTorch, where a user has run ``autogpu install``."""
    return _libraries_with_autogpu(torch(), NEEDED_BY_TORCH_LIBRARIES, TORCH_LIBRARIES)


def old_torch_libraries_with_autogpu() -> Path:
    """Older versions of the same on an older PyTorch."""
    return _libraries_with_autogpu(torch(TORCHES[-1]), NEEDED_BY_OLD_TORCH_LIBRARIES, OLD_TORCH_LIBRARIES)


def _libraries_with_autogpu(base: Path, needed: Sequence[str], wheels: Sequence[str]) -> Path:
    libraries = environment(base.resolve(), needed, without_dependencies=wheels, with_autogpu=False, on_top_of=base)
    return with_autogpu(libraries, base)


def torch_monitors_with_autogpu() -> Path:
    """Libraries that monitor GPUs on the newest PyTorch, where a user has run ``autogpu install``; 160 MB."""
    base = torch()
    monitors = environment(
        base.resolve(),
        NEEDED_BY_TORCH_MONITORS,
        without_dependencies=TORCH_MONITORS,
        with_autogpu=False,
        on_top_of=base,
    )
    return with_autogpu(monitors, base)


def jax(wanted: Release = JAXES[0]) -> Path:
    """An environment with JAX and nothing of ours; made once, 1 GB."""
    # Only the plugin's extra "with-cuda" asks for nvidia-* wheels.
    names = ("jax", "jaxlib", f"jax-cuda{wanted.cuda}-plugin", f"jax-cuda{wanted.cuda}-pjrt")
    return environment(_interpreter(wanted), [f"{name}=={wanted.version}" for name in names], with_autogpu=False)


def keras_with_autogpu() -> Path:
    """Keras 3 and the newest of each framework under it, where a user has run ``autogpu install``."""
    frameworks, wheels = (tensorflow("2.21.*", TORCHES[0].python), torch(), jax()), [f"keras=={KERAS}"]
    keras = environment(_interpreter(TORCHES[0]), without_dependencies=wheels, with_autogpu=False, on_top_of=frameworks)
    return with_autogpu(keras, *frameworks)


def with_autogpu(*bases: Path) -> Path:
    """The same packages in an environment where a user has run ``autogpu install``.

    Args:
        bases: What is on top of an environment comes before it: it is not seen through it.
    """
    return environment(bases[-1].resolve(), on_top_of=bases, with_hook=True)


def each_other(releases: Sequence[Release]) -> list[Any]:
    """One parameter for each release but the first, each in one run of :data:`TURNS`."""
    return [
        pytest.param(
            release,
            id=str(release),
            marks=[
                pytest.mark.turns(TURNS, place),
                pytest.mark.skipif(interpreter(release.python) is None, reason=f"no Python {release.python} here"),
            ],
        )
        for place, release in enumerate(releases)
        if place
    ]


def _interpreter(release: Release) -> Path:
    found = interpreter(release.python)
    if found is None:
        raise RuntimeError(f"no Python {release.python} on this machine")
    return found
