"""The command ``python -m tests.gpusim``, and the file that it reads."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path

import pytest

from tests.support.environments import ROOT
from tests.support.simulator_client import CUDA, NVML, PYTHON, lines_of


def command(*arguments: str, **kwargs) -> subprocess.CompletedProcess:
    program = [PYTHON, "-m", "tests.gpusim", *arguments]
    return subprocess.run(program, capture_output=True, text=True, cwd=ROOT, timeout=60, **kwargs)


@pytest.mark.parametrize(
    ("end", "status"), [("sys.exit(7)", 7), ("os.kill(os.getpid(), 15)", -15)], ids=["exit-status", "signal"]
)
def test_a_command_keeps_its_end_and_its_input_and_output(end, status):
    done = command("--", PYTHON, "-c", f"import os, sys; print(sys.stdin.read(), flush=True); {end}", input="hello")
    assert (done.returncode, done.stdout, done.stderr) == (status, "hello\n", "")


@pytest.mark.parametrize(
    ("fleet", "gpus"), [pytest.param((), 4, id="the-default-lab"), pytest.param(("--fleet", "dgx-a100"), 8, id="named")]
)
def test_a_command_has_its_server_and_leaves_a_log(tmp_path, fleet, gpus):
    log = tmp_path / "calls"
    done = command(*fleet, "--log", str(log), "--", PYTHON, "-c", CUDA + "say(cuda.cuInit(0), count())")
    assert lines_of(done) == [[0, gpus]]
    assert [json.loads(line)["call"] for line in log.read_text().splitlines()] == ["cuInit"]


def test_each_server_has_a_lease_folder_of_its_own_unless_one_is_named(tmp_path):
    given = {name: value for name, value in os.environ.items() if name != "AUTOGPU_LEASE_DIR"}
    said = [command("--", "sh", "-c", "stat -c '%a %n' $AUTOGPU_LEASE_DIR", env=given).stdout for _ in range(2)]
    assert [each.split()[0] for each in said] == ["1777", "1777"]
    assert said[0] != said[1]
    named = {**os.environ, "AUTOGPU_LEASE_DIR": str(tmp_path)}
    assert command("--", "sh", "-c", "echo $AUTOGPU_LEASE_DIR", env=named).stdout == f"{tmp_path}\n"


def test_the_server_is_as_its_file_says_and_removed_afterwards(tmp_path):
    fleet = tmp_path / "lab.toml"
    fleet.write_text('[[gpu]]\nname = "one"\n')
    program = "nvml.nvmlInit(); gpu = nvml.nvmlDeviceGetHandleByIndex(0)\n"
    program += 'say(nvml.nvmlDeviceGetName(gpu), os.path.dirname(os.environ["GPUSIM_FLEET"]))'
    ((name, folder),) = lines_of(command("--fleet", str(fleet), "--", PYTHON, "-c", NVML + program))
    assert name == "one"
    deadline_s = time.monotonic() + 60
    while Path(folder).exists():
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        pytest.param(("--fleet", "/no/such.toml", "--", "true"), 2, "/no/such.toml", id="no-such-fleet"),
        pytest.param(("--fleet", "{wrong}", "--", "true"), 2, "gpusim: {wrong}: memory: no such key", id="wrong-fleet"),
        pytest.param((), 2, "no command: python -m tests.gpusim -- python train.py", id="no-command"),
        pytest.param(("--", "no-such-program"), 127, "no-such-program: no such command", id="no-such-command"),
    ],
)
def test_what_can_not_be_started_is_said_in_one_line(tmp_path, arguments, status, words):
    wrong = tmp_path / "lab.toml"
    wrong.write_text("memory = 3\n")
    done = command(*(argument.format(wrong=wrong) for argument in arguments))
    assert (done.returncode, done.stdout) == (status, "")
    assert words.format(wrong=wrong) in done.stderr.splitlines()[-1]


def test_without_a_compiler_the_remedy_is_named(tmp_path):
    environ = {**os.environ, "CC": "no-such-cc", "AUTOGPU_TEST_CACHE": str(tmp_path)}
    done = command("--", "true", env=environ)
    assert done.returncode == 126
    assert done.stderr == "gpusim: no C compiler: no-such-cc not found; install gcc or name one in CC\n"
