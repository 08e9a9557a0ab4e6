"""Environments with the unmodified CUDA wheels of PyTorch, JAX and Keras 3, but without the nvidia-* wheels.

The nvidia-* wheels with the CUDA libraries take several GB. The simulated server replaces these libraries.
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
    """A release of PyTorch or JAX on PyPI. PyTorch's plain wheel for Linux is the one with CUDA.

    Attributes:
        version: The version as in a requirement.
        python: Version of Python to test it on.
        cuda: Major version of CUDA for JAX's plugin.
    """

    version: str
    python: str
    cuda: int = 12

    def __str__(self) -> str:
        return f"{self.version}-python{self.python}"


# Every run tests the first release. TensorFlow and all libraries below have wheels for its Python.
TORCHES = (Release("2.15.0", "3.12"), Release("2.15.0", "3.15"), Release("2.6.0", "3.11"))
JAXES = (
    *(Release("0.12.0.1", "3.12"), Release("0.12.0.1", "3.15")),
    *(Release("0.10.2", "3.14", cuda=13), Release("0.4.30", "3.10")),
)
# Each other release is tested in one of this many runs, because its installation takes a minute.
TURNS = 6
KERAS = "3.15.1"
TORCH_LIBRARIES = ("lightning==2.6.6", "torchmetrics==1.9.0", "accelerate==1.15.0", "transformers==5.23.0")
# Lightning under its former package names, and transformers with an older Trainer; for the oldest PyTorch above.
OLD_TORCH_LIBRARIES = (
    *("pytorch-lightning==2.0.9.post0", "lightning-fabric==2.0.9.post0", "torchmetrics==1.2.1"),
    *("accelerate==0.30.1", "transformers==4.40.2"),
)
# Libraries that read CUDA_VISIBLE_DEVICES to find a program's GPUs in NVML.
TORCH_MONITORS = ("nvitop==1.7.2", "codecarbon==3.3.2", "zeus==0.16.0", "deepspeed==0.19.8")
# Dependencies, listed one by one. The wheels are installed without theirs, which include the nvidia-* wheels.
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
    """Return the Python of an environment with PyTorch and without autogpu; made once, 1.5 GB.

    Call this once before the start of a server for PyTorch: the server is built with the CUDA functions recorded here.
    """
    wheels = [f"torch=={wanted.version}"]
    python = environment(_interpreter(wanted), NEEDED_BY_TORCH, without_dependencies=wheels, with_autogpu=False)
    imports.record(python, "torch")
    return python


def torch_libraries_with_autogpu() -> Path:
    return _libraries_with_autogpu(torch(), NEEDED_BY_TORCH_LIBRARIES, TORCH_LIBRARIES)


def old_torch_libraries_with_autogpu() -> Path:
    return _libraries_with_autogpu(torch(TORCHES[-1]), NEEDED_BY_OLD_TORCH_LIBRARIES, OLD_TORCH_LIBRARIES)


def _libraries_with_autogpu(base: Path, needed: Sequence[str], wheels: Sequence[str]) -> Path:
    libraries = environment(base.resolve(), needed, without_dependencies=wheels, with_autogpu=False, on_top_of=base)
    return with_autogpu(libraries, base)


def torch_monitors_with_autogpu() -> Path:
    """Return the Python of an environment with ``TORCH_MONITORS``, the newest PyTorch and autogpu's hook; 160 MB."""
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
    """Return the Python of an environment with JAX and without autogpu; made once, 1 GB."""
    # Only the plugin's extra "with-cuda" requires nvidia-* wheels.
    names = ("jax", "jaxlib", f"jax-cuda{wanted.cuda}-plugin", f"jax-cuda{wanted.cuda}-pjrt")
    return environment(_interpreter(wanted), [f"{name}=={wanted.version}" for name in names], with_autogpu=False)


def keras_with_autogpu() -> Path:
    frameworks, wheels = (tensorflow("2.21.*", TORCHES[0].python), torch(), jax()), [f"keras=={KERAS}"]
    keras = environment(_interpreter(TORCHES[0]), without_dependencies=wheels, with_autogpu=False, on_top_of=frameworks)
    return with_autogpu(keras, *frameworks)


def with_autogpu(*bases: Path) -> Path:
    """Return the Python of an environment with the packages of ``bases``, and with autogpu and its hook.

    Args:
        bases: If one environment is on top of another, list both, the top one first: the packages of the lower one are
            not visible through the top one.
    """
    return environment(bases[-1].resolve(), on_top_of=bases, with_hook=True)


def each_other(releases: Sequence[Release]) -> list[Any]:
    """Return one parameter for each release except the first, each due in one of :data:`TURNS` runs."""
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
