"""Tests that write into the same place are kept apart by their group; a pytest that ignores groups must not pass."""

import os

import pytest


@pytest.mark.skipif("PYTEST_XDIST_WORKER" not in os.environ, reason="tests run one after the other")
@pytest.mark.xdist_group("kept-apart")
def test_a_group_stays_on_one_worker(request):
    why = "groups are ignored: start pytest with --dist loadgroup, as `make test` does, in a version that has them"
    assert request.node.nodeid.endswith("@kept-apart"), why
