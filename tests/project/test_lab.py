"""Tests of ``make lab``: a shell on a simulated server with other people's jobs, all of which end with the shell."""

import functools
import json
import os
import re
import signal
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.gpusim import FleetError, imports
from tests.gpusim.__main__ import fleet_named
from tests.gpusim.fleets import FLEETS
from tests.lease.conftest import until
from tests.support import environments, framework_environments
from tests.support.environments import ROOT
from tests.support.terminal import PATIENCE_S, Terminal


@pytest.fixture
def terminals():
    """Return a function that opens a terminal in a new lab. All processes of the lab inherit a short ``TMPDIR``."""
    with tempfile.TemporaryDirectory(prefix="lab-test-", ignore_cleanup_errors=True) as folder, ExitStack() as opened:
        Path(folder).chmod(0o755)
        # HOME is changed because the shell must not run the developer's own start-up file.
        environ = {**os.environ, "TMPDIR": folder, "HOME": folder, "AUTOGPU_TEST_CACHE": str(environments.CACHE)}

        def open_one(*arguments: str) -> Terminal:
            command = [sys.executable, "-m", "demo.lab", *arguments]
            return opened.enter_context(Terminal(ROOT, environ, command, r"lab\$ "))

        terminals: Any = functools.partial(open_one)
        terminals.folder = folder
        try:
            yield terminals
        finally:
            opened.close()
            for pid in processes_of(folder):
                os.kill(pid, signal.SIGKILL)


def processes_of(folder):
    """Return the pids of the live processes whose ``TMPDIR`` is ``folder``, which children inherit."""
    found = []
    for each in Path("/proc").iterdir():
        try:
            if each.name.isdigit() and f"TMPDIR={folder}\0".encode() in (each / "environ").read_bytes():
                found.append(int(each.name))
        except OSError:  # the process has just ended, or belongs to another user
            continue
    return found


@pytest.mark.thorough
def test_lab_has_running_jobs_a_queue_and_a_free_gpu(terminals):
    first = terminals("--fleet", "rtx-4090")
    assert "8 GPUs (rtx-4090)" in first.greeting
    found = json.loads(first.type("autogpu status --json").text)
    jobs = [job for gpu in found["gpus"] for job in gpu["jobs"]]
    scripts = {job["script"].rpartition("-")[2] for job in jobs}
    assert {"ipykernel_launcher.py", "bert.py", "resnet.py", "train.py", "eval.py"} <= scripts
    assert sum(gpu["state"] == "free" for gpu in found["gpus"]) == 1, "for the visitor"
    (notebook,) = [gpu for gpu in found["gpus"] if gpu["state"] == "idle_lease"]
    assert notebook["jobs"][0]["age_s"] > 25 * 3600
    assert [gpu["index"] for gpu in found["gpus"] if gpu["unmanaged_processes"]] == [0]
    assert found["queue"][0]["script"] == "fatma-sweep.py"
    assert [gpu["index"] for gpu in found["gpus"] if gpu["health_problems"]] == [7]
    held = first.type("autogpu run --hold -- autogpu status --mine | cat").text
    assert re.search(r"GPU \d \(.* free\) for autogpu: the idlest of 8", held), held
    assert re.search("ok +environment", first.type("autogpu doctor").text)
    shell = re.search(r"in another terminal: (\S+)", first.greeting)[1]
    assert "1 of 8 GPUs free" in first.type(f"echo 'autogpu status; exit' | {shell}").text, "a second shell"


@pytest.mark.tensorflow
@pytest.mark.thorough
@pytest.mark.parametrize("command", ["python train.py", "AUTOGPU=0 python train.py"])
def test_script_runs_in_the_lab_with_and_without_autogpu(terminals, command):
    environments.tensorflow_with_autogpu()
    shown = terminals().type(f"TF_CPP_MIN_LOG_LEVEL=3 {command}; echo ended with $?").text
    assert "ended with 0" in shown, shown
    assert ("autogpu: GPU 1 " in shown) == (not command.startswith("AUTOGPU=0"))


def test_unknown_server_name_is_an_error_that_lists_all_servers():
    with pytest.raises(FleetError, match="rtx4090: no such server or file; servers: t4, rtx-2080-ti, rtx-4090, "):
        fleet_named("rtx4090")


@pytest.fixture
def pytorch_in_the_shell(monkeypatch):
    monkeypatch.setenv("PATH", str(framework_environments.torch().parent), prepend=os.pathsep)


@pytest.mark.framework
@pytest.mark.usefixtures("pytorch_in_the_shell")
def test_pytorch_on_path_runs_in_the_lab(terminals):
    lab = terminals()
    assert "./torch-python train_torch.py" in lab.greeting
    shown = lab.type("./torch-python train_torch.py; echo ended with $?").text
    assert "ended with 0" in shown, shown
    assert "autogpu: GPU 1 " in shown


@pytest.mark.framework
@pytest.mark.parametrize("has_nvidia", [False, True], ids=["plain", "nvidia-wheels"])
def test_simulated_libraries_are_preloaded_if_nvidia_wheels_exist(tmp_path, monkeypatch, has_nvidia):
    """PyTorch's RPATH would load the libraries of NVIDIA's wheels, and these don't work with the simulated driver."""
    libraries = environments.site_packages(framework_environments.torch()) / "torch" / "lib"
    packages = tmp_path / "packages"
    (packages / "torch").mkdir(parents=True)
    (packages / "torch" / "libc10_cuda.so").symlink_to(libraries / "libc10_cuda.so")
    if has_nvidia:
        (packages / "nvidia").mkdir()
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\necho {packages}/torch\n")
    python.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(imports, "LISTS", tmp_path / "lists")
    preloaded = imports.record_torch("bash")
    assert imports.recorded().versions
    assert ("libcudart.so.13" in preloaded) == has_nvidia
    assert bool(preloaded) == has_nvidia


@pytest.mark.thorough
@pytest.mark.parametrize("end", ["exit", "terminal", "kill-shell", "told"])
def test_lab_leaves_no_process_and_no_folder(terminals, end):
    lab = terminals("--fleet", "t4")
    shell = int(lab.type("echo $$").text)
    # The first job is in the background; the second has left the shell's session.
    lab.type("sleep 1000 &")
    lab.type("setsid sleep 1002 > /dev/null 2>&1 < /dev/null &")
    if end == "exit":
        lab.write("exit\n")
    elif end == "terminal":
        lab.close()
    elif end == "told":
        os.kill(lab.process.pid, signal.SIGTERM)
    else:
        os.kill(shell, signal.SIGKILL)
    lab.process.wait(timeout=PATIENCE_S)
    until(lambda: not processes_of(terminals.folder), PATIENCE_S)
    assert list(Path(terminals.folder).glob("gpusim-*")) == []


@pytest.mark.thorough
@pytest.mark.turns(4)
@pytest.mark.parametrize("name", [name for name in FLEETS if name not in ("rtx-4090", "t4")])
def test_visitor_finds_a_free_gpu_on_every_server(terminals, name):
    page = terminals("--fleet", name).type("autogpu status").text
    assert "0 of" not in page.splitlines()[0]
    assert "fatma-sweep.py" in page, "the last one, which waits"
