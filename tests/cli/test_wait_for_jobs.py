"""``autogpu wait --job`` and ``--mine`` end when jobs have ended, also if a job was killed."""

import os
import signal
import subprocess
import sys
import time

import pytest

from autogpu.lease import find_folder, snapshot
from autogpu.users import user_name
from tests.cli.conftest import AUTOGPU, OnTerminal, autogpu, running
from tests.gpusim import Gpu
from tests.lease.conftest import ALICE, needs_root, path, until
from tests.support.holders import other_job

pytestmark = pytest.mark.slow

__all__ = ["path"]  # a fixture

GPUS = [Gpu()]
HELD = {"GPU-0": 1 << 30}


def waited(*options, **settings):
    command = [*AUTOGPU, "wait", *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, **settings)


def on_terminal(*options):
    """Start ``autogpu wait`` on a terminal and return it as soon as it waits."""
    waiting = OnTerminal(subprocess.Popen, "wait", *options)
    waiting.until_shown("press Ctrl-C to stop")
    return waiting


@pytest.mark.parametrize("is_killed", [True, False], ids=["SIGKILL", "exit"])
def test_end_of_a_job_ends_the_wait(environ, is_killed):
    with other_job(environ, HELD, script="train.py") as job:
        waiting = on_terminal("--job", str(job.pid))
        time.sleep(0.3)
        assert waiting.process.poll() is None
        if is_killed:
            os.kill(job.pid, signal.SIGKILL)
        job.end()
        assert waiting.end() == ("", 0)
    assert f"waiting for the end of train.py (pid {job.pid}); press Ctrl-C to stop waiting" in waiting.shown
    assert f"autogpu: train.py (pid {job.pid}) has ended" in waiting.shown


def test_wait_mine_includes_jobs_that_start_during_the_wait(environ):
    with other_job(environ, HELD, script="a.py") as first, other_job(environ, HELD, script="b.py") as second:
        waiting = on_terminal("--mine")
        first.end()
        with other_job(environ, HELD, script="c.py") as third:
            second.end()
            time.sleep(0.3)
            assert waiting.process.poll() is None
            third.end()
            assert waiting.end() == ("", 0)
    assert f"a.py (pid {first.pid}) and b.py (pid {second.pid}) have ended" in waiting.shown


@needs_root
def test_job_of_another_user_is_awaited_by_pid_but_not_by_mine(path, monkeypatch):
    environ = {"AUTOGPU_LEASE_DIR": str(path)}
    monkeypatch.setenv("AUTOGPU_LEASE_DIR", str(path))
    with other_job(environ, HELD, script="theirs.py", uid=ALICE) as theirs:
        assert waited("--mine").stderr == "autogpu: you have no other job here that holds a GPU or waits for one\n"
        waiting = on_terminal("--job", str(theirs.pid))
        theirs.end()
        assert waiting.end() == ("", 0)


def test_wait_mine_ends_at_once_without_a_lease_folder(tmp_path):
    done = waited("--mine", env={**os.environ, "AUTOGPU_LEASE_DIR": str(tmp_path / "none")})
    assert (done.returncode, done.stdout) == (0, "")
    assert not (tmp_path / "none").exists()


def test_unknown_or_ambiguous_job_name_is_refused_with_a_list_of_jobs(environ):
    assert (
        "there is no autogpu job called eval.py; no job holds a GPU or waits for one"
        in waited("--job", "eval.py").stderr
    )
    with other_job(environ, HELD, script="train.py") as one, other_job(environ, HELD, script="train.py") as two:
        me = user_name(os.getuid())
        both = f"train.py (pid {one.pid}) of {me} and train.py (pid {two.pid}) of {me}"
        by_status = "`autogpu status` shows all jobs and processes on GPUs"
        by_pid = f"choose one by its pid, as in `autogpu wait --job {one.pid}`"
        for name, why, remedy in (
            (str(os.getpid()), f"there is no autogpu job with pid {os.getpid()}; jobs here: {both}", by_status),
            ("eval.py", f"there is no autogpu job called eval.py; jobs here: {both}", by_status),
            ("some/where/train.py", f"there are 2 jobs called some/where/train.py: {both}", by_pid),
        ):
            done = waited("--job", name, "--job", str(two.pid), "--timeout", "0")
            assert (done.returncode, done.stderr) == (1, f"autogpu: {why}\nautogpu: {remedy}\n")


def test_option_job_can_be_repeated(environ):
    with other_job(environ, HELD, script="train.py") as one, other_job(environ, HELD, script="eval.py"):
        assert waited("--job", str(one.pid), "--job", "some/where/eval.py", "--timeout", "0").returncode == 75


@pytest.mark.parametrize("timeout", ["0", "1s"])
def test_timeout_exits_with_75_and_lists_the_running_jobs(environ, timeout):
    with other_job(environ, HELD, script="train.py") as job:
        done = waited("--mine", "--timeout", timeout)
        assert (done.returncode, done.stdout) == (75, "")
        first, second = done.stderr.splitlines()
        assert first == f"autogpu: train.py (pid {job.pid}) has not ended after {timeout.rstrip('s')} s"
        assert second.startswith("autogpu: to wait longer: raise --timeout, or leave it out; ")


WITH_CHILD = (sys.executable, "-c", "import os; print(os.getpid(), flush=True); input()")


def test_job_whose_holder_was_killed_lasts_as_long_as_its_children(server, environ):
    held, folder = running(server, "--hold", "--", *WITH_CHILD), find_folder(environ)
    child = held.stdout.readline().strip()
    held.kill()
    held.wait(timeout=60)
    assert len(snapshot(folder).holders) == 1
    # `status` shows the pid of the child, because the child keeps the job alive.
    waiting = on_terminal("--job", child)
    time.sleep(0.3)
    assert waiting.process.poll() is None
    held.stdin.close()
    assert waiting.end() == ("", 0)


def test_option_job_accepts_the_pid_of_a_child_or_of_a_queued_job(server, environ):
    held, folder = running(server, "--hold", "--", *WITH_CHILD), find_folder(environ)
    child = held.stdout.readline().strip()
    queued = running(server, "--hold", "--busy", "wait", "--", "cat")
    until(lambda: len(snapshot(folder).queue) == 1, 60)
    by_child, by_ticket = on_terminal("--job", child), on_terminal("--job", str(queued.pid))
    held.stdin.close()
    assert by_child.end()[1] == 0
    # The queued job now holds the GPU. It is still the same job, so the wait goes on.
    until(lambda: [holder.script for holder in snapshot(folder).holders] == ["cat"], 60)
    time.sleep(0.3)
    assert by_ticket.process.poll() is None
    queued.stdin.close()
    assert by_ticket.end()[1] == 0


def test_wait_inside_a_job_does_not_wait_for_that_job(server, environ):
    held = ("run", "--hold", "--", *AUTOGPU, "wait")
    done = autogpu(server, *held, "--mine")
    assert (done.returncode, "you have no other job here" in done.stderr) == (0, True)
    done = autogpu(server, *held, "--job", "autogpu")
    assert (done.returncode, "there is no other autogpu job called autogpu" in done.stderr) == (1, True)
