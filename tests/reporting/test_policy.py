"""The sentences about lists of the policy that match no GPU."""

import pytest

from autogpu import policy
from autogpu.reporting.policy import unmatched
from tests.support.selections import UNSET
from tests.support.values import gpu, inventory, unreadable

NONE = "matches none of the GPUs here"
THERE_ARE = "this host has GPUs 0 to 1, named NVIDIA TITAN RTX"


@pytest.mark.parametrize(
    ("variable", "entries", "lost", "expected"),
    [
        ("DEVICES", "7,*A100*", (), f"select.devices = 7, *A100* (AUTOGPU_DEVICES) {NONE}; {THERE_ARE}"),
        ("EXCLUDE", "0,9", (), f"select.exclude = 9 (AUTOGPU_EXCLUDE) {NONE}; {THERE_ARE}"),
        (
            "DEVICES",
            "titan",
            (),
            f'select.devices = titan (AUTOGPU_DEVICES) {NONE}; for a part of a name, write "*titan*"',
        ),
        ("DEVICES", "2", unreadable(2), f"select.devices = 2 (AUTOGPU_DEVICES) {NONE}; GPU 2: lost"),
    ],
    ids=["devices", "one-entry-of-exclude", "part-of-a-name", "index-of-a-lost-gpu"],
)
def test_line_names_the_entries_that_match_no_gpu_and_adds_a_hint(tmp_path, variable, entries, lost, expected):
    environ = {f"AUTOGPU_{variable}": entries}
    resolved = policy.resolve(environ, script=None, working_directory=tmp_path, system_file=tmp_path / "none")
    assert list(unmatched(resolved, inventory(gpu(0), gpu(1), unreadable=lost), UNSET)) == [expected]
