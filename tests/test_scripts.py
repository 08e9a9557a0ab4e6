"""The scripts that people have written since 2017 to choose a GPU and to limit memory, unchanged: what each is granted
without and with autogpu.
"""

from __future__ import annotations

import pytest

from tests.scriptcases import CASES, SCRIPTS, Laboratory, each_case
from tests.versions import VERSIONS

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(900)]

NEWEST = VERSIONS[-1]


@pytest.fixture(scope="module")
def laboratory(tmp_path_factory):
    made = Laboratory(NEWEST, tmp_path_factory.mktemp("laboratory"))
    yield made
    made.close()


@pytest.mark.parametrize(("case", "machine"), each_case(NEWEST))
def test_a_script_runs_unchanged_and_its_word_holds(laboratory, case, machine):
    complaint = laboratory.complaint(case, machine)
    assert not complaint, complaint


@pytest.mark.parametrize("name", ["device_gpu_0", "limit_1024", "visible_list", "visible_after_import"])
def test_a_forked_child_is_as_a_fresh_process(laboratory, name):
    case = next(case for case in CASES if case.script == name)
    forked, fresh = laboratory.run_both_ways(case, "four-gpus")
    assert (forked.exit_status, forked.stdout, forked.said) == (fresh.exit_status, fresh.stdout, fresh.said)
    assert laboratory.granted(forked, "four-gpus") == laboratory.granted(fresh, "four-gpus") == case.four[1]


def test_a_script_that_hangs_is_ended_and_the_next_one_runs(laboratory, tmp_path):
    hanging = tmp_path / "hanging.py"
    hanging.write_text("import signal\nsignal.pause()\n")
    host = laboratory.host("four-gpus", {})
    assert host.forked(hanging, timeout_s=1).error == "ended by SIGKILL"
    assert host.forked(SCRIPTS / "device_gpu_0.py").exit_status == 0


def test_every_script_has_a_case():
    assert {case.script for case in CASES} == {file.stem for file in SCRIPTS.glob("*.py")}
