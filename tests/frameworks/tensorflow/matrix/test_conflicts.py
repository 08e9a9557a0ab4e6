"""What a script says is in force, what it leaves unset is the policy's: every way to say it against every policy."""

import functools

import pytest

from tests.frameworks.tensorflow.matrix.conftest import each_version
from tests.support.conflicts import Table, each_cell


# Not by parameters of pytest: it would set up the fixtures of a module anew for each of them.
@pytest.fixture(scope="module")
def tables(forks, tmp_path_factory):
    return functools.cache(lambda version: Table(version, tmp_path_factory.mktemp("conflicts"), forks))


@pytest.fixture
def table(tables, version):
    return tables(version)


@pytest.mark.parametrize("version", each_version(newest_is_whole=False), indirect=True)
@pytest.mark.parametrize(("row", "policy"), each_cell())
def test_the_scripts_word_holds_and_the_policy_fills_the_rest(table, row, policy):
    complaint = table.complaint(row, policy)
    assert not complaint, complaint
