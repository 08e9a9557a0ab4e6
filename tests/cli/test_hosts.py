"""``autogpu status --on HOSTS``: a script replaces ``ssh``, so that a host can answer well, fail, or send garbage."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import jsonschema
import pytest
import referencing

from autogpu.cli import main as frame
from autogpu.status import remote
from autogpu.status.model import Answer, RemoteFault, RemoteProblem
from autogpu.users import user_name
from tests.gpusim import Gpu, Server
from tests.lease.conftest import until
from tests.support.environments import ROOT
from tests.support.holders import other_job
from tests.support.host_states import holder, host, waiter
from tests.support.values import gpu, inventory

EVIL = "\x1b]0;title\x07\x1b[2J\u202e"


def command_for(hosts, *options, timeout_s=60.0):
    """Return the command with a longer timeout than users have, because here all hosts share one busy machine."""
    program = f"from autogpu.status import remote; remote.TIMEOUT_S = {timeout_s}; from autogpu.cli import main"
    return [sys.executable, "-c", f"{program}; main.main()", "status", "--on", hosts, *options]


def with_ssh(folder):
    return {**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}


def asked(folder, hosts, *options, **time):
    command = command_for(",".join(hosts) if isinstance(hosts, dict) else hosts, *options, **time)
    return subprocess.run(command, env=with_ssh(folder), capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture
def stand_in(tmp_path):
    """Return a function that writes a shell script as the program ``ssh`` and returns the folder of that program."""

    def is_there(script):
        (tmp_path / "ssh").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "ssh").chmod(0o755)
        return tmp_path

    return is_there


@pytest.fixture
def answering(stand_in, tmp_path):
    """Return a function that writes an ``ssh`` program. It runs ``beside`` and prints the host's ``answers`` entry."""

    def is_there(answers, beside=":"):
        for name, answer in answers.items():
            text = answer if isinstance(answer, str) else json.dumps(answer, ensure_ascii=False)
            (tmp_path / name).write_bytes(text.encode("utf-8", "surrogateescape"))
        # ssh [options] host command
        return stand_in(f'for word; do test -f {tmp_path}/"$word" && host=$word; done\n{beside}\ncat {tmp_path}/$host')

    return is_there


def environment_file(server, leases):
    leases.mkdir()
    leases.chmod(0o1777)
    environ = {**server.environ, "AUTOGPU_LEASE_DIR": str(leases), "PYTHONPATH": str(ROOT)}
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in environ.items()), environ


@pytest.mark.slow
def test_each_host_has_its_own_section_of_the_output(stand_in, tmp_path):
    here = f"{shlex.quote(sys.executable)} -m autogpu"
    (tmp_path / "gone.env").write_text("echo Connection refused >&2; exit 255\n")
    # ssh -T -o BatchMode=yes -- HOST COMMAND
    ssh = stand_in(f'. {tmp_path}/"$5".env; echo "Welcome {{"; eval "$6"; echo bye')
    with ExitStack() as stack:
        for name, gpus in (("lab1", [Gpu(name="NVIDIA A100")] * 2), ("lab2", [Gpu(name="NVIDIA L4")])):
            (tmp_path / name).mkdir()
            server = stack.enter_context(Server(gpus, folder=tmp_path / name))
            text, environ = environment_file(server, tmp_path / name / "leases")
            (tmp_path / f"{name}.env").write_text(text)
        stack.enter_context(other_job(environ, {server.gpus[0].uuid: 6 << 30}, script="bert.py"))
        page = asked(ssh, "lab1,gone,lab2", "--remote-command", here)
        told = json.loads(asked(ssh, "lab1,gone,lab2", "--json", "--remote-command", here).stdout)
    assert (page.returncode, page.stderr) == (1, "")
    first, second = page.stdout.split("\ngone  Connection refused\n\n")
    assert (first[:6], first.count("\nGPU "), first.count("A100")) == ("lab1, ", 2, 2)
    assert re.match("lab2, .* 0 of 1 GPU free\n", second)
    assert re.search(rf"^GPU 0  L4 .* busy {user_name(os.getuid())}$", second, re.MULTILINE)
    schema = json.loads((ROOT / "docs" / "status.schema.json").read_text())
    registry = referencing.Registry().with_resource("status.schema.json", referencing.Resource.from_contents(schema))
    of_hosts = json.loads((ROOT / "docs" / "status-on.schema.json").read_text())
    jsonschema.Draft202012Validator(of_hosts, registry=registry).validate(told)
    assert [each["problem"] for each in told["hosts"].values()] == [None, "Connection refused", None]


@pytest.mark.slow
def test_hosts_that_do_not_answer_are_awaited_at_the_same_time(stand_in, monkeypatch):
    names = [f"silent{number}" for number in range(12)]
    ssh = stand_in('test "$5" = endless && exec yes; exec sleep 300')
    monkeypatch.setenv("PATH", with_ssh(ssh)["PATH"])
    monkeypatch.setattr(remote, "TIMEOUT_S", 3.0)
    begun_s = time.monotonic()
    *silent, endless = remote.ask_hosts([*names, "endless"], "autogpu")
    assert time.monotonic() - begun_s < 3 * len(names)
    assert silent == [Answer(name, None, RemoteProblem(RemoteFault.NO_ANSWER, number=3.0)) for name in names]
    assert endless == Answer("endless", None, RemoteProblem(RemoteFault.TOO_LARGE, number=4))


MACHINE = inventory(gpu(0, used_gib=3, pids=[7, 99], name=EVIL), gpu(1))
HONEST = json.loads(json.dumps(host(MACHINE, [holder("a", (0, 24), script=EVIL)], [waiter(1, EVIL)]).to_json()))


def changed(path, key, value):
    """Return a copy of ``HONEST`` with ``value`` under ``key`` in the part at ``path``."""
    whole = part = json.loads(json.dumps(HONEST))
    for step in path:
        part = part[step]
    part[key] = value
    return whole


# Answers of hosts, keyed by host name. `status` must show those in SHOWN and reject those in NOT_SHOWN.
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
def test_control_characters_from_hosts_never_reach_the_terminal(answering):
    # A host writes a megabyte to stderr; `status` must read its answer nevertheless.
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


@pytest.mark.slow
def test_html_status_has_each_host_or_the_reason_and_exits_with_0(answering, tmp_path):
    ssh = answering({"lab1": changed(("gpus", 0, "jobs", 0), "script", "训练.py"), "lab2": "words"})
    command = command_for("lab1,lab2", "--format", "html")
    environ = {**with_ssh(ssh), "LC_ALL": "C", "PYTHONIOENCODING": "latin-1"}
    done = subprocess.run(command, env=environ, capture_output=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    page = done.stdout.decode("utf-8")
    assert re.findall("<h2>(.*)</h2>", page) == ["lab1", "lab2"]
    assert "训练.py (pid 7)" in page
    assert len(re.findall("No status: the remote command exited with status 0 ", page)) == 1


NO_NAME = "Expecting property name enclosed in double quotes"  # of Python's json
FAILURES = {
    "fails": ("echo broken >&2; exit 3", RemoteProblem(RemoteFault.NOTHING_PRINTED, "broken", 3)),
    "silent": ("exit 1", RemoteProblem(RemoteFault.NOTHING_PRINTED, number=1)),
    "no-json": ("echo '{x'", RemoteProblem(RemoteFault.NOT_JSON, f"{NO_NAME}: line 1 column 2 (char 1)")),
    "no-answer": ("echo status", RemoteProblem(RemoteFault.NOTHING_PRINTED)),
    "late": ("exec >&-; sleep 0.3; echo the reason >&2; exit 255", RemoteProblem(RemoteFault.SSH_FAILED, "the reason")),
    "mute": ("exit 255", RemoteProblem(RemoteFault.SSH_FAILED)),
}


def test_problem_of_each_failed_host_is_found(stand_in, monkeypatch):
    cases = "".join(f"*' {name} '*) {script} ;;\n" for name, (script, _) in FAILURES.items())
    ssh = stand_in(f'case " $* " in\n{cases}esac')
    monkeypatch.setenv("PATH", with_ssh(ssh)["PATH"])
    monkeypatch.setattr(remote, "TIMEOUT_S", 60.0)
    answers = remote.ask_hosts([*FAILURES], "autogpu")
    assert answers == tuple(Answer(name, None, problem) for name, (_, problem) in FAILURES.items())


def test_machine_without_ssh_is_an_error(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert frame.run(["status", "--on", "lab1"]) == 1
    assert capsys.readouterr().err == "autogpu: this machine has no ssh\nautogpu: install the OpenSSH client\n"


@pytest.mark.slow
def test_ctrl_c_leaves_no_ssh_behind(stand_in, tmp_path):
    """Ctrl-C in a terminal sends SIGINT to the command and to every ``ssh`` that it has started."""
    ssh = stand_in(f"echo $$ >> {tmp_path}/pids; exec sleep 300")
    options = {"env": with_ssh(ssh), "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command_for("lab1,lab2,lab3"), start_new_session=True, **options) as asking:
        until(lambda: (tmp_path / "pids").exists() and len((tmp_path / "pids").read_text().split()) == 3)
        os.killpg(asking.pid, signal.SIGINT)
        assert asking.communicate(timeout=60) == ("", "\nautogpu: interrupted\n")
    assert asking.returncode == -signal.SIGINT
    assert not [pid for pid in (tmp_path / "pids").read_text().split() if Path(f"/proc/{pid}").exists()]


@pytest.mark.skipif(shutil.which("ssh") is None, reason="no ssh on this machine")
def test_host_name_is_never_an_option_of_ssh(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert frame.run(["status", "--on", "-oProxyCommand=>x"]) == 1
    assert capsys.readouterr().out.startswith("-oProxyCommand=>x  ")
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(["--on", "lab1,,lab2"], id="empty-element"),
        pytest.param(["--on", ",lab1,lab2, "], id="comma-at-the-ends"),
        pytest.param(["--on", "lab1 lab2"], id="space"),
        pytest.param(["--on", "lab1 , lab2\n"], id="space-and-comma"),
        pytest.param(["--on", "lab1,lab2,lab1"], id="duplicate"),
        pytest.param(["--on", "lab1", "--on", "lab2"], id="option-given-twice"),
    ],
)
def test_each_host_is_asked_once(stand_in, monkeypatch, capsys, arguments):
    ssh = stand_in('echo "no way to <$5>" >&2; exit 255')
    monkeypatch.setenv("PATH", with_ssh(ssh)["PATH"])
    assert frame.run(["status", *arguments]) == 1
    assert capsys.readouterr().out == "lab1  no way to <lab1>\n\nlab2  no way to <lab2>\n"


@pytest.mark.parametrize("hosts", ["", ",", " , "])
def test_list_without_a_host_is_refused(capsys, hosts):
    assert frame.run(["status", "--on", hosts]) == 2
    message = "autogpu: Invalid value for --on: expected at least one host, such as lab1\n"
    assert capsys.readouterr() == ("", f"{message}autogpu: see `autogpu status --help`\n")
