"""Lists of GPUs in the policy that match none."""

from __future__ import annotations

import pytest

from autogpu import policy
from autogpu.devices.model import UnreadableDevice
from autogpu.selection.ranking import unmatched_lists
from tests.support.selections import UNSET
from tests.support.values import gpu, inventory

LOST = (UnreadableDevice(2, "lost"),)
NONE = "none of the GPUs here; there are the indices 0 to 1: NVIDIA TITAN RTX"
PART = 'none of the GPUs here; for a part of a name, write "*titan*"'
SOME = f"*A100*, 8-9 in select.devices (AUTOGPU_DEVICES) match {NONE}"


@pytest.mark.parametrize(
    ("devices", "exclude", "lost", "said"),
    [
        pytest.param(
            "7,*A100*", "", (), [f"select.devices = 7, *A100* (AUTOGPU_DEVICES) matches {NONE}"], id="devices"
        ),
        pytest.param("", "7", (), [f"select.exclude = 7 (AUTOGPU_EXCLUDE) matches {NONE}"], id="exclude"),
        pytest.param(
            "titan", "", (), [f"select.devices = titan (AUTOGPU_DEVICES) matches {PART}"], id="part-of-a-name"
        ),
        pytest.param("*A100*,1,8-9", "", (), [SOME], id="some-entries"),
        pytest.param("", "0,9", (), [f"9 in select.exclude (AUTOGPU_EXCLUDE) matches {NONE}"], id="one-entry"),
        pytest.param("0-1,*TITAN*", "0", (), [], id="all-match"),
        pytest.param("1,2", "", LOST, [], id="one-may-be-a-gpu-that-is-lost"),
        pytest.param(
            "8,9", "", LOST, [f"select.devices = 8, 9 (AUTOGPU_DEVICES) matches {NONE}"], id="beside-a-lost-one"
        ),
    ],
)
def test_what_matches_none_is_named_with_what_there_is(tmp_path, devices, exclude, lost, said):
    def found(*gpus):
        return unmatched_lists(resolved, inventory(*gpus, unreadable=lost), UNSET)

    environ = {"AUTOGPU_DEVICES": devices, "AUTOGPU_EXCLUDE": exclude}
    resolved = policy.resolve(environ, script=None, working_directory=tmp_path, system_file=tmp_path / "none")
    assert list(found(gpu(0), gpu(1)).values()) == said
    assert all(key in text for key, text in found(gpu(0), gpu(1)).items())
    assert found() == {}, "there is nothing to match"
