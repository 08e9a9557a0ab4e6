"""Check that pytest obeys ``xdist_group``, which keeps tests that write to one place from running at once."""

import os

import pytest


@pytest.mark.skipif("PYTEST_XDIST_WORKER" not in os.environ, reason="tests run one after the other")
@pytest.mark.xdist_group("kept-apart")
def test_pytest_keeps_each_group_on_one_worker(request):
    why = "groups are ignored: start pytest with --dist loadgroup, as `make test` does, in a version that has them"
    assert request.node.nodeid.endswith("@kept-apart"), why
