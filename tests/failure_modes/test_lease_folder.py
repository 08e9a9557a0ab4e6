"""Failure modes of the lease folder: its owner and mode, its file system, and its files."""

import itertools
import re
import subprocess
import sys

import pytest

from autogpu.lease import locks
from tests.failure_modes.holding import ALICE, BOB, as_user, needs_other_users
from tests.gpusim import Gpu
from tests.lease import conftest as lease_tests
from tests.support.containers import CONTAINER, NO_NAMESPACES, PRIVATE
from tests.support.simulator_client import HOLDER

pytestmark = pytest.mark.timeout(600)

needs_namespaces = pytest.mark.skipif(bool(NO_NAMESPACES), reason=NO_NAMESPACES)

# A program with a CUDA context, so that the driver lists it as a process on its GPU.
COMPUTES = (sys.executable, "-c", HOLDER.format(device=0, size=1 << 30))


# fs.protected_regular applies to the whole machine, so only one test at a time may set it.
protected_regular = lease_tests.protected_regular
one_by_one = pytest.mark.xdist_group("fs.protected_regular")


@pytest.fixture
def open_folder(tmp_path, monkeypatch):
    """Return the path of a lease folder that does not exist yet. Every user may make it."""
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    monkeypatch.setenv("AUTOGPU_LEASE_DIR", str(shared / "leases"))
    return shared / "leases"


@needs_other_users
def test_05_folder_made_under_umask_077_serves_all_users(lab, open_folder):
    autogpu = lab(*[Gpu()] * 3)
    first = autogpu.hold(prefix=["sh", "-c", 'umask 077; exec "$@"', "sh", *as_user(ALICE)])
    assert first.gpus() == [2]
    assert open_folder.stat().st_uid == ALICE
    # Bob may not signal Alice's process, but he reads her lease and adds his own.
    assert autogpu.hold(prefix=as_user(BOB)).gpus() == [1]
    assert sorted(autogpu.jobs()) == [1, 2]
    assert autogpu.hold().gpus() == [0]


@needs_other_users
def test_05_job_reports_a_lease_folder_that_it_can_not_open(lab, open_folder):
    autogpu = lab(Gpu(), Gpu())
    open_folder.mkdir(mode=0o700)
    job = autogpu.hold(prefix=as_user(ALICE))
    said = job.line("stderr")
    assert said.startswith("autogpu: "), said
    assert str(open_folder) in said + job.line("stderr")


@one_by_one
@needs_other_users
@pytest.mark.usefixtures("protected_regular")
def test_06_files_of_another_user_in_a_sticky_folder_can_be_locked(lab, open_folder):
    autogpu = lab(*[Gpu()] * 3)
    holders = [autogpu.hold(prefix=as_user(uid)) for uid in (ALICE, BOB)]
    assert sorted(gpu for holder in holders for gpu in holder.gpus()) == [1, 2]
    last = autogpu.hold()
    assert re.match(r"autogpu: GPU 0 \(.* free\) for sh: ", last.line("stderr"))


def test_07_lease_folder_has_no_lock_file_that_could_be_removed(lab, lease_folder):
    autogpu = lab(*[Gpu()] * 3)
    assert autogpu.hold().gpus() == [2]
    assert [file.name[:4] for file in lease_folder.iterdir()] == ["job."]
    both = [autogpu.hold(), autogpu.hold()]
    assert sorted(gpu for holder in both for gpu in holder.gpus()) == [0, 1]
    assert all("without the host's lock" not in holder.end()[1] for holder in both)


@pytest.mark.parametrize("gone", ["files", "folder"])
def test_08_running_job_keeps_its_gpu_after_its_lease_was_deleted(lab, lease_folder, gone):
    autogpu = lab(Gpu(), Gpu())
    computing = autogpu.hold(program=COMPUTES)
    assert computing.line() == "[0, 0]"
    for file in lease_folder.iterdir():
        file.unlink()
    if gone == "folder":
        lease_folder.rmdir()
    # The program still computes on GPU 1, but its lease is gone.
    assert autogpu.hold().gpus() == [0]
    assert autogpu.pick("--busy", "error") == []


@needs_namespaces
def test_08_running_job_with_a_private_lease_folder_keeps_its_gpu(lab):
    autogpu = lab(Gpu(), Gpu())
    private = [*CONTAINER, PRIVATE, "sh"]
    assert autogpu.hold(prefix=private, program=COMPUTES).line() == "[0, 0]"
    assert autogpu.hold().gpus() == [0]


@pytest.mark.slow
def test_09_partly_written_lease_blocks_no_other_job(lab, lease_folder):
    autogpu = lab(Gpu(), Gpu())
    holder = autogpu.hold()
    assert holder.gpus() == [1]
    (file,) = lease_folder.glob("job.*")
    text = file.read_bytes()
    holder.end()
    with file.open("w") as opened:
        # Try a lease of a dead job first, and then a locked lease, as of a live job.
        for is_alive, part in itertools.product((False, True), (0, 0.5, 0.99)):
            if is_alive:
                locks.own(opened.fileno())
            file.write_bytes(text[: int(len(text) * part)])
            assert autogpu.pick("--busy", "error") == [1], (part, is_alive)
        assert autogpu.status()["gpus"][1]["state"] == "free"
        assert autogpu.hold().gpus() == [1]


TRAIN = "import tensorflow as tf\nprint(tf.random.uniform((2, 2)).device[-5:])\n"
FULL = """
mount -t tmpfs -o size=16k,mode=1777 none "$AUTOGPU_LEASE_DIR"
cat /dev/zero > "$AUTOGPU_LEASE_DIR/filler" 2>/dev/null
exec "$@"
"""
READ_ONLY = 'mount -t tmpfs -o mode=1777,ro none "$AUTOGPU_LEASE_DIR" && exec "$@"'


@needs_namespaces
@pytest.mark.thorough
@pytest.mark.tensorflow
@pytest.mark.parametrize(
    ("state", "why"),
    [(FULL, "No space left on device"), (READ_ONLY, "Read-only file system")],
    ids=["full", "read-only"],
)
def test_10_job_gets_a_gpu_and_one_line_if_no_lease_can_be_written(run_fresh, state, why):
    home = dict.fromkeys(("HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME"), "/proc")
    printed, said, gpus = run_fresh(TRAIN, Gpu(), Gpu(), prefix=[*CONTAINER, state, "sh"], **home)
    assert (printed, gpus) == ("GPU:0\n", {1})
    assert [why in line for line in said].count(True) == 1, said


# A library that makes locks in the lease folder fail, as on a network file system without locks.
CAN_NOT_LOCK = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
static int is_there(int file) {
  char link[64], path[4096] = "";
  snprintf(link, sizeof link, "/proc/self/fd/%d", file);
  return readlink(link, path, sizeof path - 1) > 0 && strstr(path, getenv("AUTOGPU_LEASE_DIR")) == path;
}
int flock(int file, int what) {
  int (*real)(int, int) = dlsym(RTLD_NEXT, "flock");
  return is_there(file) ? (errno = ENOLCK, -1) : real(file, what);
}
int fcntl64(int file, int what, ...) {
  int (*real)(int, int, ...) = dlsym(RTLD_NEXT, "fcntl64");
  va_list rest;
  va_start(rest, what);
  void *argument = va_arg(rest, void *);
  va_end(rest);
  int locks = what == F_OFD_GETLK || what == F_OFD_SETLK || what == F_OFD_SETLKW;
  return locks && is_there(file) ? (errno = ENOLCK, -1) : real(file, what, argument);
}
int fcntl(int file, int what, ...) __attribute__((alias("fcntl64")));
"""
LINE = "nothing is claimed, so other jobs don't see this one: the lease folder {} can't be used: No locks"


@pytest.fixture
def no_locks(tmp_path, lease_folder):
    """Return an environment in which each lock in the lease folder fails with ENOLCK."""
    source = tmp_path / "no_locks.c"
    source.write_text(CAN_NOT_LOCK)
    library = str(source.with_suffix(".so"))
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, str(source), "-ldl"], check=True, timeout=60)
    return {"LD_PRELOAD": library, "AUTOGPU_LEASE_DIR": str(lease_folder)}


def test_10_program_starts_if_the_lease_folder_can_not_lock(lab, lease_folder, no_locks):
    autogpu = lab(Gpu(processes={5004242: "9GiB"}), Gpu())
    job = autogpu.hold(environ=no_locks)
    assert job.gpus() == [1]
    assert LINE.format(lease_folder) in job.end()[1]


@pytest.mark.tensorflow
def test_10_script_gets_one_gpu_if_the_lease_folder_can_not_lock(run_fresh, lease_folder, no_locks):
    printed, said, gpus = run_fresh(TRAIN, Gpu(processes={5004242: "9GiB"}), Gpu(), Gpu(), **no_locks)
    assert (printed, gpus) == ("GPU:0\n", {2})
    assert [LINE.format(lease_folder) in line for line in said].count(True) == 1, said


def test_25_refusal_shows_the_pid_of_a_holder_that_is_still_idle(lab):
    autogpu = lab(Gpu())
    job = autogpu.hold()
    assert job.gpus() == [0]
    refused = autogpu("run", "--hold", "--busy", "error", "--", "true")
    assert refused.returncode != 0
    assert f"(pid {job.process.pid})" in refused.stderr, refused.stderr
