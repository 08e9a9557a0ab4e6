"""The command ``python -m tests.gpusim`` and its fleet file."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

from tests.support.environments import ROOT
from tests.support.simulator_client import NVML, PYTHON, lines_of


def command(*arguments: str, **kwargs) -> subprocess.CompletedProcess:
    program = [PYTHON, "-m", "tests.gpusim", *arguments]
    return subprocess.run(program, capture_output=True, text=True, cwd=ROOT, timeout=60, **kwargs)


def test_command_serves_its_fleet_file_and_removes_its_folder(tmp_path):
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
