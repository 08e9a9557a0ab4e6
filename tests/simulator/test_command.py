"""The command ``python -m tests.gpusim`` and the fleet file that it reads."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import textwrap
from pathlib import Path

import pytest

from tests.gpusim import Gpu, read_fleet
from tests.support import simulator_client
from tests.support.environments import ROOT
from tests.support.simulator_client import CUDA, NVML, PYTHON, lines_of

nvml_python = simulator_client.nvml_python


def command(*arguments: str, **kwargs) -> subprocess.CompletedProcess:
    program = [PYTHON, "-m", "tests.gpusim", *arguments]
    return subprocess.run(program, capture_output=True, text=True, cwd=ROOT, timeout=60, **kwargs)


def test_the_shipped_lab_shows_every_key():
    lab = (ROOT / "tests" / "gpusim" / "lab.toml").read_text()
    fleet = read_fleet(ROOT / "tests" / "gpusim" / "lab.toml")
    assert len({gpu.name for gpu in fleet.gpus}) == 4
    assert sum(1 for gpu in fleet.gpus if gpu.processes or gpu.used) == 2
    for kind in (type(fleet), Gpu):
        for field in dataclasses.fields(kind):
            assert field.name == "gpus" or f"{field.name} =" in lab, field.name


def test_a_command_keeps_its_status_and_its_input_and_output():
    done = command("--", PYTHON, "-c", "import sys; print(sys.stdin.read()); sys.exit(7)", input="hello")
    assert (done.returncode, done.stdout, done.stderr) == (7, "hello\n", "")


def test_a_command_that_a_signal_ends_is_seen_to_be():
    done = command("--", PYTHON, "-c", "import os; os.kill(os.getpid(), 15)")
    assert done.returncode == -signal.SIGTERM


def test_a_command_has_the_default_lab_and_leaves_a_log(tmp_path):
    log = tmp_path / "calls"
    done = command("--log", str(log), "--", PYTHON, "-c", CUDA + "say(cuda.cuInit(0), count())")
    assert lines_of(done) == [[0, 4]]
    assert [json.loads(line)["call"] for line in log.read_text().splitlines()] == ["cuInit"]


def test_an_edited_fleet_moves_the_load_under_a_running_command(tmp_path, nvml_python):
    fleet = tmp_path / "lab.toml"
    fleet.write_text('[[gpu]]\nname = "one"\n')
    program = NVML + textwrap.dedent(
        """
        nvml.nvmlInit()
        gpu = nvml.nvmlDeviceGetHandleByIndex(0)
        say(nvml.nvmlDeviceGetName(gpu), os.path.dirname(os.environ["GPUSIM_FLEET"]))
        deadline = time.monotonic() + 20
        while nvml.nvmlDeviceGetUtilizationRates(gpu).gpu != 88 and time.monotonic() < deadline:
            time.sleep(0.02)
        say(nvml.nvmlDeviceGetUtilizationRates(gpu).gpu)
        """
    )
    arguments = [PYTHON, "-m", "tests.gpusim", "--fleet", str(fleet), "--", str(nvml_python), "-c", program]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(arguments, cwd=ROOT, text=True, **pipes) as running:
        try:
            name, folder = json.loads(running.stdout.readline())
            assert name == "one"
            fleet.write_text("[[gpu]]\nutilisation = 88\n")
            complaint = running.stderr.readline()
            fleet.write_text('[[gpu]]\nname = "one"\nutilization = 88\n')
            # Reading to the end of both also waits for the process that watched the file.
            output, errors = running.communicate(timeout=40)
        finally:
            running.kill()
    assert complaint.startswith(f"gpusim: {fleet}: gpu 0: utilisation: no such key; there are name, memory,")
    assert (json.loads(output), errors) == ([88], "")
    assert not Path(folder).exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[gpu]\n", "Expected"),
        ("memory = 3\n", "memory: no such key; there are driver,"),
        ("[[gpu]]\n[[gpu]]\nutilization = 'high'\n", "gpu 1: utilization: 'high' is not a whole number"),
        ("[gpu]\nname = 'x'\n", "gpu: write each GPU as a table [[gpu]]"),
        ("[[gpu]]\nprocesses = { me = '1GiB' }\n", "gpu 0: processes: {'me': '1GiB'} is not"),
        # Some job in the tests would one day be given this pid.
        ("[[gpu]]\nprocesses = { 4242 = '1GiB' }\n", "gpu 0: processes: {4242: '1GiB'} is not at most 64 pids above"),
    ],
)
def test_a_wrong_fleet_is_one_line_that_names_file_and_key(tmp_path, text, message):
    fleet = tmp_path / "lab.toml"
    fleet.write_text(text)
    done = command("--fleet", str(fleet), "--", "true")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"gpusim: {fleet}: {message}")
    assert done.stderr.count("\n") == 1


def test_a_missing_fleet_or_command_is_said():
    assert command("--fleet", "/no/such.toml", "--", "true").stderr.count("/no/such.toml") == 1
    assert command().returncode == 2
    assert command("--", "no-such-program").returncode == 127


def test_help_teaches_with_an_example():
    assert "python -m tests.gpusim --fleet my-lab.toml --log calls.jsonl -- python train.py" in command("--help").stdout


def test_without_a_compiler_the_remedy_is_named(tmp_path):
    environ = {**os.environ, "CC": "no-such-cc", "AUTOGPU_TEST_CACHE": str(tmp_path)}
    done = command("--", "true", env=environ)
    assert done.returncode == 126
    assert done.stderr == "gpusim: no C compiler: no-such-cc not found; install gcc or name one in CC\n"
