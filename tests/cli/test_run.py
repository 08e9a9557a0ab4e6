"""``autogpu run``: a command under autogpu. ``--hold`` claims GPUs for programs that can't load autogpu."""

import json
import os
import re
import signal
import subprocess
import sys

import pytest

from autogpu.cli.run import command_name
from tests.cli.conftest import AUTOGPU, autogpu, holders, running
from tests.lease.conftest import until
from tests.support import environments
from tests.support.holders import let_age
from tests.support.simulator_client import CUDA
from tests.support.terminal import Terminal

in_both_ways = pytest.mark.parametrize("options", [(), ("--hold",)], ids=["run", "hold"])
# What the lines say of a free GPU.
IDLE = "(NVIDIA TITAN RTX, 24.0 of 24.0 GiB free)"
SHOW = "import os; print(os.environ.get('CUDA_VISIBLE_DEVICES'), os.environ.get('AUTOGPU_LEASE', '-')[:2])"


def test_run_hold_explains_its_choice_at_level_explain(server):
    first, *others = autogpu(server, "run", "--hold", "--", "true", AUTOGPU_LEVEL="explain").stderr.splitlines()
    assert first == f"autogpu: GPU 2 {IDLE} for true: the idlest of 3"
    assert [line.partition(", ")[0] for line in others] == [
        "autogpu:   GPU 2: taken: free",
        "autogpu:   GPU 1: choice 2: free",
        "autogpu:   GPU 0: choice 3: busy",
    ]


@pytest.mark.slow
def test_run_hold_starts_the_command_without_a_gpu_if_no_driver_exists():
    def held(*options):
        command = [*AUTOGPU, "run", "--hold", *options, "--", "sh", "-c", "echo started; exit 7"]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    done, refused = held(), held("--busy", "error")
    said = "autogpu: sh runs without a GPU: this machine has no NVIDIA driver\n"
    assert (done.returncode, done.stdout, done.stderr) == (7, "started\n", said)
    assert held("--level", "quiet").stderr == ""
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr.startswith("autogpu: this machine has no NVIDIA driver\n")


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("./my-cuda-program", "my-cuda-program"),
        ("python code/train.py --lr 1", "train.py"),
        ("/opt/env/bin/python3.11 -u -W ignore -Xdev train.py", "train.py"),
        ("python -m pkg.train --fast", "pkg.train"),
        ("python -m", "python"),
        ("python -m torch.distributed.run train.py", "torch.distributed.run"),
        ("python train.py -m 3", "train.py"),
        ("python -c code train.py", "python"),
        ("python", "python"),
        ("python -V", "python"),
        ("pythonic x", "pythonic"),
    ],
)
def test_job_of_a_python_command_has_the_name_of_its_script(command, name):
    assert command_name(command.split()) == name


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "remedy"),
    [
        ("--devices 0", "to wait for one: --busy wait; to share one: --busy share"),
        ("--need 80GiB", "`autogpu status --explain` shows the obstacle on each GPU"),
    ],
)
def test_run_hold_prints_one_remedy_with_only_options_that_help(server, options, remedy):
    done = autogpu(server, "run", "--hold", "--busy", "error", *options.split(), "--", "true")
    assert (done.returncode, done.stderr.splitlines()[1:]) == (1, [f"autogpu: {remedy}"])
    assert "select.busy" not in done.stderr


ENDS = {
    "killed": (("sh", "-c", "kill -KILL $$"), -signal.SIGKILL),
    "not-found": (("no-such-program",), 127),
    "empty": (("",), 127),
    "not-executable": (("/etc/passwd",), 126),
}


@pytest.mark.slow
@in_both_ways
@pytest.mark.parametrize(("command", "status"), ENDS.values(), ids=list(ENDS))
def test_run_ends_with_the_status_or_signal_of_the_command(server, options, command, status):
    done = autogpu(server, "run", *options, "--", *command)
    assert (done.returncode, "Traceback" in done.stderr) == (status, False)


@pytest.mark.slow
@in_both_ways
def test_sigterm_reaches_the_command(server, options):
    program = (
        "import os, signal\n"
        "def end(*_): os.write(1, b'told\\n'); os._exit(9)\n"
        "signal.signal(signal.SIGTERM, end); os.write(1, b'ready\\n')\n"
        "while True: signal.pause()"
    )
    command = running(server, *options, "--", sys.executable, "-c", program)
    assert command.stdout.readline() == "ready\n"
    command.terminate()
    assert (command.communicate(timeout=60)[0], command.returncode) == ("told\n", 9)


@pytest.mark.slow
@in_both_ways
def test_command_gets_ctrl_c_only_once(server, options):
    program = (
        "import sys, time\n"
        "try: print('ready', flush=True); time.sleep(60)\n"
        "except KeyboardInterrupt: print('once', flush=True)\n"
        "time.sleep(0.3); print('end', flush=True)"
    )
    command = [*AUTOGPU, "run", *options, "--", sys.executable, "-c", program]
    with Terminal(environments.ROOT, {**os.environ, **server.environ}, command, prompt="ready") as terminal:
        terminal.write("\x03")
        shown, _ = terminal.until("end")
        assert ("once" in shown, "Traceback" in shown, terminal.process.wait(60)) == (True, False, 0)


def test_ctrl_c_ends_a_waiting_run_with_a_message_and_sigint(server):
    waiting = running(server, "--hold", "--busy", "wait", "--devices", "0", "--", "true")
    assert "waiting for a GPU" in waiting.stderr.readline()
    assert "GPU 0: pid 5004242 (no claim)" in waiting.stderr.readline()
    waiting.send_signal(signal.SIGINT)
    out, errors = waiting.communicate(timeout=60)
    assert (waiting.returncode, out) == (-signal.SIGINT, "")
    assert errors.split("\n") == ["", "autogpu: interrupted", ""]


def test_held_gpus_are_listed_idlest_first_and_freed_when_command_ends(server):
    done = autogpu(server, "run", "--hold", "--count", "2", "--", sys.executable, "-c", SHOW)
    assert done.stdout == "2,1 v1\n"
    assert f"GPU 2 {IDLE} for true: the idlest of 3" in autogpu(server, "run", "--hold", "--", "true").stderr


ASK = f"{sys.executable} -m autogpu"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "exit_status", "stdout"),
    [
        pytest.param("--need 80GiB", 1, "", id="default"),
        pytest.param("--need 80GiB --level quiet", 1, "", id="quiet"),
        pytest.param("--need 80GiB --busy wait", 1, "", id="wait"),
        pytest.param("--devices *H200*", 1, "", id="no-such-gpu"),
        pytest.param("--need 80GiB --busy cpu", 0, "started\n", id="cpu"),
    ],
)
def test_command_starts_without_a_suitable_gpu_only_if_busy_is_cpu(server, options, exit_status, stdout):
    done = autogpu(server, "run", "--hold", *options.split(), "--", "echo", "started")
    assert (done.returncode, done.stdout) == (exit_status, stdout), done.stderr
    assert re.search("no GPU is suitable(; |\nautogpu: )GPU 0: ", done.stderr), done.stderr


@pytest.mark.slow
def test_run_hold_reports_a_shared_gpu_as_not_reserved(server):
    hold = ("run", "--hold", "--devices", "0", "--wait", "0")
    done = autogpu(server, *hold, "--", "sh", "-c", f"{ASK} pick; {ASK} status --json")
    first, second, third = done.stderr.splitlines()
    assert first.startswith("autogpu: GPU 0 (NVIDIA TITAN RTX, 4.0 of 24.0 GiB free) for sh: ")
    assert second.startswith("autogpu: not reserved: other jobs may share it; for a free GPU: --busy wait; shared: ")
    assert third.startswith("autogpu: picked GPU 0 (not reserved): shared with the parent process, sh (pid ")
    assert "memory limited by other jobs" in done.stdout


@pytest.mark.slow
def test_run_hold_on_an_idle_lease_does_not_suggest_to_wait(server, lease_folder):
    holder = running(server, "--hold", "--devices", "1", "--", "sh", "-c", "echo started; read end")
    assert holder.stdout.readline() == "started\n"
    let_age(lease_folder, 3600)
    for busy in ("wait", "share"):
        said = autogpu(server, "run", "--hold", "--devices", "1", "--busy", busy, "--", "true").stderr
        assert said.startswith(f"autogpu: GPU 1 {IDLE} for true: "), said
        assert "\nautogpu: not reserved: other jobs may share it; shared: " in said, said
    holder.communicate("\n", timeout=60)


@pytest.mark.slow
def test_status_and_pick_inside_a_hold_show_the_held_gpu(server):
    done = autogpu(server, "run", "--hold", "--", "sh", "-c", f"{ASK} pick --format index; {ASK} status")
    picked, *shown = done.stdout.splitlines()
    assert picked == "2"
    assert any(line.startswith("A script started here would get GPU 2: shared with the parent") for line in shown)
    assert "picked GPU 2 (reserved by your job): " in done.stderr
    assert f"autogpu: GPU 2 {IDLE} for sh: the idlest of 3" in [line.strip() for line in shown]


@pytest.mark.slow
@pytest.mark.parametrize(
    "program",
    [
        pytest.param("print('runs', flush=True); os.kill(os.getppid(), 9)", id="holder-killed"),
        pytest.param("os.fork() and (print('runs', flush=True), os._exit(0)); os.setsid()", id="daemon"),
        pytest.param(
            "os.dup2(1, 200); os.fork() and (print('runs', flush=True), os._exit(0))",
            id="child-keeps-stdout-as-descriptor-200",
        ),
    ],
)
def test_claim_lasts_until_the_last_process_of_the_program_ends(server, lease_folder, program):
    program = f"import os, sys; {program}; sys.stdin.read()"
    job = running(server, "--hold", "--", sys.executable, "-c", program)
    assert job.stdout.readline() == "runs\n"
    job.wait(60)
    assert len(holders(lease_folder)) == 1
    assert f"GPU 1 {IDLE} for true" in autogpu(server, "run", "--hold", "--", "true").stderr
    job.stdin.close()
    until(lambda: holders(lease_folder) == [])


# A program without autogpu that uses the first visible GPU until its stdin is closed.
CUDA_PROGRAM = f"""{CUDA}
assert (call("cuInit", 0), context(0), allocate(4 << 30)[0]) == (0, 0, 0)
say(os.getpid())
sys.stdin.read()
"""


def test_program_of_a_killed_hold_is_still_shown_as_its_job(server, lease_folder):
    shell = ("sh", "-c", '"$@"; :', "sh")
    job = running(server, "--hold", "--need", "5GiB", "--", *shell, sys.executable, "-c", CUDA_PROGRAM)
    (program,) = json.loads(job.stdout.readline())

    def shown():
        (gpu,) = json.loads(autogpu(server, "status", "--json").stdout)["gpus"][2:]
        (one,) = gpu["jobs"]
        assert one["used_bytes"] > 4 << 30
        return one["pid"], one["claim_bytes"], gpu["unmanaged_processes"]

    assert shown() == (job.pid, 5 << 30, [])
    # 19 of 24 GiB are left beside the claim of 5 GiB, which includes the 4 GiB that the program uses.
    beside = autogpu(server, "run", "--hold", "--devices", "2", "--need", "18GiB", "--busy", "error", "--", "true")
    assert beside.returncode == 0, beside.stderr
    assert 'autogpu_unmanaged_processes{gpu="2"' not in autogpu(server, "status", "--format", "prometheus").stdout
    job.kill()
    job.wait(60)
    keeper, *rest = shown()
    assert rest == [5 << 30, []]
    os.kill(keeper, signal.SIGTERM)
    os.kill(program, signal.SIGTERM)
    until(lambda: holders(lease_folder) == [])


@in_both_ways
def test_command_inherits_streams_signals_and_files_and_returns_its_status(server, options):
    program = (
        "import os, sys, signal\n"
        "ignored = [signal.getsignal(each) is signal.SIG_IGN for each in (signal.SIGINT, signal.SIGCHLD)]\n"
        "print(sys.stdin.read(), *ignored, signal.pthread_sigmask(0, []), os.read(3, 9))\n"
        "sys.stderr.write('err\\n'); sys.exit(7)"
    )
    reader, writer = os.pipe()
    os.write(writer, b"for 3")

    def by_nohup():
        for number in (signal.SIGINT, signal.SIGCHLD):
            signal.signal(number, signal.SIG_IGN)
        os.dup2(reader, 3)

    caller = {"preexec_fn": by_nohup, "close_fds": False}
    command = running(server, *options, "--", sys.executable, "-c", program, **caller)
    out, errors = command.communicate("words", timeout=60)
    assert (out, errors[-4:], command.returncode) == ("words True True set() b'for 3'\n", "err\n", 7)
    os.close(reader)
    os.close(writer)


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["status", "pick", "wait", "config", "run -- true", "run --hold -- true"])
def test_deleted_directory_stops_no_verb_and_only_hold_makes_lease_folder(server, tmp_path, verb):
    gone, nowhere = tmp_path / "gone", tmp_path / "nowhere"
    gone.mkdir()
    command = f"cd {gone} && rmdir {gone} && exec {sys.executable} -m autogpu {verb}"
    environ = {"PYTHONPATH": str(environments.ROOT), "AUTOGPU_LEASE_DIR": str(nowhere)}
    done = server.run(["sh", "-c", command], environ=environ)
    assert (done.returncode, done.stderr.count("Traceback")) == (0, 0), done.stderr
    assert nowhere.exists() == ("--hold" in verb)


def test_run_hold_holds_nothing_if_autogpu_is_switched_off(server):
    done = autogpu(server, "run", "--hold", "--", sys.executable, "-c", SHOW, AUTOGPU="0")
    assert (done.stdout, done.returncode) == ("None -\n", 0)
    assert "no GPU is claimed, because AUTOGPU turns autogpu off\n" in done.stderr


@pytest.mark.slow
def test_run_options_reach_the_command_and_pythonpath_keeps_its_entries(server):
    program = "import json, os; print(json.dumps([os.environ[n] for n in ('AUTOGPU_NEED', 'PYTHONPATH')]))"
    command = ("run", "--need", "6GiB", "--", sys.executable, "-c", program)
    need, alone = json.loads(autogpu(server, *command).stdout)
    assert (need, alone[0], os.pathsep in alone) == ("6GiB", "/", False)
    _, both = json.loads(autogpu(server, *command, PYTHONPATH="/mine").stdout)
    assert both == os.pathsep.join([alone, "/mine"])
    # `autogpu config` shows the option as the origin: it overrides the variable.
    told = autogpu(server, "run", "--need", "6GiB", "--", *AUTOGPU, "config", "--changed").stdout
    assert told.startswith('select.need  "6GiB"  --need, overrides')


@pytest.mark.tensorflow
@pytest.mark.timeout(900)
def test_run_gives_a_gpu_to_an_environment_without_the_hook(server):
    base = environments.tensorflow()
    python = environments.environment(base.resolve(), on_top_of=base)
    program = "import tensorflow as tf; print(tf.random.uniform((2, 2)).device[-5:])"
    done = server.run([str(python), "-m", "autogpu", "run", "--", str(python), "-c", program], timeout=300)
    assert done.stdout == "GPU:0\n", done.stderr
    assert "autogpu: GPU 2 " in done.stderr
    assert {call.gpu for call in server.calls(call="context")} == {2}
