"""Unmodified scripts of PyTorch and JAX: the GPUs, memory and output of each, without and with autogpu."""

import pytest

from tests.frameworks.jax import cases as jax
from tests.frameworks.jax.scripts import SCRIPTS as JAX
from tests.frameworks.torch import cases as torch
from tests.frameworks.torch.scripts import SCRIPTS as TORCH
from tests.support.patterns import Laboratory, each_case

CASES = {"torch": torch.CASES, "jax": jax.CASES}
SCRIPTS = {"torch": TORCH, "jax": JAX}

pytestmark = [pytest.mark.framework, pytest.mark.timeout(900)]


def of_each(choose):
    """Return the parameters that ``choose`` makes from the cases of all frameworks, one xdist group per framework."""
    return [
        pytest.param(
            framework,
            *chosen.values,
            id=f"{framework}-{chosen.id}",
            marks=[pytest.mark.xdist_group(framework), *chosen.marks],
        )
        for framework, cases in CASES.items()
        for chosen in choose(cases)
    ]


def run_both_ways(cases):
    return [pytest.param(case, id=case.name) for case in cases if case.is_run_both_ways]


@pytest.fixture(scope="module")
def laboratories(newest, tmp_path_factory):
    made = {
        framework: Laboratory(each.python, SCRIPTS[framework], tmp_path_factory.mktemp("laboratory"), each.forks)
        for framework, each in newest.items()
    }
    yield made
    for each in made.values():
        each.close()


@pytest.mark.parametrize(("framework", "case", "machine"), of_each(each_case))
def test_unmodified_script_gets_the_expected_gpus_and_output(laboratories, framework, case, machine):
    complaint = laboratories[framework].complaint(case, machine)
    assert not complaint, complaint


@pytest.mark.parametrize(("framework", "case"), of_each(run_both_ways))
def test_forked_script_behaves_like_a_fresh_process(laboratories, framework, case):
    forked, fresh = laboratories[framework].run_both_ways(case)
    assert forked == fresh


@pytest.mark.parametrize("framework", CASES)
def test_every_script_has_a_case(framework):
    assert {case.script for case in CASES[framework]} == SCRIPTS[framework].keys()
