"""What a script says is in force, what it leaves unset is the policy's: every way to say it against every policy."""

from __future__ import annotations

import pytest

from tests.support.conflicts import Table, each_cell
from tests.support.versions import VERSIONS

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(900)]

NEWEST = VERSIONS[-1]


@pytest.fixture(scope="module")
def table(forks, tmp_path_factory):
    return Table(NEWEST, tmp_path_factory.mktemp("conflicts"), forks)


@pytest.mark.parametrize(("row", "policy"), each_cell())
def test_the_scripts_word_holds_and_the_policy_fills_the_rest(table, row, policy):
    complaint = table.complaint(row, policy)
    assert not complaint, complaint
