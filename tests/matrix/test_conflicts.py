"""The table of ``tests/test_conflicts.py`` on every older TensorFlow."""

from __future__ import annotations

import pytest

from tests.conflicts import Table, each_cell, wanted
from tests.matrix.conftest import each_version


@pytest.fixture(scope="module")
def table(version, request, tmp_path_factory):
    cells = wanted(request.session.items, request.module, version)
    running = Table(version, tmp_path_factory.mktemp("conflicts"), cells)
    yield running
    running.close()


# The newest version is in the ordinary suite.
@pytest.mark.parametrize("version", each_version()[:-1], indirect=True)
@pytest.mark.parametrize(("row", "policy"), each_cell())
def test_the_scripts_word_holds_and_the_policy_fills_the_rest(table, row, policy):
    complaint = table.complaint(row, policy)
    assert not complaint, complaint
