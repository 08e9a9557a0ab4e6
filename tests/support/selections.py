"""Decisions on plain values, for tests."""

from __future__ import annotations

from autogpu.policy import Policy
from autogpu.reporting.text import GIB
from autogpu.selection.decide import decide
from autogpu.selection.model import Claim, SelectionRequest, VisibleSpec
from tests.support.values import gpu, inventory

UNSET = VisibleSpec(None, "unset")
INHERITED = VisibleSpec("0,1", "inherited")

ME, BOB = 1000, 1001


def decided(*devices, policy=None, spec=UNSET, visible=None, machine=None, claims_on=None, awaited=(), **asked):
    """The decision of a process that has ``visible`` (by default all devices in the order given)."""
    uuids = [device.uuid for device in (visible or devices)]
    values = {"gpu_count": len(uuids), "own_pid": 1, "own_uid": ME, **asked}
    request = SelectionRequest(policy or Policy(), spec, machine or inventory(*devices), uuids, **values)
    return decide(request, claims_on or {}, lambda uuid, is_free, room_bytes: uuid in awaited)


def claim(gib, *, pid=7, uid=BOB, age_s=1.0, script="train.py", is_unused=False):
    return Claim(int(gib * GIB), (pid,), uid, script, age_s, is_unused)


def claimed(*pairs):
    """By UUID, the claims on the GPUs of these indices: ``claimed((0, claim(24)))``."""
    return {gpu(index).uuid: tuple(claims) for index, *claims in pairs}
