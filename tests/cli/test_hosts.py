"""``autogpu status --on``: real servers over ssh, those that do not answer, and those that answer with anything."""

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import jsonschema
import pytest
import referencing

from autogpu.cli import main as frame
from autogpu.users import user_name
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


def validate(told):
    of_a_host = referencing.Resource.from_contents(SCHEMA)
    registry = referencing.Registry().with_resource("status.schema.json", of_a_host)
    jsonschema.Draft202012Validator(SCHEMA_OF_HOSTS, registry=registry).validate(told)


def command_for(hosts, *options, timeout_s=60.0):
    """The command, which gives each host more time than a person's: here all share a busy machine."""
    program = f"from autogpu.status import remote; remote.TIMEOUT_S = {timeout_s}; from autogpu.cli import main"
    return [sys.executable, "-c", f"{program}; main.main()", "status", "--on", hosts, *options]


def with_ssh(folder):
    """An environment in which ``ssh`` is the program in ``folder``."""
    return {**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}


def asked(folder, hosts, *options, **time):
    command = command_for(",".join(hosts) if isinstance(hosts, dict) else hosts, *options, **time)
    return subprocess.run(command, env=with_ssh(folder), capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """Servers: ``lab1`` with two GPUs, ``lab2`` with one that a job holds, and some that do not answer."""
    folder = tmp_path_factory.mktemp("lab")
    fleets = {"lab1": [Gpu(name="NVIDIA A100"), Gpu(name="NVIDIA A100")], "lab2": [Gpu(name="NVIDIA L4")]}
    with SshHosts(folder) as ssh, ExitStack() as stack:
        for name, gpus in fleets.items():
            leases = folder / f"of-{name}" / "leases"
            leases.mkdir(parents=True)
            leases.chmod(0o1777)
            server = stack.enter_context(Server(gpus, folder=leases.parent))
            environ = {**server.environ, "AUTOGPU_LEASE_DIR": str(leases), "PYTHONPATH": str(ROOT)}
            if name == "lab2":
                stack.enter_context(other_job(environ, {server.gpus[0].uuid: 6 << 30}, script="bert.py"))
            ssh.add(name, environ)
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            ssh.know("gone", taken.getsockname()[1])
        ssh.add("stranger", client="IdentityFile /dev/null")
        ssh.add("unknown", client="UserKnownHostsFile /dev/null\n  HostKeyAlias other")
        environ = {"WELCOME": "Welcome {", "PYTHONPATH": str(ROOT), "AUTOGPU_LEASE_DIR": str(folder / "none")}
        ssh.add("chatty", environ, forced='echo "$WELCOME"; eval "$SSH_ORIGINAL_COMMAND"; echo bye')
        ssh.add("endless", forced="yes")
        yield ssh


@pytest.mark.slow
@pytest.mark.skipif(bool(why_not()), reason=why_not() or "-")
@pytest.mark.xdist_group("sshd")
class TestRealServers:
    """Each host is an sshd of its own, which is there for all of these."""

    def test_each_server_has_its_own_part_of_the_page(self, lab):
        done = asked(lab.bin, "lab1,lab2,chatty", "--remote-command", HERE)
        assert (done.returncode, done.stderr) == (0, "")
        first, second = re.split(r"^lab2, .* 0 of 1 GPU free$", done.stdout, flags=re.MULTILINE)
        assert first.startswith("lab1, ")
        assert (first.count("\nGPU "), second.count("\nGPU ")) == (2, 1)
        assert first.count("A100") == 2
        assert "Under `autogpu run` a script would get GPU 1: " in first
        # With 35 °C and 30 W, as the simulated driver tells of one that does nothing.
        assert re.search(rf"^GPU 0  L4 .* 0 % +35 +30 +busy {user_name(os.getuid())}$", second, re.MULTILINE)
        assert "bert.py" not in done.stdout
        # What a shell's start-up file prints does no harm.
        assert re.search(r"^chatty, .*\nNo NVIDIA driver on this machine\.$", second, re.MULTILINE)

    def test_the_whole_page_of_each_server_has_the_jobs_as_well(self, lab):
        done = asked(lab.bin, "lab1,lab2", "--explain", "--remote-command", HERE)
        row = r"^GPU 0  L4 .* busy\n +\S+ +bert\.py \(pid \d+\) uses 0\.0 of 6\.0 GiB"
        assert re.search(row, done.stdout, re.MULTILINE)
        assert "Under `autogpu run` it would get GPU 1: " in done.stdout

    def test_json_is_an_object_by_host(self, lab):
        done = asked(lab.bin, "lab2,gone,lab1", "--json", "--remote-command", HERE)
        told = json.loads(done.stdout)
        validate(told)
        assert (done.returncode, told["version"], list(told["hosts"])) == (1, 1, ["lab2", "gone", "lab1"])
        for name, gpus in (("lab1", 2), ("lab2", 1)):
            answer = told["hosts"][name]
            assert (len(answer["status"]["gpus"]), answer["problem"]) == (gpus, None)
        assert told["hosts"]["gone"]["status"] is None
        assert told["hosts"]["gone"]["problem"].endswith("Connection refused")

    def test_a_host_that_does_not_answer_costs_a_row_with_the_reason(self, lab):
        done = asked(lab.bin, "gone,stranger,unknown,lab1", "--remote-command", HERE)
        assert (done.returncode, done.stderr) == (1, "")
        page = (
            r"gone  ssh: connect to host 127.0.0.1 port .*: Connection refused\n\n"
            r"stranger  .*: Permission denied \(publickey\)\.\n\n"
            r"unknown  Host key verification failed\.\n\n"
            r"lab1, (?s:.*\nGPU .*\nGPU .*)"
        )
        assert re.fullmatch(page, done.stdout), done.stdout

    def test_servers_are_asked_at_the_same_time_and_none_for_longer_than_allowed(self, lab):
        with socket.create_server(("127.0.0.1", 0), backlog=32) as silent:
            names = [f"silent{number}" for number in range(12)]
            for name in names:
                lab.know(name, silent.getsockname()[1])
            begun_s = time.monotonic()
            done = asked(lab.bin, ",".join(names), timeout_s=2.0)
            took_s = time.monotonic() - begun_s
        assert done.stdout == "\n".join(f"{name}  no answer within 2 s\n" for name in names)
        assert done.returncode == 1
        assert 2 <= took_s < 2 * len(names)
        assert lab.clients_left() == []

    def test_a_host_that_prints_without_end_is_left(self, lab):
        done = asked(lab.bin, "endless")
        assert (done.returncode, done.stdout) == (1, "endless  its answer is longer than 4 MiB\n")
        until(lambda: lab.clients_left() == [])


@pytest.fixture
def stand_in(tmp_path):
    """Make a script the ``ssh`` of the folder that is returned."""

    def is_there(script):
        (tmp_path / "ssh").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "ssh").chmod(0o755)
        return tmp_path

    return is_there


@pytest.fixture
def answering(stand_in, tmp_path):
    """The same for hosts that give these answers, by their names."""

    def is_there(answers, beside=":"):
        for name, answer in answers.items():
            text = answer if isinstance(answer, str) else json.dumps(answer, ensure_ascii=False)
            (tmp_path / name).write_bytes(text.encode("utf-8", "surrogateescape"))
        # ssh [options] host command
        return stand_in(f'for word; do test -f {tmp_path}/"$word" && host=$word; done\n{beside}\ncat {tmp_path}/$host')

    return is_there


MACHINE = inventory(gpu(0, used_gib=3, pids=[7, 99], name=EVIL), gpu(1))
HONEST = json.loads(json.dumps(host(MACHINE, [holder("a", (0, 24), script=EVIL)], [waiter(1, EVIL)]).to_json()))


def changed(path, key, value):
    """An honest answer with another value in the part of it at ``path``."""
    whole = part = json.loads(json.dumps(HONEST))
    for step in path:
        part = part[step]
    part[key] = value
    return whole


# By the name of a host, what it answers.
SHOWN = {
    "evil-names": HONEST,
    "state": changed(("gpus", 0), "state", EVIL),
    "health": changed(("gpus", 0), "health_problems", [EVIL]),
    "preview-of-no-gpu": changed(("preview",), "uuids", ["GPU-none"]),
    "verdict": changed(("preview",), "verdict", EVIL),
    "a-far-year": changed((), "time_s", 2**53 - 1),
}
NOT_SHOWN = {
    "a-time-without-a-date": changed((), "time_s", 9e18),
    "a-text-for-a-size": changed(("gpus", 0), "memory_used_bytes", EVIL),
    "no-json": "{" + EVIL,
    "deep": '{"a":' * 50_000,
    "long": "{" * 5_000_000,
    "digits": '{"version": 1, "x": ' + "9" * 5000 + "}",
    "no-text": "{\udcff",
    "no-answer": "words",
}


@pytest.mark.slow
def test_nothing_that_a_host_says_reaches_the_terminal_as_it_is(answering):
    # Warnings without end do not hold an answer up.
    warns = f"printf '{EVIL}\\n' >&2; test $host != verdict || head -c 1000000 /dev/zero >&2"
    ssh = answering({**SHOWN, **NOT_SHOWN}, warns)
    shown, not_shown = asked(ssh, SHOWN), asked(ssh, NOT_SHOWN)
    for done, status in ((shown, 0), (not_shown, 1)):
        assert (done.returncode, "Traceback" in done.stderr) == (status, False)
        assert [c for c in done.stdout + done.stderr if not c.isprintable() and c != "\n"] == []
    assert re.findall(r"^([\w-]+), ", shown.stdout, re.MULTILINE) == list(SHOWN)
    rows = [line for line in not_shown.stdout.splitlines() if line]
    assert [row.partition("  ")[0] for row in rows] == list(NOT_SHOWN)
    assert max(map(len, rows)) < 600
    told = asked(ssh, {**SHOWN, **NOT_SHOWN}, "--json").stdout
    assert told.isascii()
    assert [c for c in told if not c.isprintable() and c != "\n"] == []


HOW = "and printed no status of autogpu; --remote-command says how it is started there"
FAILURES = {
    "fails": ("echo broken >&2; exit 3", f"what was started there ended with status 3: broken {HOW}"),
    "silent": ("exit 1", f"what was started there ended with status 1 {HOW}"),
    "no-json": ("echo {", "this is not what `autogpu status --json` prints: .*"),
    "no-answer": ("echo status", f"what was started there ended with status 0 {HOW}"),
    "late": ("exec >&-; sleep 0.3; echo the reason >&2; exit 255", "the reason"),
}


@pytest.mark.slow
def test_what_fails_there_is_told_in_a_row(stand_in):
    cases = "".join(f"*' {name} '*) {script} ;;\n" for name, (script, _) in FAILURES.items())
    done = asked(stand_in(f'case " $* " in\n{cases}esac'), FAILURES)
    assert (done.returncode, done.stderr) == (1, "")
    rows = "\n\n".join(f"{name}  {reason}" for name, (_, reason) in FAILURES.items())
    assert re.fullmatch(f"{rows}\n", done.stdout), done.stdout


@pytest.mark.slow
def test_what_ssh_leaves_in_the_background_is_not_waited_for(stand_in, tmp_path):
    answer, pid = tmp_path / "answer", tmp_path / "pid"
    answer.write_text(json.dumps(HONEST))
    begun_s = time.monotonic()
    try:
        done = asked(stand_in(f"sleep 300 >/dev/null </dev/null & echo $! > {pid}; cat {answer}"), "lab1")
    finally:
        os.kill(int(pid.read_text()), signal.SIGKILL)
    assert (done.returncode, done.stdout[:5]) == (0, "lab1,")
    assert time.monotonic() - begun_s < 50


@pytest.mark.slow
def test_ctrl_c_leaves_no_ssh_behind(stand_in, tmp_path):
    """As a terminal has it: SIGINT comes to all that it has started."""
    ssh = stand_in(f"echo $$ >> {tmp_path}/pids; exec sleep 300")
    options = {"env": with_ssh(ssh), "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command_for("lab1,lab2,lab3"), start_new_session=True, **options) as asking:
        until(lambda: (tmp_path / "pids").exists() and len((tmp_path / "pids").read_text().split()) == 3)
        os.killpg(asking.pid, signal.SIGINT)
        assert asking.communicate(timeout=60) == ("", "\nautogpu: interrupted\n")
    assert asking.returncode == -signal.SIGINT
    assert not [pid for pid in (tmp_path / "pids").read_text().split() if Path(f"/proc/{pid}").exists()]


@pytest.mark.slow
def test_one_users_part_of_each_host(answering):
    ssh = answering({"lab1": HONEST, "lab2": host(inventory(gpu(0)), [], [waiter(1, "w.py")]).to_json()})
    shown = asked(ssh, "lab1,lab2", "--user", "ann").stdout
    assert re.findall("^(?:lab.|GPU .)", shown, re.MULTILINE) == ["lab1", "GPU 0", "lab2"]
    assert shown.endswith("\nann has no GPU and no place in the queue.\n")
    told = json.loads(asked(ssh, "lab1,lab2", "--user", "bob", "--json").stdout)["hosts"]
    assert [len(told[name]["status"]["queue"]) for name in ("lab1", "lab2")] == [1, 1]


@pytest.mark.skipif(bool(why_not()), reason=why_not() or "-")
def test_what_is_no_host_is_no_option_of_ssh_and_each_is_asked_once(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert frame.run(["status", "--on", "-oProxyCommand=touch x, -oProxyCommand=touch x,"]) == 1
    first, second = capsys.readouterr().out.split("\n\n")
    assert (first.startswith("-oProxyCommand=touch x  "), second.startswith("  ")) == (True, True)
    assert not (tmp_path / "x").exists()


def test_without_ssh_one_line_says_so(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert frame.run(["status", "--on", "lab1"]) == 1
    said = "autogpu: there is no ssh on this machine\nautogpu: install OpenSSH's client\n"
    assert capsys.readouterr() == ("", said)
