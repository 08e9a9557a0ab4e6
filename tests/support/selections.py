"""Decisions on plain values, for tests."""

from __future__ import annotations

import pytest

from autogpu.policy import Policy
from autogpu.reporting.text import GIB
from autogpu.selection.decide import decide
from autogpu.selection.model import Claim, SelectionRequest, VisibleSpec
from tests.support.values import gpu, inventory

UNSET = VisibleSpec(None, "unset")
INHERITED = VisibleSpec("0,1", "inherited")

ME, BOB = 1000, 1001


def request(*gpus, **asked):
    """What a process asks that has these GPUs, in their order; ``asked`` are fields of the policy and the request."""
    policy = {name: asked.pop(name) for name in list(asked) if name in Policy.__annotations__}
    fields = {
        "visible_spec": UNSET,
        "inventory": inventory(*gpus),
        "uuids": [device.uuid for device in gpus],
        "gpu_count": len(gpus),
        "own_pid": 1,
        "own_uid": ME,
    }
    return SelectionRequest(Policy(**policy), **{**fields, **asked})


def decided(*gpus, held=(), awaited=(), **asked):
    """What becomes of such a process.

    Args:
        held: The claims of others, by the index of a GPU or its UUID.
        awaited: The UUIDs of GPUs that a job in the queue could use.
    """
    return decide(request(*gpus, **asked), claims_on(held), lambda candidate: candidate.device.uuid in awaited)


def claims_on(held):
    """By UUID: ``claims_on({0: claim(6), 1: (claim(8), claim(8, pid=8))})``."""
    uuids = {key: gpu(key).uuid if isinstance(key, int) else key for key in held}
    return {uuids[key]: held[key] if isinstance(held[key], tuple) else (held[key],) for key in uuids}


def claim(gib, *, pid=7, uid=BOB, age_s=1.0, script="train.py"):
    return Claim(int(gib * GIB), (pid,), uid, script, age_s)


def case(rule, gpus, asked, **expected):
    """A row of a table: what of the decision about these GPUs shows the rule."""
    return pytest.param(gpus, asked, expected, id=rule)


def fields(decision, expected):
    """Of a decision, what a row tells."""
    return {name: getattr(decision, name) for name in expected}
