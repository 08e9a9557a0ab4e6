"""Children of a process that holds a lease are members of it, and no other process is."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from autogpu.lease import ancestor_lease, has_parents_list
from autogpu.variables import LEASE
from tests.support.containers import CONTAINER, NO_NAMESPACES, SHARED

VISIBLE = "CUDA_VISIBLE_DEVICES"
GPUS = {VISIBLE: "GPU-0,MIG-GPU-1/0/0"}


@pytest.fixture
def parent(start):
    worker = start()
    worker.ask("acquire", gpus={"GPU-0": 5}, group="job")
    return worker


@pytest.mark.parametrize("environ", [GPUS, {}, {VISIBLE: ""}], ids=["set", "unset", "empty"])
def test_a_child_finds_its_parents_lease(parent, folder, environ):
    marker = parent.ask("marker", environ=environ)["marker"]

    found = ancestor_lease({**environ, LEASE: marker}, folder)

    assert has_parents_list({**environ, LEASE: marker})
    assert (found.pid, found.claims, found.group) == (parent.pid, {"GPU-0": 5}, "job")


@pytest.mark.parametrize("environ", [{}, {VISIBLE: ""}, {VISIBLE: "GPU-0"}, {VISIBLE: "0"}], ids=str)
def test_a_process_that_changed_the_visible_devices_has_another_list(parent, folder, environ):
    marker = parent.ask("marker", environ=GPUS)["marker"]

    assert not has_parents_list({**environ, LEASE: marker})
    assert ancestor_lease({**environ, LEASE: marker}, folder).pid == parent.pid


def test_unset_is_not_empty(parent):
    marker = parent.ask("marker", environ={})["marker"]

    assert not has_parents_list({VISIBLE: "", LEASE: marker})


def test_a_lease_is_none_to_its_own_process(parent, folder):
    from autogpu.lease import acquire_lease

    lease = acquire_lease(folder, lambda *_: {"GPU-0": 1}, script="a")

    assert ancestor_lease({LEASE: lease.marker({})}, folder) is None
    lease.release()


def test_membership_ends_with_the_parent(parent, folder):
    marker = parent.ask("marker", environ={})["marker"]
    parent.kill()

    assert ancestor_lease({LEASE: marker}, folder) is None


def test_membership_lasts_while_a_fork_of_the_parent_lives(parent, folder):
    marker = parent.ask("marker", environ={})["marker"]
    parent.ask("fork")
    parent.kill()

    assert ancestor_lease({LEASE: marker}, folder).claims == {"GPU-0": 5}


@pytest.mark.parametrize(
    "marker",
    [
        "",
        "v1",
        "v1:::::",
        "v2:{name}:{pid}:{start}:",
        "v1:../mutex:1:1:",
        "v1:{name}:1:{start}:",
        "v1:{name}:{pid}:1:",
    ],
)
def test_a_marker_that_does_not_fit_means_nothing(parent, folder, marker):
    _, name, pid, start, _ = parent.ask("marker", environ={})["marker"].split(":")
    assert pid != str(os.getpid())

    assert ancestor_lease({LEASE: marker.format(name=name, pid=pid, start=start)}, folder) is None


# The first process of a container, which has a lease and starts another container.
OUTER = """
import os, subprocess, sys
from autogpu.lease import acquire_lease, find_folder
lease = acquire_lease(find_folder(os.environ), lambda *_: {"GPU-0": 1}, script="a")
command = [*sys.argv[2:], "sh", sys.executable, "-c", sys.argv[1]]
child = {**os.environ, "AUTOGPU_LEASE": lease.marker(os.environ)}
sys.exit(subprocess.run(command, env=child, timeout=60).returncode)
"""
INNER = """
import os
from autogpu.lease import ancestor_lease, find_folder
parent = ancestor_lease(os.environ, find_folder(os.environ))
print(os.getpid(), parent and parent.pid)
"""


@pytest.mark.skipif(bool(NO_NAMESPACES), reason=NO_NAMESPACES)
def test_a_child_in_a_container_of_its_own_may_have_its_parents_pid(folder):
    container = [*CONTAINER, SHARED]
    command = [*container, "sh", sys.executable, "-c", OUTER, INNER, *container]
    environ = {**os.environ, "AUTOGPU_LEASE_DIR": str(folder.path)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environ, check=False)
    assert (done.returncode, done.stdout) == (0, "1 1\n"), done.stderr
