"""Helpers for tests in which a process acquires GPUs with plain readings and real leases."""

import contextlib
import errno
import fcntl
import os

import pytest

from autogpu import lease
from autogpu.acquire import acquire
from autogpu.devices.model import Process
from autogpu.engines.model import Grant, LocalRank
from autogpu.frozen import replace
from autogpu.lease import queue
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
    """Return the request of one of two ranks, with a policy that waits for busy GPUs."""
    rank = LocalRank(place, 2, "Open MPI", job=job)
    return asking(*gpus, **{**WAITS, "grant": Grant(rank=rank), **asked})


def beside(asked, job, *indices):
    """Return ``asked`` with ``job`` as a compute process on the GPUs with these indices."""
    devices = [
        replace(device, compute_processes=(Process(job.pid, 0),)) if device.index in indices else device
        for device in asked.inventory.devices
    ]
    return replace(asked, inventory=replace(asked.inventory, devices=tuple(devices)))


def bytes_on(held):
    """Return bytes keyed by GPU UUID; ``held`` has GiB keyed by GPU index."""
    return {gpu(index).uuid: gib * GIB for index, gib in held.items()}


def cap_bytes(decision):
    """Return the caps of a decision in bytes, keyed by GPU UUID."""
    return {uuid: cap.bytes for uuid, cap in decision.caps.items()}


def leases(folder):
    return lease.snapshot(lease.find_folder({LEASE_DIR: str(folder)}))


def child_of(folder, visible=""):
    """Return the environment variable that the first holder's process passes to its children."""
    first = leases(folder).holders[0]
    return {LEASE: f"v1:{first.name}:{first.pid}:{first.start_time}:{visible}"}


@pytest.fixture
def acquired(tmp_path, monkeypatch):
    """Return a function that acquires GPUs and keeps them until the test ends. Waiters poll often: tests stay short."""
    found = []
    monkeypatch.setattr(queue, "LOOK_S", 0.05)
    monkeypatch.setattr(queue, "READ_S", 0.1)

    def every_holder():
        """Return all holders as ancestors: the tests start the jobs beside the process, not above it."""
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
    """Return a function after whose call every ``flock`` of this process fails with ENOLCK."""

    def refused(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    return lambda: monkeypatch.setattr(fcntl, "flock", refused)


@pytest.fixture
def other(tmp_path):
    """Return a function that starts a job with claims ``held``, in GiB and keyed by GPU index.

    The job lasts until the test ends, unless the test ends the job before.
    """
    with contextlib.ExitStack() as jobs:
        yield lambda held, **options: jobs.enter_context(
            other_job({LEASE_DIR: str(tmp_path)}, bytes_on(held), **options)
        )
