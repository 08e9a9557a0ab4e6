"""The examples of ``--help``, run in a shell as printed, and shell completion."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.test_main import EXAMPLES
from tests.gpusim import Gpu, Server
from tests.support import environments

pytestmark = pytest.mark.slow

# These exit with 1: a test machine has no job, no framework and no host setup.
FAILS = ("autogpu wait --job ", "autogpu doctor", "autogpu host-setup --check")
NEEDS_MORE = ("sudo ", "docker ", "~/", "--on ")


@pytest.fixture(scope="module")
def folder_of_autogpu():
    """Return the folder of ``autogpu`` in a separate environment, because some examples install into it."""
    base = Path(getattr(sys, "_base_executable", None) or sys.executable)
    return environments.environment(base, name="examples").parent


def write_program(file, text):
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(0o755)


@pytest.fixture
def place(tmp_path):
    (tmp_path / "bin").mkdir()
    (tmp_path / "train.py").write_text("print('trained')\n")
    (tmp_path / "draft.toml").write_text("[limits]\nper_user = 2\n")
    write_program(tmp_path / "my-cuda-program", 'test -n "$CUDA_VISIBLE_DEVICES"')
    # Desktops have notify-send, test machines do not.
    write_program(tmp_path / "bin" / "notify-send", 'test "$*" = \'GPUs are free\' -o "$*" = done')
    return tmp_path


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with Server([Gpu()] * 3, folder=tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.fixture
def typed(place, server, folder_of_autogpu):
    """Return a function that runs a line in bash on the server and returns its stdout."""

    def type_in(line, status=0, **environ):
        path = os.pathsep.join([str(folder_of_autogpu), str(place / "bin"), os.environ["PATH"]])
        # pipefail: the line fails if a command in front of a pipe fails.
        command = ["bash", "-o", "pipefail", "-c", line]
        options = {"cwd": place, "stdin": subprocess.DEVNULL, "timeout": 300}
        done = server.run(command, environ={"PATH": path, **environ}, **options)
        assert done.returncode == status, f"{line}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    return type_in


@pytest.mark.parametrize(("verb", "example"), EXAMPLES, ids=[example for _, example in EXAMPLES])
def test_help_example_works_as_printed(place, typed, verb, example):
    if example.startswith(NEEDS_MORE) or any(f" {part}" in example for part in NEEDS_MORE):
        pytest.skip("needs root, docker or other hosts, or writes into the home folder")
    if verb != "init":
        (place / "autogpu.toml").write_text("[select]\ncount = 1\n")
    typed(example, status=int(example.startswith(FAILS)))


@pytest.fixture
def completed(folder_of_autogpu):
    def complete(line, shell="bash"):
        words = line.split(" ")
        place = words[-1] if shell == "fish" else str(len(words) - 1)
        environ = {**os.environ, "_AUTOGPU_COMPLETE": f"{shell}_complete", "COMP_WORDS": line, "COMP_CWORD": place}
        command = [str(folder_of_autogpu / "autogpu")]
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return complete


def test_shells_complete_verbs_options_policy_values_and_file_names(completed):
    for shell in ("bash", "zsh", "fish"):
        offered = completed("autogpu sta", shell)
        assert ("status" in offered, "uninstall" in offered) == (True, False), shell
    assert completed("autogpu run --bus").split() == ["plain,--busy"]
    assert completed("autogpu run --busy sh").split() == ["plain,share"]
    assert completed("autogpu run -- tra").split() == ["file,tra"]


def test_bash_accepts_the_printed_completion_script(typed):
    assert "autogpu" in typed('eval "$(_AUTOGPU_COMPLETE=bash_source autogpu)" && complete -p autogpu')
