"""An environment in which all is well, for tests that change one thing."""

from __future__ import annotations

from pathlib import Path

import pytest

from autogpu.devices.model import Inventory
from autogpu.doctor.model import Facts
from autogpu.install import FreshStart
from autogpu.lease import Folder
from autogpu.policy import resolve
from tests.support.values import gpu, inventory

HOOKED = {"missing": {}, "obstacle": ""}
TENSORFLOW = {"version": "2.21.0", "build": "built with CUDA", "gpus": 2, **HOOKED}
TORCH = {"version": "2.15.0", "build": "built for CUDA 13.2", "gpus": 2, **HOOKED}
JAX = {"version": "0.10.2", "build": "plug-in xla_cuda12", "gpus": None, **HOOKED}
NO_DRIVER = Inventory(failure="NVML reports: no library", failure_cause="no-driver")


def tensorflow(**changes):
    """What an environment's TensorFlow says of itself, for ``replace``."""
    return {"frameworks": {"tensorflow": {**TENSORFLOW, **changes}}}


def torch(**changes):
    return {"frameworks": {"torch": {**TORCH, **changes}}}


def jax(**changes):
    return {"frameworks": {"jax": {**JAX, **changes}}}


@pytest.fixture
def healthy(tmp_path):
    return Facts(
        environ={},
        executable="/env/bin/python",
        start=FreshStart(Path("/env/site-packages/_autogpu_hook.py"), None, ""),
        pythons={},
        inventory=inventory(gpu(0), gpu(1), driver_version="550.54.15"),
        cuda_count=2,
        cuda_error="",
        **tensorflow(),
        folder=Folder(Path("/run/autogpu"), "host", 0),
        folder_error=None,
        is_in_container=False,
        resolved=resolve({}, script=None, working_directory=tmp_path, system_file=tmp_path / "none"),
    )
