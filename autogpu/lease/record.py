"""The text of a lease and of a ticket: written by autogpu, and read as untrusted data."""

from __future__ import annotations

import json
import os
import re

from autogpu import process
from autogpu.reporting.text import printable
from autogpu.selection.model import Cap

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Mapping

VERSION = 1

MAX_SCRIPT = 80
_MAX_NAME = 128  # of a UUID (`MIG-GPU-<36 characters>/7/0` is the longest known), a group or a namespace
_MAX_GPUS = 1024
_MAX_DEPTH = 16
_MAX_NUMBER = 2**63 - 1  # more than any GPU has, and what every reader of JSON and every C type can hold

_STRING = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_UUID = re.compile(r"[A-Za-z0-9_./:-]{1,128}")


class MalformedRecord(ValueError):
    """No version of ours writes that. All that is raised here, whatever is read."""


def _refuse(constant: str) -> float:
    raise MalformedRecord(f"{constant} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse)


def identity(script: str) -> dict[str, Any]:
    """The fields of its process that every record has; ``t``, since when, comes on top.

    Never the script's arguments: they may hold secrets.
    """
    pid = os.getpid()
    return {
        "v": VERSION,
        "pid": pid,
        "start": process.start_time(),
        "pidns": process.pid_namespace(),
        "script": printable(script.rpartition("/")[2], MAX_SCRIPT),
    }


def encode(fields: Mapping[str, Any]) -> bytes:
    """``fields`` as a line of JSON in ASCII."""
    return json.dumps(fields, separators=(",", ":"), allow_nan=False).encode("ascii") + b"\n"


def checked_claims(claims: Mapping[str, int]) -> dict[str, int]:
    """A copy of ``claims`` (bytes by UUID), unless a reader would refuse them."""
    return _claims(dict(claims))


def parse(raw: bytes | None) -> dict[str, Any]:
    """The fields that leases and tickets share, checked; the rest as it came, for later versions have more."""
    if raw is None:
        raise MalformedRecord("too long")
    try:
        decoded = raw.decode("utf-8")
        # Before the parser sees it: it recurses in C, and where a program has raised Python's recursion limit
        # it would take the whole process down.
        if _is_deep(decoded):
            raise MalformedRecord("nested too deeply")
        fields = _DECODER.decode(decoded)
    except (ValueError, RecursionError) as error:
        raise MalformedRecord(str(error)) from None
    if not isinstance(fields, dict):
        raise MalformedRecord("not an object")
    if whole(fields.get("v")) < 1:
        raise MalformedRecord("no version")
    whole(fields.get("pid"))
    since = fields.get("t")
    if isinstance(since, bool) or not isinstance(since, (int, float)) or not 0 <= since <= _MAX_NUMBER:
        raise MalformedRecord("no time")
    if fields.get("start") is not None:
        whole(fields["start"])
    if fields.get("pidns") is not None:
        fields["pidns"] = _name(fields["pidns"])
    script = fields.get("script", "")
    if not isinstance(script, str):
        raise MalformedRecord("no script")
    fields["script"] = printable(script, MAX_SCRIPT)
    return fields


def lease_fields(raw: bytes | None) -> dict[str, Any]:
    """A lease's fields, with ``gpus`` (bytes by UUID), ``caps`` (with their causes), ``group`` and ``run``."""
    fields = parse(raw)
    fields["gpus"] = _claims(fields.get("gpus"))
    why = fields.get("why")
    causes = why if isinstance(why, dict) else {}
    caps = _claims(fields.get("caps", {})).items()
    fields["caps"] = {uuid: Cap(size, printable(str(causes.get(uuid, "share")), _MAX_NAME)) for uuid, size in caps}
    fields["group"] = _name(fields.get("group"))
    fields["run"] = _name(fields.get("run", ""))
    return fields


def ticket_fields(raw: bytes | None) -> dict[str, Any]:
    """Of a ticket ``count``, ``bytes`` (``None`` for whole GPUs), ``uuids``, ``joins``, ``group`` and ``per_user``."""
    fields = parse(raw)
    if fields.get("bytes") is not None:
        whole(fields["bytes"])
    fields["per_user"] = whole(fields.get("per_user", 0))
    uuids = fields.get("uuids")
    if not isinstance(uuids, list) or len(uuids) > _MAX_GPUS or not 1 <= whole(fields.get("count")) <= _MAX_GPUS:
        raise MalformedRecord("no demand")
    fields["uuids"] = tuple(_uuid(uuid) for uuid in uuids)
    fields["group"] = _name(fields.get("group", ""))
    fields["joins"] = fields.get("joins") is True
    return fields


def whole(value: object) -> int:
    """``value`` if it is an integer of at least 0 and not absurd; bools, for Python integers, are refused."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MAX_NUMBER:
        raise MalformedRecord("not a whole number")
    return value


def _claims(gpus: object) -> dict[str, int]:
    if not isinstance(gpus, dict) or len(gpus) > _MAX_GPUS:
        raise MalformedRecord("no GPUs")
    return {_uuid(uuid): whole(size) for uuid, size in gpus.items()}


def _uuid(value: object) -> str:
    if not isinstance(value, str) or not _UUID.fullmatch(value):
        raise MalformedRecord("not a UUID")
    return value


def _name(value: object) -> str:
    if not isinstance(value, str):
        raise MalformedRecord("not a name")
    return printable(value, _MAX_NAME)


def _is_deep(text: str) -> bool:
    # Read under the host's mutex, and no record of ours has as many brackets.
    if text.count("{") + text.count("[") <= _MAX_DEPTH:
        return False
    depth = 0
    for bracket in re.finditer(r"[\[\]{}]", _STRING.sub("", text)):
        depth += 1 if bracket.group() in "[{" else -1
        if depth > _MAX_DEPTH:
            return True
    return False
