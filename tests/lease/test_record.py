"""Text of leases and tickets: written and read back, malformed, or written by a hostile user."""

import json
import os
import sys
import threading
from pathlib import Path

import pytest

from autogpu.caps import Cap, CapCause
from autogpu.lease import model
from tests.support.processes import in_a_fork

PROCESS = {"v": 1, "pid": 4711, "start": 99, "pidns": "pid:[4026531836]", "script": "train.py"}
GOOD = {**PROCESS, "group": "job.1.2.abcdef01", "gpus": {"GPU-a": 8}}
TICKET = {"v": 1, "pid": 1, "start": 2, "pidns": None, "script": "a", "count": 2, "bytes": None, "uuids": ["G"]}


def text(**changes):
    return json.dumps({**GOOD, **changes}).encode()


def without(name):
    return json.dumps({key: value for key, value in GOOD.items() if key != name}).encode()


def test_written_lease_is_read_back():
    written = model.encode_lease({**model.identity("/home/a/train.py"), "group": "g"}, model.Terms({"GPU-a": 0}))
    assert b"/home" not in written
    fields = model.lease_fields(written)
    assert (fields["pid"], fields["script"]) == (os.getpid(), "train.py")
    assert (fields["claims"], fields["group"]) == ({"GPU-a": 0}, "g")


def test_security_page_shows_the_fields_of_a_real_lease():
    page = Path(__file__).parents[2].joinpath("docs/security.md").read_text()
    shown = next(line for line in page.splitlines() if line.startswith('{"v":'))
    written = model.encode_lease({**model.identity("a.py"), "group": "g"}, model.Terms({"GPU-a": 0}))
    assert json.loads(shown).keys() == json.loads(written).keys()


GARBAGE = {
    "empty": b"",
    "not-utf-8": b"\xff\xfe",
    "a-list": b"[1]",
    "60-kB-of-brackets": b"[" * 60000,
    "deep-objects": b'{"a":' * 10000,
    "a-number-of-60-kB": b"9" * 60000,
    **{f"no-{name}": without(name) for name in ("v", "pid", "group", "gpus")},
}
NO_UUIDS, TOO_MANY = ({"\x1b[2J": 1}, {"": 1}), {f"GPU-{number}": 1 for number in range(2000)}
NO_SIZES = (1.0, -1, True, None, 10**30, float("nan"))
WRONG: dict[str, list[object]] = {
    "v": [0, True],
    "pid": [-1, 10**30],
    "start": [1.5],
    "pidns": [5],
    "group": [None],
    "gpus": [[], *NO_UUIDS, TOO_MANY, *({"GPU-a": size} for size in NO_SIZES)],
}


@pytest.mark.parametrize(
    "raw",
    [
        *(pytest.param(raw, id=name) for name, raw in GARBAGE.items()),
        *(pytest.param(text(**{name: each}), id=f"{name}-{str(each)[:20]}") for name in WRONG for each in WRONG[name]),
    ],
)
def test_malformed_lease_is_rejected(raw):
    with pytest.raises(model.MalformedRecord):
        model.lease_fields(raw)


NO_WISH: dict[str, list[object]] = {
    "count": [0, True, 10**9],
    "bytes": [-1, 1.5],
    "per_user": [-1, "2"],
    "uuids": ["GPU-a", [1], ["a b"]],
    "wait_s": [-1, 0.5],
    "last_runs": [7, {"GPU-a": -1}, {"a b": 1}],
}


@pytest.mark.parametrize(("field", "value"), [(field, value) for field, values in NO_WISH.items() for value in values])
def test_ticket_with_an_impossible_demand_is_rejected(field, value):
    assert model.ticket_fields(json.dumps(TICKET).encode())["demand"].uuids == ("G",)
    with pytest.raises(model.MalformedRecord):
        model.ticket_fields(json.dumps({**TICKET, field: value}).encode())


def test_known_fields_of_a_later_version_are_read():
    assert model.lease_fields(text(v=7, exclusive=True, topology={"links": [[1], [2]]}))["claims"] == {"GPU-a": 8}


@pytest.mark.parametrize(
    ("fields", "cause", "whose"),
    [
        ({"why": {"GPU-a": "grant"}, "whose": {"GPU-a": "Ray"}}, CapCause.GRANT, "Ray"),
        ({"why": {"GPU-a": "grant"}, "whose": {"GPU-a": "\x1b[2J"}}, CapCause.GRANT, "\\x1b[2J"),
        ({"why": {"GPU-a": "a later cause"}}, CapCause.SHARED, ""),
        ({}, CapCause.SHARED, ""),
        ({"why": ["grant"], "whose": {"GPU-a": 7}}, CapCause.SHARED, ""),
        ({"why": None}, CapCause.SHARED, ""),
    ],
    ids=str,
)
def test_cap_with_an_unknown_cause_counts_as_sharing(fields, cause, whose):
    caps = model.lease_fields(text(caps={"GPU-a": 4}, **fields))["caps"]
    assert caps == {"GPU-a": Cap(4, cause, whose)}


def test_brackets_in_a_script_name_do_not_count_as_nesting():
    assert model.lease_fields(text(script="[" * 70 + '"{'))["script"] == "[" * 70 + '"{'


def test_control_characters_in_names_are_escaped():
    hostile = "\x1b]0;owned\x07a\nb\u202etxt\ud800.py" + "x" * 500
    fields = model.lease_fields(text(script=hostile, group="g\x1b[2J", pidns="p\r"))
    assert fields["script"].startswith("\\x1b]0;owned\\x07a\\nb\\u202etxt")
    assert fields["script"].isprintable()
    assert len(fields["script"]) == model.MAX_SCRIPT
    assert (fields["group"], fields["pid_namespace"]) == ("g\\x1b[2J", "p\\r")


def test_deep_nesting_is_rejected_despite_a_raised_recursion_limit():
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
def test_invalid_claims_are_not_written(claims):
    with pytest.raises(ValueError):
        model.encode_lease({**GOOD}, model.Terms(claims))
