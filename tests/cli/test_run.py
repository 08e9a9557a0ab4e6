"""One command under autogpu, and GPUs for programs that autogpu can't reach."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys

import pytest

from autogpu.cli.gpu_request import listing
from autogpu.cli.run import name_of
from autogpu.lease import find_folder, snapshot
from autogpu.policy import Policy
from tests.gpusim import Gpu, Server
from tests.lease.conftest import until
from tests.support import environments
from tests.support.values import cut, gpu, inventory

# GPU 0 is a colleague's; of the idle ones the last wins.
LAB = (Gpu(processes={5004242: "20GiB"}, utilization=90), Gpu(), Gpu())
SHOW = "import os; print(os.environ.get('CUDA_VISIBLE_DEVICES'), os.environ.get('AUTOGPU_LEASE', '-')[:2])"


@pytest.fixture
def server(tmp_path, lease_folder):
    (tmp_path / "server").mkdir()
    with Server(LAB, folder=tmp_path / "server") as running:
        yield running


def autogpu(server, *arguments, **environ):
    return server.run([sys.executable, "-m", "autogpu", *arguments], environ=environ)


def test_picked_gpus_are_a_line_for_eval(server):
    done = autogpu(server, "pick", "--count", "2")
    assert done.stdout == f"export CUDA_VISIBLE_DEVICES={server.gpus[2].uuid},{server.gpus[1].uuid}\n"
    assert done.stderr.startswith("autogpu: GPU 2 and GPU 1 picked, not held: ")
    assert done.returncode == 0


@pytest.mark.parametrize(
    ("form", "printed"), [("uuid", "{0.uuid}"), ("index", "2"), ("docker", '"device={0.uuid}"')], ids=str
)
def test_the_forms_of_a_pick(server, form, printed):
    assert autogpu(server, "pick", "--format", form).stdout == printed.format(server.gpus[2]) + "\n"


def test_beside_a_card_in_mig_mode_numbers_are_not_certain_and_uuids_are_written():
    policy, whole = Policy(identifier="index"), gpu(1)
    numbered = listing([whole], policy, inventory(gpu(0), whole))
    assert numbered == {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "1"}
    # Before R570 CUDA counts whole cards first: number 1 would be the card in MIG mode.
    assert listing([whole], policy, inventory(*cut(0, 5), whole)) == {"CUDA_VISIBLE_DEVICES": whole.uuid}


def test_a_pick_regards_claims_and_says_why_not_the_others(server, tmp_path):
    held = server.popen(
        [sys.executable, "-m", "autogpu", "run", "--hold", "--", sys.executable, "-c", "input()"],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        assert "GPU 2 for python" in held.stderr.readline()
        done = autogpu(server, "pick", "--format", "index", "--explain")
    finally:
        held.communicate("\n", timeout=60)
    assert done.stdout == "1\n"
    assert "GPU 2: place" in done.stderr
    assert "claimed by python" in done.stderr


def test_where_none_is_free_and_the_policy_would_wait_the_status_says_later(server):
    done = autogpu(server, "pick", "--devices", "0", "--busy", "wait")
    assert (done.returncode, done.stdout) == (75, "(exit 75)\n")
    assert "no GPU" in done.stderr


def test_a_shell_that_evaluates_a_pick_of_nothing_has_its_status(server):
    line = f'eval "$({sys.executable} -m autogpu pick --devices 0 --busy wait)" && echo started; echo $?'
    done = server.run(["sh", "-c", line])
    assert done.stdout == "75\n"


def test_a_pick_asks_for_what_a_limit_leaves(server):
    server.change(1, processes={5004243: "8GiB"})
    assert autogpu(server, "pick", "--devices", "0,1", "--limit", "8GiB", "--format", "index").stdout == "1\n"
    assert autogpu(server, "pick", "--devices", "0", "--limit", "8GiB").returncode == 1


def test_a_pick_that_is_asked_wrongly_tells_eval_so(server):
    done = autogpu(server, "pick", "--count", "two")
    assert (done.returncode, done.stdout) == (2, "(exit 2)\n")


def test_a_pick_stays_inside_the_inherited_list(server):
    inherited = {"CUDA_VISIBLE_DEVICES": server.gpus[1].uuid}
    assert autogpu(server, "pick", "--format", "index", **inherited).stdout == "1\n"
    hidden = autogpu(server, "pick", CUDA_VISIBLE_DEVICES="-1")
    assert (hidden.returncode, hidden.stdout) == (1, "(exit 1)\n")
    assert "hides every GPU" in hidden.stderr


def test_without_a_driver_a_command_that_would_hold_a_gpu_starts_without_one():
    def held(*options):
        command = [sys.executable, "-m", "autogpu", "run", "--hold", *options, "--", "sh", "-c", "echo started; exit 7"]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    done, refused = held(), held("--busy", "error")
    said = "autogpu: no GPU for sh: no NVIDIA driver on this machine\n"
    assert (done.returncode, done.stdout, done.stderr) == (7, "started\n", said)
    assert held("--level", "quiet").stderr == ""
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr.startswith("autogpu: no NVIDIA driver on this machine\n")


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("./my-cuda-program", "my-cuda-program"),
        ("python code/train.py --lr 1", "train.py"),
        ("/opt/env/bin/python3.11 -u -W ignore -Xdev train.py", "train.py"),
        ("python -m pkg.train --fast", "pkg.train"),
        ("python -c code", "python"),
        ("python -uc code", "python"),
        ("python -Xdev -cprint(1) x", "python"),
        ("python -Bmpkg.train x", "pkg.train"),
        ("python -uW ignore - train.py", "python"),
        ("python --check-hash-based-pycs never train.py", "train.py"),
        ("python", "python"),
        ("python -V", "python"),
        ("pythonic x", "pythonic"),
    ],
)
def test_a_script_that_python_runs_gives_the_command_its_name(command, name):
    assert name_of(command.split()) == name


def test_what_python_runs_is_what_others_see(server, tmp_path, lease_folder):
    (tmp_path / "train.py").write_text("import sys; sys.stdin.read()")
    command = [sys.executable, "-m", "autogpu", "run", "--hold", "--", sys.executable, str(tmp_path / "train.py")]
    held = server.popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        assert held.stderr.readline().startswith("autogpu: GPU 2 for train.py: ")
        folder = find_folder({"AUTOGPU_LEASE_DIR": str(lease_folder)})
        assert [holder.script for holder in snapshot(folder).holders] == ["train.py"]
    finally:
        held.communicate(timeout=60)


@pytest.mark.parametrize(
    ("options", "remedy"),
    [
        (("--devices", "0"), "to wait for one, --busy wait; to share one, --busy share"),
        (("--need", "80GiB"), "`autogpu status --explain` shows what keeps it from each GPU"),
    ],
    ids=["busy", "never-fits"],
)
def test_a_remedy_is_named_once_as_an_option_and_where_it_helps(server, options, remedy):
    done = autogpu(server, "run", "--hold", "--busy", "error", *options, "--", "true")
    assert (done.returncode, done.stderr.splitlines()[1:]) == (1, [f"autogpu: {remedy}"])
    assert "select.busy" not in done.stderr


def test_without_a_driver_a_pick_fails_in_words():
    done = subprocess.run(
        [sys.executable, "-m", "autogpu", "pick"], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (1, "(exit 1)\n")
    assert done.stderr.startswith("autogpu: no NVIDIA driver on this machine\n")


@pytest.mark.parametrize("options", [(), ("--hold",)], ids=["run", "hold"])
@pytest.mark.parametrize(
    ("command", "status"),
    [
        (("sh", "-c", "exit 7"), 7),
        (("sh", "-c", "kill -TERM $$"), -signal.SIGTERM),
        (("sh", "-c", "kill -KILL $$"), -signal.SIGKILL),
        (("no-such-program",), 127),
        (("/etc/passwd",), 126),
    ],
    ids=["status", "signal", "killed", "not-found", "not-executable"],
)
def test_the_commands_end_is_the_end(server, options, command, status):
    assert autogpu(server, "run", *options, "--", *command).returncode == status


@pytest.mark.parametrize("options", [(), ("--hold",)], ids=["run", "hold"])
def test_streams_pass_through(server, options):
    command = [sys.executable, "-m", "autogpu", "run", *options, "--", "sh", "-c", "tr a-z A-Z; echo err >&2"]
    running = server.popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    out, errors = running.communicate("words\n", timeout=60)
    assert out == "WORDS\n"
    assert errors.endswith("err\n")


@pytest.mark.parametrize("options", [(), ("--hold",)], ids=["run", "hold"])
def test_a_signal_reaches_the_command(server, options):
    program = (
        "import os, signal\n"
        "def end(*_): os.write(1, b'told\\n'); os._exit(9)\n"
        "signal.signal(signal.SIGTERM, end); os.write(1, b'ready\\n')\n"
        "while True: signal.pause()"
    )
    command = [sys.executable, "-m", "autogpu", "run", *options, "--", sys.executable, "-c", program]
    running = server.popen(command, stdout=subprocess.PIPE)
    assert running.stdout.readline() == "ready\n"
    running.terminate()
    assert running.communicate(timeout=60)[0] == "told\n"
    assert running.returncode == 9


@pytest.mark.parametrize("options", [(), ("--hold",)], ids=["run", "hold"])
def test_ctrl_c_comes_once(server, options):
    program = (
        "import sys, time\n"
        "try: print('ready', flush=True); time.sleep(60)\n"
        "except KeyboardInterrupt: print('once', flush=True)\n"
        "time.sleep(0.3); print('end', flush=True)"
    )
    pid, terminal = pty.fork()
    if pid == 0:
        environ = {**os.environ, **server.environ}
        command = [sys.executable, "-m", "autogpu", "run", *options, "--", sys.executable, "-c", program]
        os.execvpe(command[0], command, environ)
    shown = b""
    try:
        while b"ready" not in shown:
            shown += os.read(terminal, 4096)
        os.write(terminal, b"\x03")
        while b"end" not in shown:
            shown += os.read(terminal, 4096)
        # Before the terminal is closed, which would hang up on it.
        _, status = os.waitpid(pid, 0)
    finally:
        os.close(terminal)
    assert b"once" in shown
    assert b"Traceback" not in shown
    assert os.WIFEXITED(status)


def test_ctrl_c_in_a_wait_is_a_line_and_the_end_by_that_signal(server):
    command = [sys.executable, "-m", "autogpu", "run", "--hold", "--busy", "wait", "--devices", "0", "--", "true"]
    waiting = server.popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert "waiting for a GPU" in waiting.stderr.readline()
    waiting.send_signal(signal.SIGINT)
    out, errors = waiting.communicate(timeout=60)
    assert (waiting.returncode, out) == (-signal.SIGINT, "")
    assert errors.split("\n") == ["", "autogpu: interrupted", ""]


def test_held_gpus_are_the_only_ones_that_the_command_sees_idlest_first(server):
    done = autogpu(server, "run", "--hold", "--count", "2", "--", sys.executable, "-c", SHOW)
    assert done.stdout == f"{server.gpus[2].uuid},{server.gpus[1].uuid} v1\n"


def test_what_is_shared_is_not_called_held(server, lease_folder):
    ask = f"{sys.executable} -m autogpu"
    done = autogpu(server, "run", "--hold", "--devices", "0", "--", "sh", "-c", f"{ask} pick; {ask} status --json")
    first, second = done.stderr.splitlines()
    assert first.startswith("autogpu: GPU 0 for sh: ")
    assert first.endswith(
        "; shared, not held: other jobs may come there, and only what a framework allocates is capped; "
        "to wait for a free one: --busy wait"
    )
    assert second.startswith("autogpu: GPU 0 picked, not held: shared with its parent process, sh (pid ")
    assert "capped at half" in done.stdout


def test_inside_of_what_is_held_status_and_pick_name_it(server):
    ask = f"{sys.executable} -m autogpu"
    done = autogpu(server, "run", "--hold", "--", "sh", "-c", f"{ask} pick --format index; {ask} status")
    picked, *shown = done.stdout.splitlines()
    assert picked == "2"
    assert any(line.startswith("A script started here would get GPU 2: shared with its parent") for line in shown)
    assert "GPU 2 picked, held already: " in done.stderr


def test_held_gpus_are_free_again_when_the_command_ends(server):
    for _ in range(2):
        done = autogpu(server, "run", "--hold", "--", "true")
        assert "GPU 2 for true: the idlest of 3" in done.stderr


def holding(server, program, **options):
    """A command that holds a GPU and has said that it runs."""
    command = [sys.executable, "-m", "autogpu", "run", "--hold", "--", *program]
    running = server.popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, **options)
    assert running.stdout.readline() == "runs\n"
    return running


def holders(lease_folder):
    return [holder.script for holder in snapshot(find_folder({"AUTOGPU_LEASE_DIR": str(lease_folder)})).holders]


def test_a_claim_outlives_the_process_that_made_it_and_ends_with_the_program(server, lease_folder):
    running = holding(server, ["sh", "-c", "exec 3>/dev/null; echo runs; exec cat >/dev/null"])
    running.kill()
    running.wait(60)
    assert holders(lease_folder) == ["sh"]
    done = autogpu(server, "run", "--hold", "--", "true")
    assert "GPU 1 for true" in done.stderr
    running.stdin.close()
    until(lambda: holders(lease_folder) == [])


def test_a_claim_lasts_as_long_as_a_daemon_that_the_program_left_behind(server, lease_folder):
    program = "import os, sys; os.fork() and (print('runs', flush=True), os._exit(0)); os.setsid(); sys.stdin.read()"
    running = holding(server, [sys.executable, "-c", program])
    assert running.wait(60) == 0
    assert len(holders(lease_folder)) == 1
    running.stdin.close()
    until(lambda: holders(lease_folder) == [])


@pytest.mark.parametrize("options", [(), ("--hold",)], ids=["run", "hold"])
def test_the_command_gets_the_signals_and_files_of_its_caller(server, options):
    program = (
        "import os, signal\n"
        "print(signal.getsignal(signal.SIGINT) is signal.SIG_IGN, signal.pthread_sigmask(0, []), os.read(3, 9))"
    )
    reader, writer = os.pipe()
    os.write(writer, b"for 3")

    def by_nohup():
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        os.dup2(reader, 3)

    command = [sys.executable, "-m", "autogpu", "run", *options, "--", sys.executable, "-c", program]
    running = server.popen(command, stdout=subprocess.PIPE, preexec_fn=by_nohup, close_fds=False)
    assert running.communicate(timeout=60)[0] == "True set() b'for 3'\n"
    os.close(reader)
    os.close(writer)


@pytest.mark.parametrize("options", [(), ("--hold",)], ids=["run", "hold"])
def test_an_empty_command_is_an_error_in_words(server, options):
    done = autogpu(server, "run", *options, "--", "")
    assert (done.returncode, "Traceback" in done.stderr) == (127, False)


@pytest.mark.parametrize("verb", ["status", "pick", "wait", "config", "run -- true", "run --hold -- true"])
def test_a_working_directory_that_is_gone_stops_no_command(server, tmp_path, verb):
    gone = tmp_path / "gone"
    gone.mkdir()
    command = f"cd {gone} && rmdir {gone} && exec {sys.executable} -m autogpu {verb}"
    done = server.run(["sh", "-c", command], environ={"PYTHONPATH": str(environments.ROOT)})
    assert (done.returncode, done.stderr.count("Traceback")) == (0, 0), done.stderr


def test_asking_makes_no_lease_folder(server, tmp_path):
    nowhere = tmp_path / "nowhere"
    for verb in (["status"], ["pick"], ["wait"], ["doctor"], ["config"]):
        autogpu(server, *verb, AUTOGPU_LEASE_DIR=str(nowhere))
        assert not nowhere.exists(), verb


def test_switched_off_the_command_runs_and_nothing_is_held(server):
    done = autogpu(server, "run", "--hold", "--", sys.executable, "-c", SHOW, AUTOGPU="0")
    assert (done.stdout, done.returncode) == ("None -\n", 0)
    assert "nothing is held: autogpu is switched off by AUTOGPU\n" in done.stderr


def test_a_flag_is_the_policy_of_the_command(server):
    program = "import os; print(os.environ['AUTOGPU_NEED'])"
    assert autogpu(server, "run", "--need", "6GiB", "--", sys.executable, "-c", program).stdout == "6GiB\n"


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--count", "two"), "--count: select.count can't be"),
        (("--cuont", "2"), "no option --cuont; did you mean --count?"),
    ],
    ids=["value", "name"],
)
def test_a_wrong_flag_starts_nothing(server, flags, said):
    done = autogpu(server, "run", *flags, "--", "echo", "started")
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr


def test_the_path_keeps_what_it_had_and_gets_no_empty_element(server):
    program = "import json, os; print(json.dumps(os.environ['PYTHONPATH'].split(os.pathsep)))"
    alone = json.loads(autogpu(server, "run", "--", sys.executable, "-c", program).stdout)
    assert len(alone) == 1
    both = json.loads(autogpu(server, "run", "--", sys.executable, "-c", program, PYTHONPATH="/mine").stdout)
    assert both == [*alone, "/mine"]
    assert alone[0].startswith("/")


@pytest.mark.tensorflow
@pytest.mark.timeout(900)
def test_an_environment_without_the_hook_gets_a_gpu_by_run(server):
    base = environments.tensorflow()
    python = environments.environment(base.resolve(), on_top_of=base)
    program = "import tensorflow as tf; print(tf.random.uniform((2, 2)).device[-5:])"
    done = server.run([str(python), "-m", "autogpu", "run", "--", str(python), "-c", program], timeout=300)
    assert done.stdout == "GPU:0\n", done.stderr
    assert "autogpu: GPU 2 " in done.stderr
    assert {call.gpu for call in server.calls(call="context")} == {2}
