"""A script's settings take precedence and the policy sets the rest: each way to set something, with each policy."""

import functools

import pytest

from tests.frameworks.tensorflow.matrix.conftest import each_version
from tests.support.conflicts import Table, each_cell


# This fixture has no parameters, because pytest would set up the fixtures of the module again for each parameter.
@pytest.fixture(scope="module")
def tables(forks, tmp_path_factory):
    return functools.cache(lambda version: Table(version, tmp_path_factory.mktemp("conflicts"), forks))


@pytest.fixture
def table(tables, version):
    return tables(version)


@pytest.mark.parametrize("version", each_version(newest_is_whole=False), indirect=True)
@pytest.mark.parametrize(("row", "policy"), each_cell())
def test_script_settings_take_precedence_and_the_policy_sets_the_rest(table, row, policy):
    complaint = table.complaint(row, policy)
    assert not complaint, complaint
