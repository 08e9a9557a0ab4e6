"""What doctor says of each framework that is installed, and that it says nothing of the others."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autogpu.doctor.checks import examine
from autogpu.doctor.model import FindingState
from tests.doctor.conftest import NO_DRIVER, TENSORFLOW

TORCH = {"version": "2.15.0", "cuda": "13.2", "is_available": True, "gpus": 2, "missing": {}, "obstacle": ""}
JAX = {"version": "0.10.2", "plugins": ["xla_cuda12"], "missing": {}, "obstacle": ""}


@pytest.fixture
def found(healthy):
    """By name, the findings in an environment with these frameworks."""

    def found(answers, **changes):
        facts = replace(healthy, frameworks=answers, **changes)
        return {finding.name: finding for finding in examine(facts)}

    return found


def names_of(found):
    return [name for name in found if name in ("tensorflow", "torch", "jax", "hooks", "torch-hooks", "jax-hooks")]


@pytest.mark.parametrize(
    ("installed", "rows"),
    [
        (("torch",), ["torch", "torch-hooks"]),
        (("jax",), ["jax", "jax-hooks"]),
        (("torch", "jax"), ["torch", "torch-hooks", "jax", "jax-hooks"]),
        (("tensorflow",), ["tensorflow", "hooks"]),
        ((), ["tensorflow", "hooks"]),
    ],
    ids=lambda value: "-".join(value) or "none",
)
def test_only_what_is_installed_has_rows(found, installed, rows):
    answers = {"tensorflow": TENSORFLOW, "torch": TORCH, "jax": JAX}
    order = ("tensorflow", "torch", "jax")
    seen = found({name: answers[name] if name in installed else None for name in order})
    assert names_of(seen) == rows
    failed = {name for name in names_of(seen) if seen[name].state is FindingState.FAILED}
    assert failed == (set() if installed else {"tensorflow"})


@pytest.mark.parametrize(
    ("module", "changes", "row", "what", "remedy"),
    [
        ("torch", {"cuda": None}, "torch", "built without CUDA and uses no GPU", "pytorch.org"),
        ("torch", {"is_available": False, "gpus": 0}, "torch", "GPU of 2: is the driver too old for CUDA 13.2", "init"),
        ("torch", {"error": "ImportError: libc10"}, "torch", "can't be used: ImportError: libc10", "repair"),
        ("torch", {"obstacle": "built for ROCm"}, "torch", "built for ROCm", "HIP_VISIBLE_DEVICES"),
        ("torch", {"missing": {"torch._C.x": "limit"}}, "torch-hooks", "lacks torch._C.x: limit", "upgrade"),
        ("jax", {"plugins": []}, "jax", "no plug-in for CUDA and uses no GPU", "'jax[cuda12]==0.10.2'"),
        ("jax", {"error": "ImportError: jaxlib"}, "jax", "can't be used: ImportError: jaxlib", "repair"),
        ("jax", {"missing": {"xla_bridge.backends": "x"}}, "jax-hooks", "lacks xla_bridge.backends: x", "upgrade"),
    ],
)
def test_what_is_wrong_is_said_with_a_remedy(found, module, changes, row, what, remedy):
    finding = found({module: {**{"torch": TORCH, "jax": JAX}[module], **changes}})[row]
    assert finding.state is FindingState.FAILED
    assert what in finding.what
    assert remedy in finding.remedy


@pytest.mark.parametrize(
    ("module", "answer"),
    [("torch", {**TORCH, "cuda": None, "is_available": False, "gpus": 0}), ("jax", {**JAX, "plugins": []})],
)
def test_a_build_without_cuda_is_right_where_there_is_no_gpu(found, module, answer):
    seen = found({module: answer}, inventory=NO_DRIVER)
    assert seen[module].state is FindingState.PASSED
