"""Lists of GPUs in the policy that match none."""

from __future__ import annotations

from pathlib import Path

import pytest

from autogpu import policy
from autogpu.devices.model import UnreadableDevice
from autogpu.selection.lists import unmatched_lists
from autogpu.selection.model import VisibleSpec
from tests.support.values import gpu, inventory

TWO = (gpu(0), gpu(1))


def said(tmp_path, devices=TWO, lost=(), **environ):
    resolved = policy.resolve(environ, script=None, working_directory=Path(tmp_path), system_file=tmp_path / "none")
    return unmatched_lists(resolved, inventory(*devices, unreadable=lost), VisibleSpec(None, "unset"))


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


def test_an_entry_that_matches_nothing_is_named_beside_one_that_does(tmp_path):
    there_are = "there are the indices 0 to 1: NVIDIA TITAN RTX"
    assert said(tmp_path, AUTOGPU_DEVICES="*A100*,1,8-9", AUTOGPU_EXCLUDE="0,9") == {
        "select.devices": "*A100*, 8-9 in select.devices (AUTOGPU_DEVICES) match none of the GPUs here; " + there_are,
        "select.exclude": "9 in select.exclude (AUTOGPU_EXCLUDE) matches none of the GPUs here; " + there_are,
    }
    assert said(tmp_path, AUTOGPU_DEVICES="0-1,*TITAN*", AUTOGPU_EXCLUDE="0") == {}


def test_an_entry_may_mean_a_gpu_that_is_lost(tmp_path):
    assert said(tmp_path, lost=(UnreadableDevice(2, "lost"),), AUTOGPU_DEVICES="1,2") == {}
    assert list(said(tmp_path, lost=(UnreadableDevice(2, "lost"),), AUTOGPU_DEVICES="8,9")) == ["select.devices"]


def test_a_machine_without_gpus_has_nothing_to_match(tmp_path):
    assert said(tmp_path, devices=(), AUTOGPU_DEVICES="*A100*") == {}
