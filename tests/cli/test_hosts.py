"""``autogpu status --on``: real servers over ssh, those that do not answer, and those that answer with anything."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path

import jsonschema
import pytest
import referencing

from autogpu.cli import hosts
from autogpu.cli.status_table import Frame
from autogpu.status.json import to_json
from autogpu.status.remote import Answer
from tests.gpusim import Gpu, Server
from tests.lease.conftest import until
from tests.support.environments import ROOT
from tests.support.holders import other_job
from tests.support.host_states import holder, host, waiter
from tests.support.ssh_hosts import SshHosts, why_not
from tests.support.values import gpu, inventory

SCHEMA = json.loads((ROOT / "docs" / "status.schema.json").read_text())
SCHEMA_OF_HOSTS = json.loads((ROOT / "docs" / "status-on.schema.json").read_text())
HERE = f"{shlex.quote(sys.executable)} -m autogpu"
EVIL = "\x1b]0;title\x07\x1b[2J\u202e"

needs_sshd = pytest.mark.skipif(bool(why_not()), reason=why_not() or "-")


@pytest.fixture
def ssh(tmp_path):
    folder = tmp_path / "ssh"
    folder.mkdir()
    with SshHosts(folder) as running:
        yield running


@pytest.fixture
def lab(ssh, tmp_path):
    """Two servers: ``lab1`` with two GPUs, and ``lab2`` with one that a job holds."""
    fleets = {"lab1": [Gpu(name="NVIDIA A100"), Gpu(name="NVIDIA A100")], "lab2": [Gpu(name="NVIDIA L4")]}
    with ExitStack() as stack:
        for name, gpus in fleets.items():
            leases = tmp_path / name / "leases"
            leases.mkdir(parents=True)
            leases.chmod(0o1777)
            server = stack.enter_context(Server(gpus, folder=tmp_path / name))
            environ = {**server.environ, "AUTOGPU_LEASE_DIR": str(leases), "PYTHONPATH": str(ROOT)}
            if name == "lab2":
                claims = {server.gpus[0].uuid: 6 << 30}
                stack.enter_context(other_job({"AUTOGPU_LEASE_DIR": str(leases)}, claims, script="bert.py"))
            ssh.add(name, environ)
        yield ssh


def validate(told):
    of_a_host = referencing.Resource.from_contents(SCHEMA)
    registry = referencing.Registry().with_resource("status.schema.json", of_a_host)
    jsonschema.Draft202012Validator(SCHEMA_OF_HOSTS, registry=registry).validate(told)


@pytest.mark.parametrize(
    "answer",
    [
        {"problem": None, "status": None},
        {"problem": "why", "status": {"version": 1}},
        {"problem": None, "status": {"version": 2}},
        {"status": None},
    ],
    ids=["neither", "both", "other-version", "no-reason"],
)
def test_the_schema_refuses_what_is_no_answer(answer):
    with pytest.raises(jsonschema.ValidationError):
        validate({"version": 1, "hosts": {"lab1": answer}})
    validate({"version": 1, "hosts": {"lab1": {"problem": "why", "status": None}}})


def asked(ssh, hosts, *options, **environ):
    command = [sys.executable, "-m", "autogpu", "status", "--on", hosts, "--timeout", "60s", *options]
    given = {**os.environ, "PATH": f"{ssh.bin}{os.pathsep}{os.environ['PATH']}", **environ}
    return subprocess.run(command, env=given, capture_output=True, text=True, timeout=120, check=False)


@needs_sshd
def test_each_server_has_its_own_part_of_the_page(lab):
    done = asked(lab, "lab1,lab2", "--remote-command", HERE)
    assert (done.returncode, done.stderr) == (0, "")
    first, second = re.split(r"^lab2, .* 0 of 1 GPU free$", done.stdout, flags=re.MULTILINE)
    assert first.startswith("lab1, ")
    assert (first.count("\nGPU "), second.count("\nGPU ")) == (2, 1)
    assert first.count("NVIDIA A100") == 2
    assert "Under `autogpu run` it would get GPU 1: " in first
    assert "bert.py" not in first
    assert re.search(r"^GPU 0  NVIDIA L4 .* busy\n +\S+ +bert\.py \(pid \d+\) claims 6\.0 GiB", second, re.MULTILINE)


@needs_sshd
def test_json_is_an_object_by_host(lab):
    lab.know("gone", unused_port())
    done = asked(lab, "lab2,gone,lab1", "--json", "--remote-command", HERE)
    told = json.loads(done.stdout)
    validate(told)
    assert (done.returncode, told["version"], list(told["hosts"])) == (1, 1, ["lab2", "gone", "lab1"])
    for name, gpus in (("lab1", 2), ("lab2", 1)):
        answer = told["hosts"][name]
        assert (len(answer["status"]["gpus"]), answer["problem"]) == (gpus, None)
    assert told["hosts"]["gone"]["status"] is None
    assert told["hosts"]["gone"]["problem"].endswith("Connection refused")


@needs_sshd
@pytest.mark.parametrize(
    ("name", "command", "reason"),
    [
        ("gone", HERE, "ssh: connect to host 127.0.0.1 port .*: Connection refused"),
        ("stranger", HERE, ".*: Permission denied \\(publickey\\)\\."),
        ("unknown", HERE, "Host key verification failed\\."),
        ("lab1", "no-such-program", ".*no-such-program.*not found; --remote-command says how autogpu is started there"),
        ("lab1", "sh -c 'echo broken >&2; exit 3' --", "what was started there ended with status 3: broken"),
        ("lab1", "sh -c 'exit 1' --", "what was started there ended with status 1"),
        ("lab1", "echo {", "this is not what `autogpu status --json` prints: .*"),
        ("lab1", "echo", "what was printed there is no status of autogpu; --remote-command says .*"),
        ("lab1", "-V", "what was started there ended with status [^0].*|.*not found; --remote-command .*"),
    ],
    ids=[
        "refused",
        "no-key",
        "unknown-host-key",
        "no-autogpu",
        "fails",
        "fails-silently",
        "no-json",
        "no-answer",
        "option",
    ],
)
def test_a_host_that_does_not_answer_costs_a_row_with_the_reason(lab, name, command, reason):
    lab.know("gone", unused_port())
    lab.add("stranger", client="IdentityFile /dev/null")
    lab.add("unknown", client="UserKnownHostsFile /dev/null\n  HostKeyAlias other")
    done = asked(lab, name, "--remote-command", command)
    assert (done.returncode, done.stderr) == (1, "")
    assert re.fullmatch(f"{name}  (?:{reason})\n", done.stdout), done.stdout


@needs_sshd
def test_what_others_answer_is_shown_beside_one_that_does_not(lab):
    lab.know("gone", unused_port())
    done = asked(lab, "gone,lab1", "--remote-command", HERE)
    assert done.returncode == 1
    assert re.match(r"gone  ssh: .*\n\nlab1, ", done.stdout)
    assert done.stdout.count("\nGPU ") == 2


@needs_sshd
def test_servers_are_asked_at_the_same_time_and_none_for_longer_than_allowed(ssh):
    with socket.create_server(("127.0.0.1", 0), backlog=16) as silent:
        names = [f"silent{number}" for number in range(5)]
        for name in names:
            ssh.know(name, silent.getsockname()[1])
        begun_s = time.monotonic()
        done = asked(ssh, ",".join(names), "--timeout", "3s")
        took_s = time.monotonic() - begun_s
    assert done.stdout == "\n".join(f"{name}  no answer within 3 s\n" for name in names)
    assert done.returncode == 1
    assert 3 <= took_s < 15
    assert ssh.clients_left() == []


@needs_sshd
def test_ctrl_c_ends_every_ssh(ssh):
    with socket.create_server(("127.0.0.1", 0), backlog=16) as silent:
        ssh.know("silent", silent.getsockname()[1])
        command = [sys.executable, "-m", "autogpu", "status", "--on", "silent", "--timeout", "60s"]
        environ = {**os.environ, "PATH": f"{ssh.bin}{os.pathsep}{os.environ['PATH']}"}
        asking = subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        connection, _ = silent.accept()
        with connection:
            asking.send_signal(signal.SIGINT)
            printed, errors = asking.communicate(timeout=60)
    assert (asking.returncode, printed, errors.strip()) == (-signal.SIGINT, "", "autogpu: interrupted")
    assert ssh.clients_left() == []


@needs_sshd
def test_what_a_shells_start_up_file_prints_does_no_harm(lab, tmp_path):
    environ = {"WELCOME": "Welcome {", "PYTHONPATH": str(ROOT), "AUTOGPU_LEASE_DIR": str(tmp_path / "none")}
    lab.add("chatty", environ, forced='echo "$WELCOME"; eval "$SSH_ORIGINAL_COMMAND"; echo bye')
    done = asked(lab, "chatty", "--remote-command", HERE)
    name, failure = done.stdout.splitlines()[:2]
    assert (done.returncode, name.partition(",")[0], failure) == (0, "chatty", "No NVIDIA driver on this machine.")


MACHINE = inventory(gpu(0, used_gib=3, pids=[7, 99], name=EVIL), gpu(1))
HONEST = json.loads(json.dumps(to_json(host(MACHINE, [holder("a", (0, 24), script=EVIL)], [waiter(1, EVIL)]))))


@contextmanager
def changed(*path):
    """The part of an honest answer at ``path``, to be changed for a while."""
    part = json.loads(json.dumps(HONEST))
    yield part, _inside(part, path)


def _inside(part, path):
    for key in path:
        part = part[key]
    return part


def answers():
    yield "honest-with-evil-names", HONEST, True
    for name, path, key, value, is_shown in (
        ("state", ("gpus", 0), "state", EVIL, True),
        ("preview-of-no-gpu", ("preview",), "uuids", ["GPU-none"], True),
        ("verdict", ("preview",), "verdict", EVIL, True),
        ("text-for-a-size", ("gpus", 0), "memory_used_bytes", EVIL, False),
        ("negative", ("gpus", 0), "memory_used_bytes", -(10**12), False),
        ("endless", ("gpus", 0), "memory_used_bytes", 10**400, False),
        ("not-a-number", ("gpus", 0), "idle_s", float("nan"), False),
        ("a-list-for-a-name", ("gpus", 0), "name", [EVIL], False),
        ("a-text-for-a-list", (), "gpus", EVIL, False),
        ("a-text-for-an-object", ("gpus",), 0, EVIL, False),
        ("a-version-to-come", (), "version", 99, False),
    ):
        with changed(*path) as (whole, part):
            part[key] = value
        yield name, whole, is_shown


ANSWERS = list(answers())


@needs_sshd
@pytest.mark.parametrize(("answer", "is_shown"), [a[1:] for a in ANSWERS], ids=[a[0] for a in ANSWERS])
def test_nothing_that_a_host_says_reaches_the_terminal_as_it_is(ssh, tmp_path, answer, is_shown):
    says_anything(ssh, tmp_path, json.dumps(answer, ensure_ascii=False), is_shown)


@needs_sshd
@pytest.mark.parametrize(
    "text",
    ["{" + EVIL, '{"a":' * 50_000, "{" * 5_000_000, '{"version": 1, "x": ' + "9" * 5000 + "}", "{\xff", "words"],
    ids=["no-json", "deep", "long", "digits", "no-text", "no-answer"],
)
def test_no_text_of_a_host_is_too_much(ssh, tmp_path, text):
    says_anything(ssh, tmp_path, text, is_shown=False)


def says_anything(ssh, tmp_path, text, is_shown):
    file = tmp_path / "answer"
    file.write_bytes(text.encode("latin-1" if "\xff" in text else "utf-8"))
    ssh.add("liar", forced=f"cat {file}; printf '{EVIL}\\n' >&2")
    done = asked(ssh, "liar")
    assert done.returncode == (0 if is_shown else 1)
    assert "Traceback" not in done.stderr
    said = done.stdout + done.stderr
    assert [c for c in said if not c.isprintable() and c != "\n"] == []
    if is_shown:
        assert done.stdout.startswith("liar, ")
    else:
        assert done.stdout.startswith("liar  ")
        assert len(said) < 600
    told = asked(ssh, "liar", "--json").stdout
    assert told.isascii()
    assert [c for c in told if not c.isprintable() and c != "\n"] == []


@needs_sshd
def test_a_host_that_prints_without_end_is_left(ssh):
    ssh.add("endless", forced="yes")
    done = asked(ssh, "endless")
    assert (done.returncode, done.stdout) == (1, "endless  its answer is longer than 4 MiB\n")
    until(lambda: ssh.clients_left() == [])


@needs_sshd
def test_warnings_without_end_do_not_hold_an_answer_up(ssh, tmp_path):
    file = tmp_path / "answer"
    file.write_text(json.dumps(HONEST))
    ssh.add("warns", forced=f"head -c 1000000 /dev/zero >&2; cat {file}")
    assert asked(ssh, "warns").returncode == 0


@pytest.fixture
def stand_in(tmp_path):
    """An ``ssh`` that does as a script says."""
    (tmp_path / "bin").mkdir()

    def says(script):
        program = tmp_path / "bin" / "ssh"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        command = [sys.executable, "-m", "autogpu", "status", "--on", "lab1", "--timeout", "60s"]
        environ = {**os.environ, "PATH": f"{program.parent}{os.pathsep}{os.environ['PATH']}"}
        begun_s = time.monotonic()
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120, check=False)
        assert time.monotonic() - begun_s < 50
        return done

    return says


def test_a_reason_that_comes_after_the_end_of_the_answer_is_told(stand_in):
    done = stand_in("exec >&-; sleep 0.3; echo the reason >&2; exit 255")
    assert (done.returncode, done.stdout) == (1, "lab1  the reason\n")


def test_what_ssh_leaves_in_the_background_is_not_waited_for(stand_in, tmp_path):
    answer, pid = tmp_path / "answer", tmp_path / "pid"
    answer.write_text(json.dumps(HONEST))
    try:
        done = stand_in(f"sleep 300 >/dev/null </dev/null & echo $! > {pid}; cat {answer}")
    finally:
        os.kill(int(pid.read_text()), signal.SIGKILL)
    assert (done.returncode, done.stdout[:5]) == (0, "lab1,")


@pytest.fixture
def interrupted(tmp_path):
    """What ``autogpu status --on`` ends with where ``ssh`` is another program, and which of its processes are left."""
    (tmp_path / "bin").mkdir()
    # In what each process has inherited, since one may be left that has not come to say anything.
    mark = f"OF_TEST={tmp_path}".encode()

    def left():
        return [pid for pid in Path("/proc").glob("[0-9]*") if mark in _environ(pid)]

    def ask(program, count):
        ssh = tmp_path / "bin" / "ssh"
        ssh.write_text(program)
        ssh.chmod(0o755)
        hosts = ",".join(f"lab{number}" for number in range(count))
        command = [sys.executable, "-m", "autogpu", "status", "--on", hosts, "--timeout", "100s"]
        environ = {**os.environ, "PATH": f"{ssh.parent}{os.pathsep}{os.environ['PATH']}", "OF_TEST": str(tmp_path)}
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=200, check=False)
        return (done.returncode, done.stdout, done.stderr.strip()), left()

    yield ask
    for pid in left():
        os.kill(int(pid.name), signal.SIGKILL)


def _environ(process):
    try:
        return (process / "environ").read_bytes().split(b"\0")
    except OSError:  # it has ended, or belongs to another user
        return []


INTERRUPTED = (-signal.SIGINT, "", "autogpu: interrupted")


def test_ctrl_c_while_an_ssh_is_being_started_leaves_none_behind(interrupted):
    # Each interrupts as soon as it runs: the first ones while others are being started.
    done, left = interrupted("#!/bin/sh\nkill -INT $PPID\nexec sleep 300 >/dev/null 2>&1\n", 16)
    assert left == []
    assert done == INTERRUPTED


# The last that comes interrupts. Each waits, when it is told to end, until all were told, and interrupts again.
IMPATIENT = """\
#!{python} -IS
import os, pathlib, signal, sys, time

FOLDER, COUNT, WHEN = pathlib.Path({folder!r}), {count}, {when!r}

def until_all(did):
    (FOLDER / f"{{did}}.{{os.getpid()}}").touch()
    while len(list(FOLDER.glob(f"{{did}}.*"))) < COUNT:
        time.sleep(0.02)

def told(number, frame):
    until_all("told")
    os.kill(os.getppid(), signal.SIGINT)
    os._exit(0)

signal.signal(signal.SIGTERM, told)
until_all("came")
if WHEN == "said":
    sys.stdout.write({answer!r})
    sys.stdout.flush()
    os.close(1)
    os.close(2)
os.kill(os.getppid(), signal.SIGINT)
while True:
    signal.pause()
"""


@pytest.mark.parametrize("when", ["asked", "said"])
def test_all_ssh_are_told_to_end_at_once_and_a_second_ctrl_c_leaves_none_behind(interrupted, tmp_path, when):
    folder, count = tmp_path / "did", 4
    folder.mkdir()
    values = {"folder": str(folder), "count": count, "when": when, "answer": json.dumps(HONEST)}
    done, left = interrupted(IMPATIENT.format(python=sys.executable, **values), count)
    assert left == []
    assert done == INTERRUPTED
    # Each would wait without end for one that was told only after it, and be killed.
    assert len(list(folder.glob("told.*"))) == count


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--on", ""), "'' is no host; write them as --on host1,host2"),
        (("--on", "lab1,,lab2"), "'' is no host"),
        (("--on", "-oProxyCommand=touch x"), "'-oProxyCommand=touch x' is no host"),
        (("--on", "lab1", "--watch"), "--on goes with --json, --remote-command and --timeout alone"),
        (("--on", "lab1", "--format", "prometheus"), "--on goes with --json, --remote-command and --timeout alone"),
        (("--on", "lab1", "--timeout", "soon"), 'can\'t be "soon"'),
    ],
    ids=["none", "empty", "option", "watch", "prometheus", "timeout"],
)
def test_what_can_not_be_asked_is_a_usage_error(tmp_path, options, said):
    command = [sys.executable, "-m", "autogpu", "status", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert not Path("x").exists()


def test_each_host_is_asked_once():
    assert hosts.named("b, a,b") == ["b", "a"]


def test_without_ssh_one_line_says_so(tmp_path):
    command = [sys.executable, "-m", "autogpu", "status", "--on", "lab1"]
    environ = {**os.environ, "PATH": str(tmp_path)}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "autogpu: there is no ssh on this machine\nautogpu: install OpenSSH's client\n"


def test_a_server_without_a_driver_is_one_that_answers():
    there = host(inventory())
    page = "\n".join(
        line.plain for line in hosts.lines([Answer("a", there), Answer("b", None, "why")], Frame(100, True))
    )
    assert page.startswith("a, ")
    assert page.endswith("\n\nb  why")


def unused_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]
