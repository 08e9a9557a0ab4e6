from __future__ import annotations

import pytest

from autogpu.policy import MemoryLimit
from autogpu.policy.kinds import Refused, brief, duration_text, size_text
from autogpu.policy.model import BY_DOTTED, KEYS

GIB = 1024**3


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        pytest.param("6GiB", 6 * GIB, id="GiB"),
        pytest.param("512 MiB", 512 * 1024**2, id="space-before-unit"),
        pytest.param("8GB", 8 * 10**9, id="GB-is-decimal"),
        pytest.param("8G", 8 * GIB, id="bare-G-is-binary"),
        pytest.param("8Gi", 8 * GIB, id="kubernetes"),
        pytest.param("8gib", 8 * GIB, id="lower-case"),
        pytest.param("1.5GiB", 3 * GIB // 2, id="fraction"),
        pytest.param("1TiB", 1024 * GIB, id="TiB"),
        pytest.param("1048576", 1024**2, id="bytes-from-1MiB"),
        pytest.param("8589934592B", 8 * GIB, id="B"),
        pytest.param("", None, id="empty-is-unknown"),
        pytest.param("none", None, id="none"),
    ],
)
def test_sizes_become_bytes(text, size_bytes):
    assert BY_DOTTED["select.need"].kind.from_text(text) == size_bytes


@pytest.mark.parametrize(
    ("value", "why"),
    [
        pytest.param(6, '6 would be bytes: give the unit, as in "6GiB"', id="bare-gigabytes"),
        pytest.param(8192, '8192 would be bytes: give the unit, as in "6GiB"', id="bare-megabytes"),
        pytest.param("8192", '8192 would be bytes: give the unit, as in "6GiB"', id="bare-in-quotes"),
        pytest.param(-1, '-1 would be bytes: give the unit, as in "6GiB"', id="negative"),
        pytest.param("0GiB", "sizes go from 1MiB to 1024TiB", id="zero"),
        pytest.param("9999999999TiB", "sizes go from 1MiB to 1024TiB", id="beyond-any-gpu"),
        pytest.param("6 apples", "", id="unknown-unit"),
        pytest.param("50%", "", id="need-has-no-percent"),
        pytest.param("\u0666GiB", "", id="other-digits"),
        pytest.param("6GiB\n", None, id="trailing-newline-is-trimmed"),
        pytest.param(6.0, "", id="float"),
        pytest.param(True, "", id="bool-is-no-number"),
        pytest.param("9" * 10000 + "GiB", "", id="endless-digits"),
        pytest.param(10**5000, "sizes go from 1MiB to 1024TiB", id="endless-number"),
    ],
)
def test_sizes_without_a_sensible_meaning_are_refused(value, why):
    kind = BY_DOTTED["select.need"].kind
    if why is None:
        assert kind.from_toml(value) == 6 * GIB
        return
    with pytest.raises(Refused) as refused:
        kind.from_toml(value)
    assert refused.value.why == why


@pytest.mark.parametrize(
    ("value", "limit"),
    [
        pytest.param("8GiB", MemoryLimit(bytes=8 * GIB), id="size"),
        pytest.param("50%", MemoryLimit(percent=50), id="percent"),
        pytest.param("33.3 %", MemoryLimit(percent=33.3), id="fraction-of-a-percent"),
        pytest.param("100%", MemoryLimit(percent=100), id="all"),
        pytest.param("1073741824", MemoryLimit(bytes=GIB), id="bytes-as-text"),
        pytest.param(GIB, MemoryLimit(bytes=GIB), id="bytes"),
        pytest.param("", None, id="empty-is-none"),
    ],
)
def test_limits_are_sizes_or_percentages(value, limit):
    assert BY_DOTTED["memory.limit"].kind.from_toml(value) == limit


@pytest.mark.parametrize(
    ("value", "why"),
    [
        pytest.param("0%", "a percentage is above 0 and up to 100", id="zero"),
        pytest.param("101%", "a percentage is above 0 and up to 100", id="beyond-100"),
        pytest.param(0.5, 'say "50%"', id="fraction-gets-the-right-spelling"),
        pytest.param(True, "", id="bool"),
    ],
)
def test_limits_out_of_range_are_refused(value, why):
    with pytest.raises(Refused) as refused:
        BY_DOTTED["memory.limit"].kind.from_toml(value)
    assert refused.value.why == why


def test_limit_of_a_gpu_is_never_more_than_the_gpu():
    assert MemoryLimit(percent=25).of(24 * GIB) == 6 * GIB
    assert MemoryLimit(bytes=8 * GIB).of(24 * GIB) == 8 * GIB
    assert MemoryLimit(bytes=8 * GIB).of(4 * GIB) == 4 * GIB


@pytest.mark.parametrize(
    ("value", "duration_s"),
    [
        pytest.param("30m", 1800.0, id="minutes"),
        pytest.param("90s", 90.0, id="seconds"),
        pytest.param("2h", 7200.0, id="hours"),
        pytest.param("1h30m", 5400.0, id="two-parts"),
        pytest.param("1h 30m", 5400.0, id="space-between"),
        pytest.param("1d", 86400.0, id="day"),
        pytest.param("0.5h", 1800.0, id="fraction"),
        pytest.param("10min", 600.0, id="min"),
        pytest.param("30 min", 1800.0, id="as-autogpu-writes-it"),
        pytest.param("2 hours", 7200.0, id="words"),
        pytest.param("1 day 12 hours", 129600.0, id="two-words"),
        pytest.param("0", 0.0, id="zero-text"),
        pytest.param(0, 0.0, id="zero"),
    ],
)
def test_durations_become_seconds(value, duration_s):
    assert BY_DOTTED["select.wait"].kind.from_toml(value) == duration_s


@pytest.mark.parametrize(
    ("value", "why"),
    [
        pytest.param("30", 'give the unit, as in "30m" or "30s"', id="no-unit"),
        pytest.param(30, 'give the unit, as in "30m" or "30s"', id="number"),
        pytest.param("366d", "at most 365d", id="beyond-a-year"),
        pytest.param("-1m", "", id="negative"),
        pytest.param("", "", id="empty"),
        pytest.param("30m1h", "", id="wrong-order"),
        pytest.param("1 month", "", id="no-such-unit"),
        pytest.param(False, "", id="bool"),
    ],
)
def test_durations_that_say_no_time_are_refused(value, why):
    with pytest.raises(Refused) as refused:
        BY_DOTTED["select.wait"].kind.from_toml(value)
    assert refused.value.why == why


@pytest.mark.parametrize(
    ("entries", "devices"),
    [
        pytest.param([0, "1"], ("0", "1"), id="indexes"),
        pytest.param(["0-3", "04 - 5"], ("0-3", "4-5"), id="ranges"),
        pytest.param(["GPU-5d0f", "MIG-GPU-5d0f/1/0"], ("GPU-5d0f", "MIG-GPU-5d0f/1/0"), id="uuid-prefixes"),
        pytest.param(["*A100*", "Tesla T4"], ("*A100*", "Tesla T4"), id="names"),
        pytest.param(["0:1", "02:03"], ("0:1", "2:3"), id="instances"),
        pytest.param(
            ["1g.*", "1c.3g.20gb", "7g*", "1g.10gb+me"], ("1g.*", "1c.3g.20gb", "7g*", "1g.10gb+me"), id="parts"
        ),
        pytest.param([], (), id="none"),
    ],
)
def test_devices_are_named_in_six_ways(entries, devices):
    assert BY_DOTTED["select.devices"].kind.from_toml(entries) == devices


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        pytest.param("3-0", "a range runs upwards", id="backwards"),
        pytest.param("0,1", "each GPU is an entry of its own", id="two-in-one"),
        pytest.param("3090", 'for a name, write "*3090*"', id="a-card-s-number"),
        pytest.param("GPU-xyz", "a UUID has only hexadecimal digits and dashes", id="no-uuid"),
        pytest.param("-1", "", id="negative-text"),
        pytest.param(-1, "", id="negative"),
        pytest.param(True, "", id="bool"),
        pytest.param("", "", id="empty"),
        pytest.param("A\x1b[2J", "", id="control-characters"),
        pytest.param("A" * 129, "", id="too-long"),
        pytest.param(["0"], "", id="list-in-list"),
    ],
)
def test_a_device_that_names_nothing_is_refused(entry, why):
    with pytest.raises(Refused) as refused:
        BY_DOTTED["select.exclude"].kind.from_toml(["1", entry])
    assert (refused.value.why, refused.value.element) == (why, brief(entry))


@pytest.mark.parametrize(
    ("text", "devices"),
    [
        pytest.param("0, 2-3,*A100*", ("0", "2-3", "*A100*"), id="commas"),
        pytest.param(",", (), id="comma-alone-is-empty"),
        pytest.param("none", (), id="none"),
    ],
)
def test_lists_in_the_environment_are_comma_separated(text, devices):
    assert BY_DOTTED["select.devices"].kind.from_text(text) == devices


@pytest.mark.parametrize(
    ("dotted", "value", "text"),
    [
        ("select.count", "all", '"all"'),
        ("select.need", 3 * GIB // 2, '"1536MiB"'),
        ("select.need", 8 * 10**9, '"8GB"'),
        ("select.need", 1048577, '"1048577B"'),
        ("select.devices", ("0", "*A100*"), '["0", "*A100*"]'),
        ("select.wait", 5400.0, '"1h30m"'),
        ("select.wait", 0.0, '"0"'),
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
    assert key.kind.from_toml(key.kind.plain(value)) == value


@pytest.mark.parametrize("size_bytes", [1024**2, 10**9, 24 * GIB, 1024**5, 123456789])
def test_size_text_is_exact(size_bytes):
    assert BY_DOTTED["select.need"].kind.from_text(size_text(size_bytes)) == size_bytes


@pytest.mark.parametrize("duration_s", [0.0, 0.5, 59.0, 61.0, 3600.0, 86399.0, 365 * 86400.0])
def test_duration_text_is_exact(duration_s):
    assert BY_DOTTED["select.wait"].kind.from_text(duration_text(duration_s)) == duration_s


@pytest.mark.parametrize("text", ["1", "TRUE", "yes", "On"])
def test_words_for_yes(text):
    assert BY_DOTTED["memory.growth"].kind.from_text(text) is True


@pytest.mark.parametrize("text", ["0", "False", "no", "OFF"])
def test_words_for_no(text):
    assert BY_DOTTED["memory.growth"].kind.from_text(text) is False


@pytest.mark.parametrize("key", KEYS, ids=lambda key: key.dotted)
def test_no_key_takes_a_table(key):
    with pytest.raises(Refused):
        key.kind.from_toml({"run": "code"})


@pytest.mark.parametrize(
    ("dotted", "written", "value"),
    [("select.busy", "Wait", "wait"), ("select.count", "ALL", "all"), ("report.level", "Quiet", "quiet")],
)
def test_words_are_read_alike_in_files_and_variables_whatever_their_case(dotted, written, value):
    kind = BY_DOTTED[dotted].kind
    assert kind.from_toml(written) == kind.from_text(written) == value
