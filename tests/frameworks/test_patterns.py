"""The scripts that people write with PyTorch and JAX, unchanged: what each is granted, and prints, without and with
autogpu.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.frameworks.jax.cases import CASES as JAX
from tests.frameworks.torch.cases import CASES as TORCH
from tests.support.forkserver import Forks
from tests.support.patterns import Laboratory, each_case

CASES = {"torch": TORCH, "jax": JAX}

pytestmark = [pytest.mark.framework, pytest.mark.timeout(900)]


def of_each(choose):
    """What ``choose`` makes of the cases of a framework, which share a laboratory."""
    return [
        pytest.param(framework, *chosen.values, id=f"{framework}-{chosen.id}", marks=pytest.mark.xdist_group(framework))
        for framework, cases in CASES.items()
        for chosen in choose(cases)
    ]


def run_both_ways(cases):
    return [pytest.param(case, id=case.name) for case in cases if case.is_run_both_ways]


def scripts(framework):
    return Path(__file__).resolve().parent / framework / "scripts"


@pytest.fixture(scope="module")
def laboratory(request, framework_pythons, tmp_path_factory):
    forks = Forks(tmp_path_factory.mktemp("forks"), request.param)
    folder = tmp_path_factory.mktemp("laboratory")
    made = Laboratory(framework_pythons[request.param], scripts(request.param), folder, forks)
    yield made
    made.close()
    forks.close()


@pytest.mark.parametrize(("laboratory", "case", "machine"), of_each(each_case), indirect=["laboratory"])
def test_a_script_runs_unchanged(laboratory, case, machine):
    complaint = laboratory.complaint(case, machine)
    assert not complaint, complaint


@pytest.mark.parametrize(("laboratory", "case"), of_each(run_both_ways), indirect=["laboratory"])
def test_a_forked_script_is_as_a_fresh_process(laboratory, case):
    forked, fresh = laboratory.run_both_ways(case)
    assert forked == fresh


@pytest.mark.parametrize("framework", CASES)
def test_every_script_has_a_case(framework):
    assert {case.script for case in CASES[framework]} == {file.stem for file in scripts(framework).glob("*.py")}
