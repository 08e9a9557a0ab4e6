"""What a process tells the others when it acquires GPUs."""

from __future__ import annotations

import pytest

from autogpu.acquire import script_name


@pytest.mark.parametrize(
    ("argv", "expected"),
    [(["/home/me/train.py", "--key", "secret"], "train.py"), (["-c"], "python"), ([], "python")],
)
def test_only_the_scripts_name_is_told(argv, expected):
    name = script_name(argv)
    # Where Python has no script its own name is told, such as python3.11.
    assert name == expected or (expected == "python" and name.startswith(expected))
