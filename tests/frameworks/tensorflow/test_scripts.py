"""The scripts that people have written since 2017 to choose a GPU and to limit memory, unchanged: what each is granted
without and with autogpu.
"""

from __future__ import annotations

import pytest

from tests.support.scriptcases import CASES, SCRIPTS, Laboratory, each_case, run_both_ways
from tests.support.versions import VERSIONS

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(900)]

NEWEST = VERSIONS[-1]


@pytest.fixture(scope="module")
def laboratory(forks, tmp_path_factory):
    made = Laboratory(NEWEST, tmp_path_factory.mktemp("laboratory"), forks)
    yield made
    made.close()


@pytest.mark.parametrize(("case", "machine"), each_case(NEWEST))
def test_a_script_runs_unchanged_and_its_word_holds(laboratory, case, machine):
    complaint = laboratory.complaint(case, machine)
    assert not complaint, complaint


@pytest.mark.parametrize("case", run_both_ways(NEWEST))
def test_a_forked_child_is_as_a_fresh_process(laboratory, case):
    forked, fresh = laboratory.run_both_ways(case)
    assert forked == fresh


def test_a_script_that_hangs_is_ended_and_the_next_one_runs(laboratory, tmp_path):
    hanging = tmp_path / "hanging.py"
    hanging.write_text("import signal\nsignal.pause()\n")
    host = laboratory.host("four-gpus", {})
    assert host.forked(hanging, timeout_s=1).error == "ended by SIGKILL"
    assert host.forked(SCRIPTS / "device_gpu_0.py").exit_status == 0


def test_every_script_has_a_case():
    assert {case.script for case in CASES} == {file.stem for file in SCRIPTS.glob("*.py")}
