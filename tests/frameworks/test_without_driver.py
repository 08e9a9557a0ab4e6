"""Scripts on a machine without an NVIDIA driver, with lists and policies that the user brought from another machine."""

from __future__ import annotations

import pytest

from tests.support.framework_jobs import HOLD

pytestmark = [pytest.mark.framework, pytest.mark.timeout(600)]

BROUGHT = {
    "a-list": {"CUDA_VISIBLE_DEVICES": "0"},
    "a-list-and-busy-error": {"CUDA_VISIBLE_DEVICES": "1,2", "AUTOGPU_BUSY": "error"},
    "count-0": {"AUTOGPU_COUNT": "0"},
    "a-need-and-a-count": {"AUTOGPU_NEED": "100GiB", "AUTOGPU_COUNT": "2", "AUTOGPU_BUSY": "wait"},
}


@pytest.mark.parametrize("environ", BROUGHT.values(), ids=list(BROUGHT))
def test_script_without_a_driver_runs_on_the_cpu_without_a_line(framework, on, environ):
    ran = on().run(HOLD[framework], **environ)
    assert (ran.exit_status, ran.said, ran.contexts) == (0, [], []), ran.stderr
    assert ran.stdout.startswith("ready"), ran.stdout
