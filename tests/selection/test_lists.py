"""Lists of GPUs in the policy that match none."""

from __future__ import annotations

from pathlib import Path

import pytest

from autogpu import policy
from autogpu.selection.lists import unmatched_lists
from autogpu.selection.model import VisibleSpec
from tests.support.values import gpu

TWO = (gpu(0), gpu(1))


def said(tmp_path, devices=TWO, **environ):
    resolved = policy.resolve(environ, script=None, working_directory=Path(tmp_path), system_file=tmp_path / "none")
    return unmatched_lists(resolved, devices, VisibleSpec(None, "unset"))


@pytest.mark.parametrize("variable", ["AUTOGPU_DEVICES", "AUTOGPU_EXCLUDE"])
def test_a_list_that_matches_nothing_is_named_with_what_there_is(tmp_path, variable):
    key = "select.devices" if variable == "AUTOGPU_DEVICES" else "select.exclude"
    assert said(tmp_path, **{variable: "7,*A100*"}) == {
        key: f"{key} = 7, *A100* ({variable}) matches none of the GPUs here; "
        "there are the indices 0 to 1: NVIDIA TITAN RTX"
    }


def test_a_part_of_a_name_is_told_how_it_is_written(tmp_path):
    (text,) = said(tmp_path, AUTOGPU_DEVICES="titan").values()
    assert text.endswith('for a part of a name, write "*titan*"')


def test_one_entry_of_several_is_enough(tmp_path):
    assert said(tmp_path, AUTOGPU_DEVICES="*A100*,1", AUTOGPU_EXCLUDE="0,9") == {}


def test_a_machine_without_gpus_has_nothing_to_match(tmp_path):
    assert said(tmp_path, devices=(), AUTOGPU_DEVICES="*A100*") == {}
