"""The table of ``test_conflicts.py`` on every older TensorFlow."""

from __future__ import annotations

import pytest

from tests.frameworks.tensorflow.matrix.conftest import each_version
from tests.support.conflicts import Table, each_cell


@pytest.fixture(scope="module")
def table(version, forks, tmp_path_factory):
    return Table(version, tmp_path_factory.mktemp("conflicts"), forks)


# The newest version is in the ordinary suite.
@pytest.mark.parametrize("version", each_version()[:-1], indirect=True)
@pytest.mark.parametrize(("row", "policy"), each_cell())
def test_the_scripts_word_holds_and_the_policy_fills_the_rest(table, row, policy):
    complaint = table.complaint(row, policy)
    assert not complaint, complaint
