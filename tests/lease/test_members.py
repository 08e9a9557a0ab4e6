"""Members of a lease: processes below its holder, and no others."""

import os
import subprocess
import sys

import pytest

from autogpu import process
from autogpu.lease import Lease, acquire_lease, ancestor_lease, has_parents_list
from autogpu.variables import LEASE
from tests.lease.conftest import ALICE, holders, needs_root
from tests.support.containers import CONTAINER, NO_NAMESPACES, SHARED

VISIBLE = "CUDA_VISIBLE_DEVICES"
GPUS = {VISIBLE: "GPU-0,MIG-GPU-1/0/0"}


def above(pid):
    return pid, process.start_time(pid)


@pytest.fixture
def holder(start):
    worker = start()
    worker.ask("acquire", gpus={"GPU-0": 5}, group="job")
    return worker


@pytest.mark.parametrize(
    "environ",
    [GPUS, {}, {VISIBLE: ""}, {VISIBLE: "0:1"}],
    ids=["devices-set", "devices-unset", "devices-empty", "devices-with-a-colon"],
)
def test_a_child_finds_its_parents_lease(holder, folder, environ):
    marker = holder.ask("marker", visible=environ.get(VISIBLE))["marker"]
    found = ancestor_lease({**environ, LEASE: marker}, holders(folder), [above(holder.pid)])
    assert has_parents_list({**environ, LEASE: marker})
    assert (found.pid, found.claims, found.group) == (holder.pid, {"GPU-0": 5}, "job")


@pytest.mark.parametrize(
    ("had", "has"),
    [*((GPUS, has) for has in ({}, {VISIBLE: ""}, {VISIBLE: "GPU-0"}, {VISIBLE: "0"})), ({}, {VISIBLE: ""})],
    ids=str,
)
def test_child_that_changed_visible_devices_lacks_its_parents_list(holder, folder, had, has):
    marker = holder.ask("marker", visible=had.get(VISIBLE))["marker"]
    assert not has_parents_list({**has, LEASE: marker})
    assert ancestor_lease({**has, LEASE: marker}, holders(folder), [above(holder.pid)]).pid == holder.pid


def test_own_lease_is_not_an_ancestor_lease(folder):
    lease = acquire_lease(Lease(folder, "a"), lambda *_: {"GPU-0": 1})
    environ: dict[str, str] = {}
    lease.mark_children(environ, None)
    assert ancestor_lease(environ, holders(folder), [above(os.getpid())]) is None
    lease.release()


def test_copied_marker_admits_no_process_outside_the_holders_tree(holder, folder):
    marker = holder.ask("marker", visible=None)["marker"]
    assert ancestor_lease({LEASE: marker}, holders(folder), process.with_ancestors()) is None


@needs_root
def test_copied_marker_admits_no_process_of_another_user(start, folder):
    alice = start("--uid", str(ALICE))
    alice.ask("acquire", gpus={"GPU-0": 5})
    marker = alice.ask("marker", visible=None)["marker"]
    assert ancestor_lease({LEASE: marker}, holders(folder), [above(alice.pid)]) is None


def test_marker_counts_if_no_ancestor_is_visible(holder, folder):
    marker = holder.ask("marker", visible=None)["marker"]
    assert ancestor_lease({LEASE: marker}, holders(folder), []).pid == holder.pid


@pytest.mark.parametrize("has_fork", [False, True], ids=["parent-killed", "parent-killed-but-its-fork-lives"])
def test_membership_lasts_as_long_as_the_parents_lease(holder, folder, has_fork):
    marker = holder.ask("marker", visible=None)["marker"]
    parent = above(holder.ask("fork")["child"] if has_fork else holder.pid)
    holder.kill()
    found = ancestor_lease({LEASE: marker}, holders(folder), [parent])
    assert (found and found.claims) == ({"GPU-0": 5} if has_fork else None)


@pytest.mark.parametrize(
    "marker",
    ["", "v1", "v1:::::", "v2:{name}:{pid}:{start}:", "v1:../job:1:1:", "v1:{name}:1:{start}:", "v1:{name}:{pid}:1:"],
)
def test_malformed_or_mismatched_marker_is_ignored(holder, folder, marker):
    _, name, pid, start, _ = holder.ask("marker", visible=None)["marker"].split(":")
    assert pid != str(os.getpid())
    marker = marker.format(name=name, pid=pid, start=start)
    assert ancestor_lease({LEASE: marker}, holders(folder), [above(holder.pid)]) is None


# Runs as the first process of a container: claims a GPU, then starts another container.
OUTER = """
import os, subprocess, sys
from autogpu.lease import Lease, acquire_lease, find_folder
lease = acquire_lease(Lease(find_folder(os.environ), "a"), lambda *_: {"GPU-0": 1})
command = [*sys.argv[2:], "sh", sys.executable, "-c", sys.argv[1]]
child = {**os.environ}
lease.mark_children(child, None)
sys.exit(subprocess.run(command, env=child, timeout=60).returncode)
"""
INNER = """
import os
from autogpu.lease import ancestor_lease, find_folder, snapshot
from autogpu.process import with_ancestors
parent = ancestor_lease(os.environ, snapshot(find_folder(os.environ)).holders, with_ancestors())
print(os.getpid(), parent and parent.pid)
"""


@pytest.mark.skipif(bool(NO_NAMESPACES), reason=NO_NAMESPACES)
def test_child_in_a_container_is_a_member_despite_its_parents_equal_pid(folder):
    container = [*CONTAINER, SHARED]
    command = [*container, "sh", sys.executable, "-c", OUTER, INNER, *container]
    environ = {**os.environ, "AUTOGPU_LEASE_DIR": str(folder.path)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environ, check=False)
    assert (done.returncode, done.stdout) == (0, "1 1\n"), done.stderr
