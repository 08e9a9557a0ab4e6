"""The scripts of ``test_scripts.py`` on every older TensorFlow that they are for."""

from __future__ import annotations

import pytest

from tests.frameworks.tensorflow.matrix.conftest import each_version
from tests.support.scriptcases import Laboratory, each_case, run_both_ways


@pytest.fixture(scope="module")
def laboratory(version, forks, tmp_path_factory):
    made = Laboratory(version, tmp_path_factory.mktemp("laboratory"), forks)
    yield made
    made.close()


def each_version_with(cases):
    return [
        pytest.param(*version.values, *case.values, id=f"{version.id}-{case.id}", marks=version.marks)
        for version in each_version()[:-1]  # the newest is in the ordinary suite
        for case in cases(version.values[0])
    ]


@pytest.mark.parametrize(("version", "case", "machine"), each_version_with(each_case), indirect=["version"])
def test_a_script_runs_unchanged_and_its_word_holds(laboratory, case, machine):
    complaint = laboratory.complaint(case, machine)
    assert not complaint, complaint


@pytest.mark.parametrize(("version", "case"), each_version_with(run_both_ways), indirect=["version"])
def test_a_forked_child_is_as_a_fresh_process(laboratory, case):
    forked, fresh = laboratory.run_both_ways(case)
    assert forked == fresh
