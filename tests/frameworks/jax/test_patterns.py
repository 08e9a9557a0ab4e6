"""The scripts that people write with JAX, unchanged: what each is granted, and prints, without and with autogpu."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.frameworks.jax.cases import CASES
from tests.support.forkserver import Forks
from tests.support.patterns import Laboratory, each_case

SCRIPTS = Path(__file__).resolve().parent / "scripts"
FRAMEWORK = "jax"

pytestmark = [pytest.mark.framework, pytest.mark.timeout(900), pytest.mark.xdist_group(FRAMEWORK)]


@pytest.fixture(scope="module")
def laboratory(framework_pythons, tmp_path_factory):
    forks = Forks(tmp_path_factory.mktemp("forks"), FRAMEWORK)
    made = Laboratory(framework_pythons[FRAMEWORK], SCRIPTS, tmp_path_factory.mktemp("laboratory"), forks)
    yield made
    made.close()
    forks.close()


@pytest.mark.parametrize(("case", "machine"), each_case(CASES))
def test_a_script_runs_unchanged(laboratory, case, machine):
    complaint = laboratory.complaint(case, machine)
    assert not complaint, complaint


@pytest.mark.parametrize("case", [each for each in CASES if each.is_run_both_ways], ids=lambda case: case.name)
def test_a_forked_script_is_as_a_fresh_process(laboratory, case):
    forked, fresh = laboratory.run_both_ways(case)
    assert forked == fresh


def test_every_script_has_a_case():
    assert {case.script for case in CASES} == {file.stem for file in SCRIPTS.glob("*.py")}
