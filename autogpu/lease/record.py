"""The text of a lease and of a ticket: written by autogpu, and read as untrusted data."""

from __future__ import annotations

import json
import os
import re
from typing import Any, Callable, Mapping

from autogpu import process
from autogpu.lease.model import Demand
from autogpu.reporting.text import printable
from autogpu.selection.model import Cap

VERSION = 1

MAX_SCRIPT = 80
_MAX_NAME = 128  # of a UUID (`MIG-GPU-<36 characters>/7/0` is the longest known), a group or a namespace
_MAX_GPUS = 1024
_MOST_BRACKETS = 220  # no record of ours has as many, whatever its script and its group are called
_MAX_NUMBER = 2**63 - 1  # more than any GPU has, and what every reader of JSON and every C type can hold

_UUID = re.compile(r"[A-Za-z0-9_./:-]{1,128}")


class MalformedRecord(ValueError):
    """No version of ours writes that. All that is raised here, whatever is read."""


def _refuse(constant: str) -> float:
    raise MalformedRecord(f"{constant} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse)


def new_name(kind: str) -> str:
    """A name in the folder for a file of this process: a ``job``, or one that has to ``wait``."""
    return f"{kind}.{os.geteuid()}.{os.getpid()}.{os.urandom(4).hex()}"


def identity(script: str) -> dict[str, Any]:
    """The fields of its process that every record has.

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


def encode_lease(fields: Mapping[str, Any], claims: Mapping[str, int], caps: Mapping[str, Cap]) -> bytes:
    """A lease's text, unless the others would refuse to read it."""
    capped = {"caps": dict(caps), "why": {uuid: cap.cause for uuid, cap in caps.items()}} if caps else {}
    text = encode({**fields, "gpus": dict(claims), **capped})
    lease_fields(text)
    return text


def encode_ticket(fields: Mapping[str, Any], demand: Demand) -> bytes:
    """A ticket's text, unless the others would refuse to read it: it would be passed over for ever."""
    wanted = {"count": demand.count, "bytes": demand.bytes_per_gpu, "uuids": list(demand.uuids), "joins": demand.joins}
    text = encode({**fields, **wanted, "per_user": demand.per_user})
    ticket_fields(text)
    return text


def lease_fields(raw: bytes | None) -> dict[str, Any]:
    """What a lease says of its :class:`Holder`, checked; later versions may say more."""
    fields = _decoded(raw)
    why = fields.get("why")
    causes = why if isinstance(why, dict) else {}
    caps = _claims(fields.get("caps", {})).items()
    return {
        **_of_process(fields),
        "group": _name(fields.get("group")),
        "run": _name(fields.get("run", "")),
        "claims": _claims(fields.get("gpus")),
        "caps": {uuid: Cap(size, printable(str(causes.get(uuid, "share")), _MAX_NAME)) for uuid, size in caps},
    }


def ticket_fields(raw: bytes | None) -> dict[str, Any]:
    """What a ticket says of its :class:`Waiter`, likewise."""
    fields = _decoded(raw)
    count, uuids = whole(fields.get("count")), fields.get("uuids")
    if not isinstance(uuids, list) or len(uuids) > _MAX_GPUS or not 1 <= count <= _MAX_GPUS:
        raise MalformedRecord("no demand")
    return {
        **_of_process(fields),
        "group": _name(fields.get("group", "")),
        "demand": Demand(
            count=count,
            bytes_per_gpu=_optional(whole, fields.get("bytes")),
            uuids=tuple(map(_uuid, uuids)),
            joins=fields.get("joins") is True,
            per_user=whole(fields.get("per_user", 0)),
        ),
    }


def _decoded(raw: bytes | None) -> dict[str, Any]:
    if raw is None:
        raise MalformedRecord("too long")
    try:
        decoded = raw.decode("utf-8")
        # Before the parser sees it: it recurses in C, and where a program has raised Python's recursion limit
        # it would take the whole process down.
        if decoded.count("{") + decoded.count("[") > _MOST_BRACKETS:
            raise MalformedRecord("may be nested too deeply")
        fields = _DECODER.decode(decoded)
    except (ValueError, RecursionError) as error:
        raise MalformedRecord(str(error)) from None
    if not isinstance(fields, dict) or whole(fields.get("v")) < 1:
        raise MalformedRecord("no record of any version")
    return fields


def _of_process(fields: Mapping[str, Any]) -> dict[str, Any]:
    script = fields.get("script", "")
    if not isinstance(script, str):
        raise MalformedRecord("no script")
    return {
        "pid": whole(fields.get("pid")),
        "pid_namespace": _optional(_name, fields.get("pidns")),
        "start_time": _optional(whole, fields.get("start")),
        "script": printable(script, MAX_SCRIPT),
    }


def _optional(checked: Callable[[object], Any], value: object) -> Any:
    return None if value is None else checked(value)


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
