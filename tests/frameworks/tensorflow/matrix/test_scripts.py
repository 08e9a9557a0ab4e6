"""Grants for unchanged scripts, as people have written them since 2017, without and with autogpu."""

import pytest

from tests.frameworks.tensorflow.cases import CASES, Laboratory, each_case, run_both_ways
from tests.frameworks.tensorflow.matrix.conftest import each_version
from tests.frameworks.tensorflow.scripts import SCRIPTS


# This fixture has no parameters, because pytest would set up the fixtures of the module again for each parameter.
@pytest.fixture(scope="module")
def laboratories(forks, tmp_path_factory):
    made = {}

    def of(version):
        if version not in made:
            made[version] = Laboratory(version, tmp_path_factory.mktemp("laboratory"), forks)
        return made[version]

    yield of
    for laboratory in made.values():
        laboratory.close()


@pytest.fixture
def laboratory(laboratories, version):
    return laboratories(version)


def each_version_with(cases):
    return [
        pytest.param(*version.values, *case.values, id=f"{version.id}-{case.id}", marks=version.marks)
        for version in each_version(newest_is_whole=False)
        for case in cases(version.values[0])
    ]


@pytest.mark.turns(3)
@pytest.mark.parametrize(("version", "case", "machine"), each_version_with(each_case), indirect=["version"])
def test_unchanged_script_is_granted_what_its_case_expects(laboratory, case, machine):
    complaint = laboratory.complaint(case, machine)
    assert not complaint, complaint


@pytest.mark.turns(9)
@pytest.mark.parametrize(("version", "case"), each_version_with(run_both_ways), indirect=["version"])
def test_script_in_a_forked_child_behaves_as_in_a_fresh_process(laboratory, case):
    forked, fresh = laboratory.run_both_ways(case)
    assert forked == fresh


def test_every_script_has_a_case():
    assert {case.script for case in CASES} == SCRIPTS.keys()
