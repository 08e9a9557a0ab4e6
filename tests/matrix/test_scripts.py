"""The scripts of ``tests/test_scripts.py`` on every older TensorFlow that they are for."""

from __future__ import annotations

import pytest

from tests.matrix.conftest import each_version
from tests.scriptcases import Laboratory, each_case


@pytest.fixture(scope="module")
def laboratory(version, tmp_path_factory):
    made = Laboratory(version, tmp_path_factory.mktemp("laboratory"))
    yield made
    made.close()


def each_version_and_case():
    return [
        pytest.param(*version.values, *case.values, id=f"{version.id}-{case.id}", marks=version.marks)
        for version in each_version()[:-1]  # the newest is in the ordinary suite
        for case in each_case(version.values[0])
    ]


@pytest.mark.parametrize(("version", "case", "machine"), each_version_and_case(), indirect=["version"])
def test_a_script_runs_unchanged_and_its_word_holds(laboratory, case, machine):
    complaint = laboratory.complaint(case, machine)
    assert not complaint, complaint
