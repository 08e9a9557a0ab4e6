"""Sizes, durations, lists, paths and user names as text for people."""

import os

import pytest

from autogpu.text import GIB, MIB, counted, exact_span, listed, printable, short_path, size, span
from autogpu.users import user_name


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        pytest.param("a\x1b[31mb", "a\\x1b[31mb", id="escape"),
        pytest.param("a\nb", "a\\nb", id="newline"),
        pytest.param("a\u202eb", "a\\u202eb", id="right-to-left"),
        pytest.param("\udc80", "\\udc80", id="undecodable-byte"),
        pytest.param("\u8bad\u7ec3", "\u8bad\u7ec3", id="chinese-stays"),
    ],
)
def test_control_characters_are_escaped_for_the_terminal(text, seen):
    assert printable(text) == seen


def test_long_text_keeps_both_ends():
    assert printable("a" * 1000 + "z", 30) == "a" * 17 + "..." + "a" * 9 + "z"


@pytest.mark.parametrize("text", ["\x1b" * 1000, "\u202e" * 30, "a" * 29 + "\x00"])
def test_escaped_text_is_shortened_to_the_maximum_length(text):
    assert len(printable(text, 30)) == 30
    assert printable(text, 30).isprintable()


def test_sizes_spans_counts_and_lists_are_written_for_people():
    sizes = {0: "0 MiB", 64 * MIB: "64 MiB", GIB // 10: "0.1 GiB", 47 * GIB // 2: "23.5 GiB"}
    assert {number: size(number) for number in sizes} == sizes
    spans = {0.4: "0 s", 119: "119 s", 120: "2 min", 3599: "60 min", 7200: "2 h", 26 * 3600: "26 h", 3e5: "3 d"}
    spans.update({3600: "1 h", 6000: "1 h 40 min", 7199: "1 h 59 min"})
    assert {seconds: span(seconds) for seconds in spans} == spans
    assert [counted(number, "GPU") for number in (0, 1, 2)] == ["0 GPUs", "1 GPU", "2 GPUs"]
    assert [listed("abc"[:number]) for number in (1, 2, 3)] == ["a", "a and b", "a, b and c"]


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0.0, "0 s"),
        (0.5, "0.5 s"),
        (59.0, "59 s"),
        (90.0, "1 min 30 s"),
        (1800.0, "30 min"),
        (9000.0, "2 h 30 min"),
        (2.3 * 3600, "2 h 18 min"),
        (93784.25, "1 d 2 h 3 min 4.25 s"),
        (365 * 86400.0, "365 d"),
    ],
)
def test_duration_that_a_user_has_set_is_not_rounded(seconds, shown):
    assert exact_span(seconds) == shown


@pytest.mark.parametrize(
    ("path", "homes", "shown"),
    [
        ("/home/me/x.toml", ("/home/me",), "~/x.toml"),
        ("/data/me/x.toml", ("/home/me", "/data/me"), "~/x.toml"),
        ("/home/meg/x.toml", ("/home/me",), "/home/meg/x.toml"),
        ("/etc/x.toml", ("/",), "/etc/x.toml"),
        ("/etc/x.toml", (), "/etc/x.toml"),
        ("/home/me/\x1b", ("/home/me/",), "~/\\x1b"),
    ],
)
def test_paths_begin_at_the_home_folder(path, homes, shown):
    assert short_path(path, homes) == shown


def test_user_is_shown_by_name_or_else_by_uid():
    assert user_name(0) == "root"
    assert user_name(4_000_000_000) == "uid 4000000000"
    assert os.getuid() != 0 or user_name(os.getuid()) == "root"
