from datetime import date
from typing import Any

import pytest

from autogpu.policy import MemoryLimit
from autogpu.policy.kinds import Refused, brief
from autogpu.policy.model import BY_DOTTED, KEYS

GIB = 1024**3

# Valid values of a variable, a flag or a file and their meaning, keyed by policy key.
TEXTS: dict[str, dict[Any, object]] = {
    "select.count": {"ALL": "all", "2": 2},
    "select.need": {
        "6GiB": 6 * GIB,
        "6GiB\n": 6 * GIB,
        "512 MiB": 512 * 1024**2,
        "8GB": 8 * 10**9,  # decimal
        "8G": 8 * GIB,  # binary
        "8Gi": 8 * GIB,  # as Kubernetes writes it
        "8gib": 8 * GIB,
        "1.5GiB": 3 * GIB // 2,
        "1TiB": 1024 * GIB,
        "8589934592B": 8 * GIB,
        "": None,
        "none": None,
    },
    "memory.limit": {
        "8GiB": MemoryLimit(bytes=8 * GIB),
        "50%": MemoryLimit(percent=50),
        "33.3 %": MemoryLimit(percent=33.3),
        "100%": MemoryLimit(percent=100),
        "": None,
    },
    "select.wait": {
        "30m": 1800.0,
        "90s": 90.0,
        "2h": 7200.0,
        "1h30m": 5400.0,
        "1h 30m": 5400.0,
        "1d": 86400.0,
        "365d": 31536000.0,
        "0.5h": 1800.0,
        "2.3h": 8280.0,
        "10min": 600.0,
        "30 min": 1800.0,  # autogpu's own spelling
        "2 hours": 7200.0,
        "1 day 12 hours": 129600.0,
        "0": 0.0,
        "0.5": 0.5,
        90: 90.0,  # a number: possible in a file only
    },
    "select.devices": {"0, 2-3,*A100*": ("0", "2-3", "*A100*"), ",": (), "none": ()},
    "select.busy": {"Wait": "wait"},
    "report.level": {"Quiet": "quiet"},
    "memory.growth": {
        **dict.fromkeys(["1", "TRUE", "yes", "On"], True),
        **dict.fromkeys(["0", "False", "no", "OFF"], False),
    },
}

# Lists that a file may hold for `select.devices`, instead of a text with commas.
LISTS = [
    [0, "1"],
    ["0-3", "4-5"],
    ["GPU-5d0f", "MIG-GPU-5d0f/1/0"],
    ["*A100*", "Tesla T4"],
    ["0:1", "2:3"],
    ["1g.*", "1c.3g.20gb", "7g*", "1g.10gb+me"],
    [],
]


@pytest.mark.parametrize(
    ("dotted", "text", "value"), [(dotted, *case) for dotted, cases in TEXTS.items() for case in cases.items()]
)
def test_valid_text_of_a_key_is_read_as_its_value(dotted, text, value):
    assert BY_DOTTED[dotted].kind.read(text) == value


@pytest.mark.parametrize("entries", LISTS)
def test_file_may_hold_a_list_of_devices(entries):
    assert BY_DOTTED["select.devices"].kind.read(entries) == tuple(map(str, entries))


# Values without a sensible meaning, keyed by policy key: wrong type, not ASCII, no unit, out of range, endless.
REFUSED: dict[str, list[object]] = {
    "select.count": [True, 1.0, -1, 16**5000, "1,2", [1, 2]],
    "select.busy": [[2]],
    "select.devices": [0],
    "memory.virtual_gpus": [0],
    "memory.growth": [1],
    "select.need": [6, -1, 6.0, True, "8192", "0GiB", "9999999999TiB", "50%", "\u0666GiB", "9" * 9999 + "GiB"],
    "memory.limit": ["0%", "101%", 0.5, True],
    "select.wait": [-30, float("nan"), 10**5000, "366d", "-1m", "", "30m1h", "1 month", False],
}


@pytest.mark.parametrize(
    ("dotted", "value"),
    [
        pytest.param(key.dotted, value, id=f"{key.dotted}-{brief(value)[:20]}")
        for key in KEYS
        for value in (*REFUSED.get(key.dotted, ()), {"run": "code"})
    ],
)
def test_value_without_a_sensible_meaning_is_refused(dotted, value):
    with pytest.raises(Refused):
        BY_DOTTED[dotted].kind.read(value)


@pytest.mark.parametrize(
    "entry", ["3-0", "0,1", "A100,V100", "1 3", "0-1 3", "3090", "-1", -1, 1000, True, "", "A\x1b[2J", "A" * 129, ["0"]]
)
def test_device_entry_that_can_match_nothing_is_refused(entry):
    with pytest.raises(Refused) as refused:
        BY_DOTTED["select.exclude"].kind.read(["1", entry])
    assert refused.value.element == brief(entry)


def test_refused_value_is_described_in_a_few_words():
    told = {True: "true", 2: "2", 1.5: "1.5", "x": '"x"', date(2024, 5, 27): "a date or time"}
    told["A" * 61] = '"' + "A" * 60 + '..."'
    assert {value: brief(value) for value in told} == told
    assert [brief(value) for value in ([1], {"a": 1}, 16**5000)] == ["a list", "a table", "a number beyond 64 bits"]


def test_limit_is_never_more_than_the_memory_of_the_gpu():
    assert MemoryLimit(percent=25).of(24 * GIB) == 6 * GIB
    assert MemoryLimit(bytes=8 * GIB).of(24 * GIB) == 8 * GIB
    assert MemoryLimit(bytes=8 * GIB).of(4 * GIB) == 4 * GIB


@pytest.mark.parametrize(
    ("dotted", "value", "text"),
    [
        ("select.count", "all", '"all"'),
        ("select.need", 3 * GIB // 2, '"1536MiB"'),
        ("select.need", 8 * 10**9, '"8GB"'),
        ("select.need", 1048577, '"1048577B"'),
        ("select.need", 1024**5, '"1024TiB"'),
        ("select.devices", ("0", "*A100*"), '["0", "*A100*"]'),
        ("select.wait", 5400.0, '"1h30m"'),
        ("select.wait", 0.0, '"0"'),
        ("select.wait", 61.0, '"1m1s"'),
        ("select.wait", 86399.0, '"23h59m59s"'),
        ("select.wait", 90000.5, '"1d1h0.5s"'),
        ("memory.limit", MemoryLimit(percent=33.3), '"33.3%"'),
        ("memory.limit", None, '""'),
        ("memory.growth", False, "false"),
        ("locked", frozenset(["select.exclude", "enabled"]), '["enabled", "select.exclude"]'),
    ],
)
def test_values_are_written_as_toml_and_read_back(dotted, value, text):
    key = BY_DOTTED[dotted]
    assert key.written(value) == text
    assert key.kind.read(key.kind.plain(value)) == value
