"""A lease's text as an enemy would write it."""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path

import pytest

from autogpu.lease import model
from tests.support.processes import in_a_fork

GOOD = {
    "v": 1,
    "pid": 4711,
    "start": 99,
    "pidns": "pid:[4026531836]",
    "script": "train.py",
    "group": "job.1.2.abcdef01",
    "gpus": {"GPU-a": 8},
}
TICKET = {"v": 1, "pid": 1, "start": 2, "pidns": None, "script": "a", "count": 2, "bytes": None, "uuids": ["G"]}


def text(**changes):
    return json.dumps({**GOOD, **changes}).encode()


def without(name):
    return json.dumps({key: value for key, value in GOOD.items() if key != name}).encode()


def test_what_is_written_is_read_back():
    written = model.encode_lease({**model.identity("/home/a/train.py"), "group": "g"}, {"GPU-a": 0}, {})
    assert b"/home" not in written
    fields = model.lease_fields(written)
    assert (fields["pid"], fields["script"]) == (os.getpid(), "train.py")
    assert (fields["claims"], fields["group"]) == ({"GPU-a": 0}, "g")


def test_the_page_on_security_shows_a_lease_as_it_is_written():
    page = Path(__file__).parents[2].joinpath("docs/security.md").read_text()
    shown = next(line for line in page.splitlines() if line.startswith('{"v":'))
    written = model.encode_lease({**model.identity("a.py"), "group": "g"}, {"GPU-a": 0}, {})
    assert json.loads(shown).keys() == json.loads(written).keys()


def test_what_other_versions_write_besides_is_no_obstacle():
    assert model.lease_fields(text(unused=True, later={"a": [1]}))["claims"] == {"GPU-a": 8}


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"\xff\xfe", id="not-utf-8"),
        pytest.param(b"not json", id="not-json"),
        pytest.param(b"[1]", id="a-list"),
        pytest.param(b"null", id="null"),
        pytest.param(b"[" * 60000, id="60-kB-of-brackets"),
        pytest.param(b'{"a":' * 10000, id="deep-objects"),
        pytest.param(b"9" * 60000, id="a-number-of-60-kB"),
        pytest.param(text(v=0), id="version-0"),
        pytest.param(text(v=True), id="version-is-bool"),
        pytest.param(text(pid=-1), id="negative-pid"),
        pytest.param(text(pid="1"), id="pid-is-text"),
        pytest.param(text(pid=10**30), id="absurd-pid"),
        pytest.param(text(start=1.5), id="start-is-float"),
        pytest.param(text(pidns=5), id="namespace-is-number"),
        pytest.param(text(script=["rm"]), id="script-is-list"),
        pytest.param(text(group=None), id="no-group"),
        pytest.param(text(gpus=[]), id="gpus-is-list"),
        pytest.param(text(gpus={"GPU-a": 1.0}), id="claim-is-float"),
        pytest.param(text(gpus={"GPU-a": -1}), id="claim-is-negative"),
        pytest.param(text(gpus={"GPU-a": True}), id="claim-is-bool"),
        pytest.param(text(gpus={"GPU-a": None}), id="claim-is-null"),
        pytest.param(text(gpus={"GPU-a": 10**30}), id="claim-is-absurd"),
        pytest.param(text(gpus={"GPU-a": float("nan")}), id="claim-is-nan"),
        pytest.param(text(gpus={"\x1b[2J": 1}), id="uuid-is-an-escape"),
        pytest.param(text(gpus={"": 1}), id="uuid-is-empty"),
        pytest.param(text(gpus={f"GPU-{n}": 1 for n in range(2000)}), id="too-many-gpus"),
        *[pytest.param(without(name), id=f"no-{name}") for name in ("v", "pid", "group", "gpus")],
    ],
)
def test_what_no_version_writes_is_unreadable(raw):
    with pytest.raises(model.MalformedRecord):
        model.lease_fields(raw)


@pytest.mark.parametrize(
    "changes",
    [
        {"count": 0},
        {"count": True},
        {"count": 10**9},
        {"bytes": -1},
        {"per_user": -1},
        {"per_user": "2"},
        {"bytes": 1.5},
        {"uuids": "GPU-a"},
        {"uuids": [1]},
        {"uuids": ["a b"]},
    ],
    ids=str,
)
def test_a_ticket_with_an_impossible_wish_is_unreadable(changes):
    assert model.ticket_fields(json.dumps(TICKET).encode())["demand"].uuids == ("G",)
    with pytest.raises(model.MalformedRecord):
        model.ticket_fields(json.dumps({**TICKET, **changes}).encode())


def test_a_later_version_is_read_for_what_we_know():
    fields = model.lease_fields(text(v=7, exclusive=True, topology={"links": [[1], [2]]}))
    assert fields["claims"] == {"GPU-a": 8}


@pytest.mark.parametrize(
    ("why", "cause"),
    [
        ({"GPU-a": "grant Ray"}, "grant Ray"),
        ({"GPU-a": "\x1b[2J"}, "\\x1b[2J"),
        ({}, "share"),
        (["grant Ray"], "share"),
        (None, "share"),
    ],
    ids=str,
)
def test_the_cause_of_a_cap_is_a_text_that_any_version_may_leave_out(why, cause):
    cap = model.lease_fields(text(caps={"GPU-a": 4}, why=why))["caps"]["GPU-a"]
    assert (cap, cap.cause) == (4, cause)


def test_brackets_in_a_name_are_no_nesting():
    assert model.lease_fields(text(script="[" * 70 + '"{'))["script"] == "[" * 70 + '"{'


def test_a_name_can_not_speak_to_the_terminal():
    hostile = "\x1b]0;owned\x07a\nb\u202etxt\ud800.py" + "x" * 500
    fields = model.lease_fields(text(script=hostile, group="g\x1b[2J", pidns="p\r"))
    assert fields["script"].startswith("\\x1b]0;owned\\x07a\\nb\\u202etxt")
    assert fields["script"].isprintable()
    assert len(fields["script"]) == model.MAX_SCRIPT
    assert (fields["group"], fields["pid_namespace"]) == ("g\\x1b[2J", "p\\r")


def test_nesting_does_not_take_down_a_program_that_raised_the_recursion_limit():
    def read():
        with pytest.raises(model.MalformedRecord):
            model.lease_fields(b"[" * 60000)
        told.append("unreadable")

    def read_in_a_small_thread():
        sys.setrecursionlimit(10**6)
        threading.stack_size(256 * 1024)
        thread = threading.Thread(target=read)
        thread.start()
        thread.join()
        return told

    told = []
    assert in_a_fork(read_in_a_small_thread) == ["unreadable"]


@pytest.mark.parametrize("claims", [{"GPU-a": -1}, {"GPU-a": 1.0}, {"GPU-a": True}, {"a b": 1}], ids=str)
def test_what_readers_would_refuse_is_not_written(claims):
    with pytest.raises(ValueError):
        model.encode_lease({**GOOD}, claims, {})
