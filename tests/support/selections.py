"""Selection requests and decisions on plain values, for tests."""

import pytest

from autogpu.devices.model import Process
from autogpu.frozen import replace
from autogpu.lease import Demand, Waiter
from autogpu.policy import Policy
from autogpu.selection.decide import decide
from autogpu.selection.model import SETTLED_S, Claim, SelectionRequest, VisibleSpec, wanted_gpus
from autogpu.text import GIB
from tests.support.values import gpu, inventory, policy_of

UNSET = VisibleSpec()
INHERITED = VisibleSpec("0,1")

ME, BOB = 1000, 1001


def request(*gpus, **asked):
    """Return the request of a process with these GPUs in order. ``asked`` has fields of the policy and the request."""
    policy = policy_of(**{name: asked.pop(name) for name in list(asked) if name in Policy.__annotations__})
    fields = {
        "wanted": wanted_gpus(
            policy.count,
            is_set=asked.pop("count_is_set", False),
            numbers=asked.get("numbers", ()),
            named=asked.pop("named_count", 0),
            asked=asked.pop("asked_count", 0),
        ),
        "busy": policy.busy,
        "wait_s": policy.wait_s,
        "per_user": policy.per_user,
        "visible_spec": UNSET,
        "inventory": inventory(*gpus),
        "uuids": [device.uuid for device in gpus],
        "gpu_count": len(gpus),
        "own_pid": 1,
        "own_uid": ME,
    }
    return SelectionRequest(policy, **{**fields, **asked})


def decided(*gpus, held=(), awaited=(), is_seen=True, **asked):
    """Return the decision about the :func:`request` of a process with these GPUs.

    Args:
        held: Claims of other jobs, keyed by GPU index or UUID.
        awaited: UUIDs of the GPUs that a waiter could use.
        is_seen: True if the driver lists the processes of each job that has held a GPU for a minute.
    """
    claims = claims_on(held)
    if is_seen:
        gpus = tuple(_computing(device, claims.get(device.uuid, ())) for device in gpus)
    demand = Demand(bytes_per_gpu=0, uuids=tuple(awaited))
    waiters = [Waiter("wait.1", BOB, False, 7, demand=demand)] if awaited else []
    return decide(request(*gpus, **asked), claims, waiters)


def _computing(device, claims):
    listed = {process.pid for process in device.compute_processes or ()}
    seen = [pid for each in claims for pid in each.pids if each.age_s >= SETTLED_S and pid not in listed]
    if device.compute_processes is None or not seen:
        return device
    return replace(device, compute_processes=(*device.compute_processes, *(Process(pid, 0) for pid in seen)))


def claims_on(held):
    """Return claims keyed by UUID: ``claims_on({0: claim(6), 1: (claim(8), claim(8, pid=8))})``."""
    uuids = {key: gpu(key).uuid if isinstance(key, int) else key for key in held}
    return {uuids[key]: held[key] if isinstance(held[key], tuple) else (held[key],) for key in uuids}


def claim(gib, *, pid=7, uid=BOB, age_s=1.0, newest_s=None, script="train.py", cap_gib=0):
    newest_s = age_s if newest_s is None else newest_s
    return Claim(int(gib * GIB), (pid,), uid, script, age_s, newest_s, int(cap_gib * GIB))


def case(rule, gpus, asked, **expected):
    """Return a row of a table. ``expected`` has those fields of the decision that show the rule."""
    return pytest.param(gpus, asked, expected, id=rule)


def fields(decision, expected):
    """Return the fields of a decision that a row names; ``cap_bytes`` are its caps without their causes."""
    cap_bytes = {uuid: cap.bytes for uuid, cap in decision.caps.items()}
    return {name: cap_bytes if name == "cap_bytes" else getattr(decision, name) for name in expected}
