"""Two implementations of docs/lease-protocol.md in one folder: autogpu, and ``another_holder.c``."""

import fcntl
import json
import os
import re
import select
import shlex
import signal
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

from autogpu.caps import Cap, CapCause
from autogpu.lease import Demand, Terms, model, snapshot
from autogpu.lease.folder import FALLBACK_FOLDER
from tests.gpusim import Gpu, Server
from tests.lease.conftest import ALICE, BOB, TIMEOUT_S, holders, needs_root, until, waiters
from tests.lease.test_record import GOOD, TICKET

AUTOGPU = [sys.executable, "-m", "autogpu"]
PAGE = Path(__file__).parents[2].joinpath("docs", "lease-protocol.md").read_text(encoding="utf-8")
TRY_AGAIN = 75
# A command that prints its GPUs, and ends when its input ends.
COMMAND = ("sh", "-c", "echo $CUDA_VISIBLE_DEVICES; exec cat")


@pytest.fixture(scope="session")
def program():
    """Compile ``another_holder.c`` in a folder from which every user can run it."""
    with tempfile.TemporaryDirectory(prefix="autogpu-test-") as made:
        Path(made).chmod(0o755)
        built = Path(made) / "another_holder"
        flags = ("-std=gnu11", "-Wall", "-Wextra", "-Werror", "-o", str(built))
        source = str(Path(__file__).with_name("another_holder.c"))
        subprocess.run([*shlex.split(os.environ.get("CC", "cc")), *flags, source], timeout=TIMEOUT_S, check=True)
        yield str(built)


class Job:
    """A process that claims a GPU and starts a command, which prints the GPU."""

    def __init__(self, process):
        self.process = process
        self.pid = process.pid

    def line(self):
        """Return the command's first line, the GPU that it holds; ``""`` if it ends without a GPU."""
        assert select.select([self.process.stdout], [], [], TIMEOUT_S)[0], "the command printed nothing"
        return self.process.stdout.readline().decode().strip()

    def end(self):
        return self.process.wait(TIMEOUT_S)

    def kill(self):
        """Kill the command and its children with SIGKILL. A surviving child would keep the lease."""
        if self.process.poll() is None:
            os.killpg(self.pid, signal.SIGKILL)
        self.process.wait(TIMEOUT_S)
        self.process.stdin.close()
        if not self.process.stdout.closed:
            self.process.stdout.read()  # ends when the last child has ended, too
            self.process.stdout.close()


@pytest.fixture
def jobs():
    started = []

    def start(command, environ, **options):
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        started.append(Job(subprocess.Popen(command, env=environ, start_new_session=True, **pipes, **options)))
        return started[-1]

    yield start
    for job in started:
        job.kill()


@pytest.fixture
def another(jobs, program, path):
    """Start a job of the other implementation that claims one of the given GPUs."""

    def another(*uuids, command=COMMAND, **options):
        environ = {**os.environ, "AUTOGPU_LEASE_DIR": str(path)}
        return jobs([program, "24", ",".join(uuids), *command], environ, **options)

    return another


@pytest.fixture
def write(path):
    descriptors = []

    def write(name, content, *, is_owned=True, from_ms=0):
        descriptors.append(os.open(str(path / name), os.O_RDWR | os.O_CREAT, 0o644))
        if is_owned:
            f_ofd_setlk, to_the_end = 37, 0
            lock = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, from_ms, to_the_end, 0)
            fcntl.fcntl(descriptors[-1], f_ofd_setlk, lock)
        text = json.dumps(content, separators=(",", ":")).encode() if isinstance(content, dict) else content
        os.write(descriptors[-1], text)

    yield write
    for descriptor in descriptors:
        os.close(descriptor)


@pytest.fixture
def server(path, tmp_path, monkeypatch):
    monkeypatch.setenv("AUTOGPU_LEASE_DIR", str(path))
    (tmp_path / "server").mkdir()
    with Server([Gpu(), Gpu()], folder=tmp_path / "server") as running:
        yield running


def picked(server, *options):
    done = server.run([*AUTOGPU, "pick", "--busy", "error", "--format", "index", *options])
    return done.stdout.strip() or done.stderr


@pytest.mark.slow
def test_autogpu_leaves_a_gpu_to_a_job_of_another_implementation(server, another):
    uuid = server.gpus[1].uuid
    assert picked(server) == "1"
    user = ALICE if os.geteuid() == 0 else None
    # ``user`` is a number, because no test machine has a name for that user.
    job = another(uuid, command=("/bin/sh", *COMMAND[1:]), **({"user": user} if user else {}))
    assert job.line() == uuid
    assert picked(server) == "0"
    assert "claimed by sh (pid " in picked(server, "--devices", "1")
    (shown,) = json.loads(server.run([*AUTOGPU, "status", "--json"]).stdout)["gpus"][1]["jobs"]
    assert (shown["uid"], shown["pid"], shown["script"]) == (user or os.geteuid(), job.pid, "sh")
    assert shown["user"] == (f"uid {user}" if user else shown["user"])
    job.kill()
    assert picked(server) == "1"


MEMBER = r"""
cd "$AUTOGPU_LEASE_DIR"
"$@"
export AUTOGPU_LEASE="v1:$(echo job.*.$$.*):$$:$(cut -d" " -f22 /proc/$$/stat):=$CUDA_VISIBLE_DEVICES"
"$@"
"""


@pytest.mark.slow
def test_variable_autogpu_lease_makes_a_script_a_member_of_the_job(server, program):
    environ = {"PYTHONPATH": str(Path(__file__).parents[2])}
    pick = [*AUTOGPU, "pick", "--format", "index"]
    done = server.run([program, "24", server.gpus[1].uuid, "sh", "-c", MEMBER, "sh", *pick], environ=environ)
    alone, *_, member = done.stderr.splitlines()
    assert done.stdout == "1\n1\n"
    assert "(not reserved): " in alone
    assert "(reserved by your job): shared with the parent process, sh (pid " in member


@pytest.mark.slow
def test_another_implementation_leaves_a_gpu_to_a_job_of_autogpu(server, another, jobs):
    zero, one = (gpu.uuid for gpu in server.gpus)
    held = jobs([*AUTOGPU, "run", "--hold", "--devices", "1", "--", *COMMAND], server.environ_of_child())
    assert held.line() == "1"
    assert another(one).end() == TRY_AGAIN
    assert another(one, zero).line() == zero
    held.kill()
    assert another(one).line() == one


def test_two_jobs_that_claim_at_once_never_get_the_same_gpu(another, start, path, folder):
    for _ in range(10):
        worker = start()
        mutex = os.open(str(path), os.O_RDONLY)
        fcntl.flock(mutex, fcntl.LOCK_EX)
        job = another("GPU-0")
        worker.tell("acquire", free=["GPU-0"])
        until(lambda job=job: is_asleep(job.pid))  # the job waits for the mutex
        os.close(mutex)
        has_it = [worker.hear()["claims"] is not None, job.line() == "GPU-0"]
        assert (sorted(has_it), len(holders(folder))) == ([False, True], 1)
        job.kill()
        worker.kill()


def is_asleep(pid):
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "S"


def test_another_implementation_waits_for_the_mutex_before_it_chooses(another, start):
    worker = start()
    worker.tell("acquire", free=["GPU-0"], stops=True)
    assert worker.hear() == {"event": "choosing"}
    job = another("GPU-0", "GPU-1")
    until(lambda: is_asleep(job.pid))
    worker.tell("go on")
    assert worker.hear()["claims"] == {"GPU-0": 1}
    assert job.line() == "GPU-1"


def test_another_implementation_passes_over_unresponsive_waiters_only(another, start, write, folder):
    now_ms = int(time.time() * 1000)
    write("wait.1.1.0000000a", {**TICKET, "uuids": ["GPU-0"]}, from_ms=now_ms - 60_000)
    write("wait.1.1.0000000b", {**TICKET, "uuids": ["GPU-1"]}, from_ms=now_ms)
    assert [waiter.is_unresponsive for waiter in waiters(folder)] == [True, False]
    assert another("GPU-1").end() == TRY_AGAIN
    assert another("GPU-0").line() == "GPU-0"
    write("wait.1.1.0000000c", {**TICKET, "uuids": []}, from_ms=now_ms)
    assert another("GPU-2").end() == TRY_AGAIN


# Keyed by row id: the content, True if a process owns the file, and True if the file then holds GPU-a.
FILES = {
    "version-1": (GOOD, True, True),
    "later-version-with-unknown-fields": ({**GOOD, "v": 7, "topology": {"links": [[1], [2]]}}, True, True),
    "best-effort": ({**GOOD, "gpus": {"GPU-a": 0}}, True, True),
    "owner-has-ended": (GOOD, False, False),
    "other-gpu": ({**GOOD, "gpus": {"GPU-ab": 8}, "script": '"GPU-a":'}, True, False),
    "empty": (b"", True, False),
    "binary": (b"\0\xff" * 100, True, False),
    "torn": (b'{"v":1,"pid":4711,"gpus":{"GPU', True, False),
    "longer-than-64-KiB": ({**GOOD, "padding": "x" * 70_000}, True, False),
}


@pytest.mark.parametrize(("content", "is_owned", "is_held"), FILES.values(), ids=list(FILES))
def test_both_implementations_read_a_file_alike(another, write, folder, content, is_owned, is_held):
    write("job.1.1.0000000a", content, is_owned=is_owned)
    assert any("GPU-a" in holder.claims for holder in holders(folder)) == is_held
    assert (another("GPU-a").line() == "") == is_held


def test_files_that_others_plant_break_neither_implementation(another, write, path, folder):
    write("job.1.1.0000000a", b"[" * 60_000)
    (path / "job.1.1.0000000b").symlink_to("/dev/zero")
    os.mkfifo(path / "job.1.1.0000000c")
    (path / "job.1.1.0000000d").mkdir()
    (path / "wait.1.1.0000000e").symlink_to("job.1.1.0000000a")
    write("job.not-a-name", GOOD)
    assert another("GPU-0").line() == "GPU-0"
    assert {"GPU-0": 24} in [holder.claims for holder in holders(folder)]


def test_a_dead_lease_is_removed_by_a_process_of_its_user(another, start, path):
    job = another("GPU-0")
    assert job.line() == "GPU-0"
    job.kill()
    assert len(list(path.iterdir())) == 1
    assert start().ask("acquire", free=["GPU-1"])["claims"] == {"GPU-1": 1}
    assert [json.loads(file.read_text())["gpus"] for file in path.iterdir()] == [{"GPU-1": 1}]


@needs_root
def test_a_lease_of_another_implementation_is_read_by_other_users(another, folder, start):
    job = another("GPU-0", user=ALICE)
    assert job.line() == "GPU-0"
    (read,) = start("--uid", str(BOB)).ask("holders")["holders"]
    (holder,) = snapshot(folder).holders
    assert (read["uid"], read["claims"]) == (ALICE, {"GPU-0": 24})
    # ``pid_here`` is set only if the lease has the start time and pid namespace that the process has after exec.
    assert (holder.uid, holder.pid_here) == (ALICE, job.pid)


def rows(heading):
    """Return the names in the first column of the table under a heading of the page."""
    part = PAGE.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    return set(re.findall(r"^\| `(\w+)`", part, re.MULTILINE))


def test_protocol_page_lists_every_field_of_leases_and_tickets():
    fields = {**model.identity("a"), "group": "g"}
    cap = Cap(1, CapCause.GRANT, "Ray")
    lease = json.loads(model.encode_lease({**fields, "engine_job": "Slurm.1.0"}, Terms({"GPU-a": 1}, {"GPU-a": cap})))
    ticket = json.loads(model.encode_ticket(fields, Demand()))
    assert rows("The text of a lease") == lease.keys()
    assert rows("The text of a ticket") == ticket.keys() - fields.keys()
    assert f'{{"v":{model.VERSION},' in PAGE
    assert str(FALLBACK_FOLDER) in PAGE
    assert {cause.value for cause in CapCause} <= set(re.findall(r"`(\w+)`", PAGE))
