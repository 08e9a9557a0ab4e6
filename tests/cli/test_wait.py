"""``autogpu wait`` ends when a job could start. It takes no place in the queue and writes no file."""

import signal
import time

import pytest

from autogpu.cli import main as frame
from autogpu.lease import find_folder, snapshot
from tests.cli.conftest import OnTerminal, autogpu, running
from tests.lease.conftest import until
from tests.support.holders import other_job

pytestmark = pytest.mark.slow

WHOLE = 24 << 30


def test_free_gpus_end_the_wait_at_once_and_are_not_held(server, lease_folder):
    done = autogpu(server, "wait", "--count", "2")
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == (
        "autogpu: GPU 2 and GPU 1 are available now (not reserved): the 2 idlest of 3; "
        "to reserve: `autogpu run --hold --count 2 -- command`\n"
    )
    assert "`autogpu run --hold -- command`\n" in autogpu(server, "wait").stderr
    listed = autogpu(server, "wait", "--devices=1", "--devices=*").stderr
    assert "`autogpu run --hold --devices '1,*' -- command`\n" in listed
    assert list(lease_folder.iterdir()) == []


LATER = "\nautogpu: to wait longer: raise --timeout, or leave it out; `autogpu status` lists the jobs that hold GPUs\n"
OUTCOMES = {
    "count": ("--count 3", 75, f"gave up after 0 s: 2 of the 3 GPUs are free{LATER}"),
    "all": ("--count 9", 75, f"2 of the 3 GPUs are free; 9 GPUs are requested, but this job can get at most 3{LATER}"),
    "more-than-the-policy-allows": (
        "--count 9 --devices 0",
        75,
        "; 9 GPUs are requested, but this job can get at most 1; ",
    ),
    "need-fits": ("--devices 0 --need 3GiB", 0, "GPU 0 is available now (not reserved)"),
    "need-does-not-fit": ("--devices 0 --need 6GiB", 75, "; GPU 0: 6.0 GiB needed, 4.0 GiB left; "),
    "time": ("--devices 0 --timeout 1s", 75, "autogpu: gave up after 1 s: no GPU is free; GPU 0: "),
    "no-such-gpu": ("--need 100GiB", 1, "waiting can't help: no GPU is suitable; GPU 0: "),
    "none-wanted": ("--count 0", 1, "select.count is 0"),
}


@pytest.mark.parametrize(("options", "status", "why"), OUTCOMES.values(), ids=list(OUTCOMES))
def test_requested_count_need_and_time_decide_the_exit_status(server, options, status, why):
    done = autogpu(server, "wait", "--timeout", "0", *options.split())
    assert (done.returncode, done.stdout) == (status, "")
    assert why in done.stderr


def test_wait_does_not_accept_a_busy_gpu_that_pick_would_share(server, environ):
    with other_job(environ, {gpu.uuid: 2 << 30 for gpu in server.gpus}, age_s=60.0):
        assert autogpu(server, "pick").returncode == 0
        assert autogpu(server, "wait", "--timeout", "0").returncode == 75


def test_wait_fails_at_once_without_a_driver(capsys):
    assert frame.run(["wait"]) == 1
    assert capsys.readouterr().err.startswith("autogpu: this machine has no NVIDIA driver\n")


def test_end_of_a_claim_ends_the_wait(server, environ, lease_folder):
    with other_job(environ, {gpu.uuid: WHOLE for gpu in server.gpus}) as job:
        before = sorted(lease_folder.iterdir())
        waiting = OnTerminal(server.popen, "wait")
        waiting.until_shown("waiting without a place in the queue: no GPU is free")
        waiting.until_shown("claimed by other.py")
        assert sorted(lease_folder.iterdir()) == before
        job.end()
        assert waiting.end() == ("", 0)
    assert "GPU 2 is available now (not reserved)" in waiting.shown


@pytest.mark.parametrize("comes_back", [True, False], ids=["for-a-moment", "for-good"])
def test_loss_of_the_awaited_gpu_ends_the_wait_unless_it_recovers(server, comes_back):
    waiting = OnTerminal(server.popen, "wait", "--devices", "0")
    waiting.until_shown("waiting without a place")
    server.change(0, nvml="GPU_IS_LOST")
    if comes_back:
        time.sleep(3)  # enough for one or two readings
        server.change(0, nvml="", processes={}, utilization=0)
    assert waiting.end() == ("", 0 if comes_back else 1)
    assert ("waiting can't help: no GPU is suitable" in waiting.shown) != comes_back


def test_wait_does_not_end_before_the_queue_is_served(server, environ, lease_folder):
    with other_job(environ, {server.gpus[1].uuid: WHOLE}) as job:
        queued = running(server, "--hold", "--busy", "wait", "--count", "2", "--", "cat")
        folder = find_folder(environ)
        until(lambda: len(snapshot(folder).queue) == 1, 60)
        # GPU 2 is free, but the job in the queue waits for two GPUs, and this is its first.
        done = autogpu(server, "wait", "--timeout", "0")
        assert (done.returncode, "a job in the queue waits for this GPU" in done.stderr) == (75, True)
        waiting = OnTerminal(server.popen, "wait")
        waiting.until_shown("a job in the queue waits for this GPU")
        job.end()
        until(lambda: [holder.script for holder in snapshot(folder).holders] == ["cat"], 60)
        time.sleep(5)  # enough for two readings: the first may have begun before the claim
        assert waiting.process.poll() is None
        queued.communicate("", timeout=60)
        assert waiting.end() == ("", 0)


def test_ctrl_c_ends_the_wait_with_a_message(server):
    waiting = OnTerminal(server.popen, "wait", "--devices", "0")
    waiting.until_shown("press Ctrl-C to stop")
    waiting.process.send_signal(signal.SIGINT)
    assert waiting.end() == ("", -signal.SIGINT)
    assert waiting.shown.endswith("\r\nautogpu: interrupted\r\n")


@pytest.mark.parametrize("is_odd", [False, True], ids=["no-folder", "file-instead-of-folder"])
def test_wait_works_without_a_lease_folder_and_warns_once_of_a_bad_one(server, tmp_path, is_odd):
    folder = tmp_path / "other"
    if is_odd:
        folder.touch()
    # 3 s are enough for a second reading, which must not repeat the warning.
    command = ("wait", "--devices", "0", "--timeout", "3s" if is_odd else "1s")
    done = autogpu(server, *command, AUTOGPU_LEASE_DIR=str(folder))
    assert (done.returncode, folder.exists()) == (75, is_odd)
    assert done.stderr.count("waiting without the claims of other jobs, which can't be read: ") == is_odd
