"""``autogpu stop``: it ends a job of one's own, and never anything else."""

import os
import signal
import subprocess
import sys

import pytest

from autogpu.lease import find_folder, model, snapshot
from autogpu.process import start_time
from autogpu.users import user_name
from tests.cli.conftest import AUTOGPU, OnTerminal, autogpu, running
from tests.failure_modes.holding import as_user, needs_other_users
from tests.gpusim import Gpu
from tests.lease.conftest import ALICE, needs_root, path, until
from tests.support.holders import other_job

pytestmark = pytest.mark.slow

__all__ = ["path"]  # a fixture

GPUS = [Gpu(), Gpu()]
HELD = {"GPU-0": 1 << 30}
ME = user_name(os.getuid())

# Says its pid, counts the SIGTERMs that it gets, and ends at the end of its stdin, or by the signal if it may.
COUNTS = """
import os, signal, sys
signal.signal(signal.SIGTERM, lambda *_: (os.write(1, b"TERM\\n"), sys.argv[1:] == ["stays"] or os._exit(3)))
print(os.getpid(), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def bystander(request):
    """A process that is no job, of the user that is asked for."""
    with subprocess.Popen(["sleep", "600"], user=getattr(request, "param", None)) as process:
        yield process
        process.kill()


def stopped(*options, prefix=(), **settings):
    command, given = [*prefix, *AUTOGPU, "stop", *options], {"capture_output": True, "text": True, **settings}
    return subprocess.run(command, stdin=subprocess.DEVNULL, timeout=60, check=False, **given)


def is_running(job):
    return os.waitid(os.P_PID, job.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None


def asking():
    """It on a terminal, when it has shown the job and waits for an answer."""
    asks = OnTerminal(subprocess.Popen, "stop", "train.py")
    asks.until_shown("Stop it? [y/N]: ")
    return asks


@pytest.mark.parametrize("by", ["pid", "script", "path"])
def test_a_job_of_mine_ends_and_no_other(environ, by):
    with other_job(environ, HELD, script="train.py") as job, other_job(environ, HELD, script="eval.py") as other:
        named = {"pid": str(job.pid), "script": "train.py", "path": "some/where/train.py"}[by]
        done = stopped(named, "--yes")
        assert (done.returncode, done.stdout) == (0, "")
        shown, ended = done.stderr.splitlines()
        assert shown.startswith(f"train.py (pid {job.pid}), for ")
        assert ended == f"autogpu: train.py (pid {job.pid}) has ended"
        assert not is_running(job)
        assert is_running(other)


@pytest.mark.parametrize(
    ("answer", "status", "said"),
    [
        pytest.param("y\n", 0, "has ended\r\n", id="yes"),
        pytest.param("n\n", 1, "nothing is stopped\r\n", id="no"),
        pytest.param("\x04", -signal.SIGINT, "[y/N]: \r\nautogpu: interrupted\r\n", id="nothing"),
    ],
)
def test_on_a_terminal_it_asks(environ, answer, status, said):
    with other_job(environ, HELD, script="train.py") as job:
        asks = asking()
        asks.type(answer)
        assert (asks.end()[1], is_running(job)) == (status, bool(status))
        assert asks.shown.endswith(said)


def test_what_has_ended_while_a_person_was_asked_has_ended_and_the_next_run_of_its_group_is_another_job(environ):
    with other_job(environ, HELD, script="train.py", group="ranks.0123") as job:
        asks = asking()
        job.end()
        with other_job(environ, HELD, script="next.py", group="ranks.0123") as following:
            asks.type("y\n")
            assert (asks.end()[1], "has ended" in asks.shown, is_running(following)) == (0, True, True)


def test_what_is_not_clear_is_refused_and_what_could_be_meant_is_listed(environ, bystander):
    with other_job(environ, HELD, script="train.py") as one, other_job(environ, HELD, script="train.py") as two:
        named = f"train.py (pid {one.pid}) of {ME} and train.py (pid {two.pid}) of {ME}"
        by_status = "`autogpu status` shows all that use a GPU"
        by_pid = f"say which by its pid, as in `autogpu stop {one.pid}`"
        for what, *why in (
            (f"{bystander.pid} --yes", f"no job of autogpu's is pid {bystander.pid}; there are {named}", by_status),
            ("evil.py --yes", f"no job of autogpu's is called evil.py; there are {named}", by_status),
            ("train.py --yes", f"2 jobs are called train.py: {named}", by_pid),
            (one.pid, "nothing is stopped: there is no terminal to ask on", f"autogpu stop {one.pid} --yes"),
        ):
            done = stopped(*str(what).split())
            shown = [line for line in done.stderr.splitlines() if line.startswith("autogpu: ")]
            assert (done.returncode, shown) == (1, [f"autogpu: {line}" for line in why])
        assert (bystander.poll(), is_running(one), is_running(two)) == (None, True, True)


@needs_root
def test_another_users_job_is_not_ended_by_root_either(path):
    environ = {**os.environ, "AUTOGPU_LEASE_DIR": str(path)}
    with other_job(environ, HELD, script="theirs.py", uid=65534) as theirs, other_job(environ, HELD, "mine.py"):
        for name, what in ((str(theirs.pid), f"pid {theirs.pid}"), ("theirs.py", "called theirs.py")):
            done = stopped(name, "--yes", env=environ)
            assert (done.returncode, is_running(theirs)) == (1, True)
            others = f"theirs.py (pid {theirs.pid}) of nobody"
            assert f"nothing is stopped: no job of yours is {what}, but {others}\n" in done.stderr


@needs_other_users
def test_a_plain_user_may_not_end_anothers(path):
    environ = {**os.environ, "AUTOGPU_LEASE_DIR": str(path)}
    with other_job(environ, HELD, script="roots.py") as roots:
        for name, why in (
            (str(roots.pid), f"but roots.py (pid {roots.pid}) of root\n"),
            ("eval.py", "no job of autogpu's is called eval.py; you have none\n"),
        ):
            done = stopped(name, "--yes", prefix=as_user(ALICE), env=environ)
            assert (done.returncode, is_running(roots)) == (1, True)
            assert why in done.stderr


@pytest.mark.parametrize(
    ("bystander", "later"),
    [(None, -1), pytest.param(ALICE, 0, marks=needs_root)],
    indirect=["bystander"],
    ids=["another-start", "of-another-user"],
)
def test_a_lease_that_names_another_process_ends_none(path, monkeypatch, bystander, later):
    environ = {**os.environ, "AUTOGPU_LEASE_DIR": str(path)}
    named = {"pid": bystander.pid, "start": start_time(bystander.pid) + later}
    identity = model.identity
    monkeypatch.setattr(model, "identity", lambda script: {**identity(script), **named})
    with other_job(environ, HELD, script="train.py"):
        done = stopped("train.py", "--yes", "--grace", "1s", env=environ)
        assert (bystander.poll(), str(bystander.pid) in done.stderr.partition("kill -9")[2]) == (None, False)


def test_ranks_are_one_job(environ):
    with other_job(environ, HELD, "rank.py", group="g") as one, other_job(
        environ, {"GPU-1": 1}, "rank.py", group="g"
    ) as two:
        done = stopped(str(two.pid), "--yes")
        assert (done.returncode, is_running(one), is_running(two)) == (0, False, False)
        assert done.stderr.startswith(f"rank.py (pid {one.pid}), 2 processes, for ")


def test_one_that_does_not_end_is_named_with_how_to_kill_it_and_a_stopped_one_goes_on_to_end(server, environ):
    stays = running(server, "--hold", "--", sys.executable, "-c", COUNTS, "stays")
    pid = int(stays.stdout.readline())
    done = autogpu(server, "stop", str(pid), "--yes", "--grace", "1s")
    assert done.returncode == 75
    assert f"(pid {stays.pid}) still runs 1 s after SIGTERM\n" in done.stderr
    assert done.stderr.endswith(f"autogpu: to end all of it at once: kill -9 {stays.pid} {pid}\n")
    # What holds the lease has handed it on, and nobody else has sent it.
    for each in (stays.pid, pid):
        os.kill(each, signal.SIGKILL)
    assert stays.communicate(timeout=60)[0] == "TERM\n"
    assert snapshot(find_folder(environ)).holders == ()
    with other_job(environ, HELD, script="stopped.py") as job:
        os.kill(job.pid, signal.SIGSTOP)
        assert stopped("stopped.py", "--yes").returncode == 0
        assert not is_running(job)


@pytest.mark.parametrize("is_killed", [False, True], ids=["", "holder-killed"])
def test_a_program_below_run_hold_gets_one_sigterm_also_where_the_holder_was_killed(server, environ, is_killed):
    holder = running(server, "--hold", "--", sys.executable, "-c", COUNTS)
    pid = int(holder.stdout.readline())
    if is_killed:
        holder.kill()
        holder.wait(timeout=60)
    named = pid if is_killed else holder.pid
    done = autogpu(server, "stop", str(named), "--yes")
    shown, ended = done.stderr.splitlines()
    assert (done.returncode, f"(pid {named})" in shown, f"(pid {named})" in ended) == (0, True, True)
    assert holder.communicate(timeout=60)[0] == "TERM\n"
    assert snapshot(find_folder(environ)).holders == ()


def test_by_the_gpu_that_it_is_on(server, environ):
    uuid = server.gpus[1].uuid
    with other_job(environ, {uuid: 1 << 30}, script="train.py") as job:
        done = autogpu(server, "stop", "--gpu", "0", "--yes")
        assert (done.returncode, is_running(job)) == (1, True)
        assert f"no job of autogpu's is seen on GPU 0; there are train.py (pid {job.pid}) of {ME}" in done.stderr
        done = autogpu(server, "stop", "--gpu", "1", "--yes")
        assert (done.returncode, is_running(job)) == (0, False)
        assert done.stderr.startswith(f"train.py (pid {job.pid}) on GPU 1, for ")


def test_a_job_in_the_queue_ends_as_well(server, environ):
    with other_job(environ, {gpu.uuid: 24 << 30 for gpu in server.gpus}):
        queued = running(server, "--hold", "--busy", "wait", "--", "cat")
        folder = find_folder(environ)
        until(lambda: len(snapshot(folder).queue) == 1, 60)
        done = autogpu(server, "stop", "cat", "--yes")
        assert (done.returncode, f"cat (pid {queued.pid}) waiting for a GPU" in done.stderr) == (0, True)
        assert queued.wait(timeout=60) == -signal.SIGTERM
