"""Processes that acquire GPUs by plain readings and real leases, for tests."""

import contextlib
import errno
import fcntl
import os

import pytest

from autogpu import lease
from autogpu.acquire import acquire
from autogpu.devices.model import Process
from autogpu.frozen import replace
from autogpu.lease import queue
from autogpu.selection.grants import Grant, LocalRank
from autogpu.text import GIB
from autogpu.variables import LEASE, LEASE_DIR
from tests.support.holders import other_job
from tests.support.selections import request
from tests.support.values import gpu

FULL = gpu(0, used_gib=20)
BUSY = gpu(0, pids=[7], used_gib=20, busy=90)
WAITS = {"busy": "wait", "wait_s": 0.0}
TWO = {1: 24, 2: 24}
JOB = {"group": "launcher.7.1"}


def asking(*gpus, **asked):
    return request(*gpus, own_uid=os.getuid(), **asked)


def rank_of(place, *gpus, job=JOB["group"], **asked):
    """What one of two ranks asks that would wait for its GPU."""
    rank = LocalRank(place, 2, "Open MPI", job=job)
    return asking(*gpus, **{**WAITS, "grant": Grant(rank=rank), **asked})


def beside(asked, job, *indices):
    """The same where the driver shows that another job computes on these GPUs."""
    devices = [
        replace(device, compute_processes=(Process(job.pid, 0),)) if device.index in indices else device
        for device in asked.inventory.devices
    ]
    return replace(asked, inventory=replace(asked.inventory, devices=tuple(devices)))


def bytes_on(held):
    """By UUID, what is held in GiB by index."""
    return {gpu(index).uuid: gib * GIB for index, gib in held.items()}


def cap_bytes(decision):
    """The caps of a decision in bytes, keyed by GPU UUID."""
    return {uuid: cap.bytes for uuid, cap in decision.caps.items()}


def leases(folder):
    return lease.snapshot(lease.find_folder({LEASE_DIR: str(folder)}))


def child_of(folder, visible=""):
    """The environment that the job which came first leaves to its children."""
    first = leases(folder).holders[0]
    return {LEASE: f"v1:{first.name}:{first.pid}:{first.start_time}:{visible}"}


@pytest.fixture
def acquired(tmp_path, monkeypatch):
    """Let a process acquire GPUs; it gives them back at the end of the test. Where it waits, it looks often."""
    found = []
    monkeypatch.setattr(queue, "LOOK_S", 0.05)
    monkeypatch.setattr(queue, "READ_S", 0.1)

    def every_holder():
        """Yield every holder, as if all jobs were ancestors of the process. The tests start the jobs beside it."""
        return [(holder.pid, holder.start_time) for holder in leases(tmp_path).holders]

    def acquired(asked, *, read=lambda: None, on_wait=lambda queue, decision: None, **environ):
        found.append(acquire(asked, {LEASE_DIR: str(tmp_path), **environ}, "train.py", read, on_wait, every_holder))
        return found[-1]

    yield acquired
    for each in found:
        if each.lease is not None:
            each.lease.release()


@pytest.fixture
def no_mutex(monkeypatch):
    """From its call on the system lets this process have no ``flock``."""

    def refused(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    return lambda: monkeypatch.setattr(fcntl, "flock", refused)


@pytest.fixture
def other(tmp_path):
    """Start another job that holds GPUs, in GiB by index, until the test ends it or is over."""
    with contextlib.ExitStack() as jobs:
        yield lambda held, **options: jobs.enter_context(
            other_job({LEASE_DIR: str(tmp_path)}, bytes_on(held), **options)
        )
