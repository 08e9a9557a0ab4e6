"""What ``--help`` prints as an example, and what a page says of ``wait``, is typed into a shell as it stands there."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import click
import pytest

from autogpu.cli.main import VERBS, cli
from autogpu.policy import KEYS
from tests.gpusim import Gpu, Server
from tests.support import environments

pytestmark = pytest.mark.slow

# Where something fails that is not the example's fault: what a test machine lacks.
NO_JOB = dict.fromkeys(("autogpu stop train.py", "autogpu stop --gpu 2", "autogpu stop train.py --yes"), 1)
STATUS = {
    **NO_JOB,
    "autogpu wait --job 4121 && python next.py": 1,
    "autogpu doctor": 1,
    "autogpu doctor --json": 1,
    "autogpu host-setup --check": 1,
}
NEEDS_MORE = ("sudo ", "docker ", "~/", "--on ")


def printed_helps():
    """What ``--help`` of each verb prints on a terminal of 80 columns."""
    root = click.Context(cli, info_name="autogpu", terminal_width=80)
    for name, command in [("", cli), *((verb, cli.get_command(root, verb)) for verb in VERBS)]:
        yield name, command.get_help(click.Context(command, root, info_name=name, terminal_width=80))
        for below in filter(None, getattr(command, "commands", {}).values()):  # the root imports its own by name
            yield name, below.get_help(click.Context(below, root, info_name=below.name, terminal_width=80))


HELPS = list(printed_helps())
EXAMPLES = [(verb, line.strip()) for verb, text in HELPS for line in text.partition("Examples:\n")[2].splitlines()]


def test_each_verb_has_examples_that_work_as_they_are_copied():
    """In zsh a # that is typed begins no comment."""
    assert [verb for verb, text in HELPS if "Examples:\n" not in text] == []
    assert [example for _, example in EXAMPLES if "#" in example] == []
    assert [line for _, text in HELPS for line in text.splitlines() if len(line) > 80] == []


def test_what_a_variable_does_in_an_example_is_told_above_it():
    keys = {key.variable: key.dotted for key in KEYS}
    parts = [text.partition("Examples:\n") for _, text in HELPS]
    used = [(name, told) for told, _, examples in parts for name in re.findall(r"\b(AUTOGPU\w*)=", examples)]
    assert {name for name, _ in used} >= {"AUTOGPU"}
    assert [name for name, told in used if name not in told and keys.get(name, name) not in told] == []


@pytest.fixture(scope="module")
def folder_of_autogpu():
    """An environment of its own, since some examples install into it; its wheel's command comes first on PATH."""
    base = Path(getattr(sys, "_base_executable", None) or sys.executable)
    return environments.environment(base, name="examples").parent


@pytest.fixture
def place(tmp_path):
    project = tmp_path / "project"
    project.mkdir()
    (project / "train.py").write_text("print('trained')\n")
    (project / "my-cuda-program").write_text('#!/bin/sh\ntest -n "$CUDA_VISIBLE_DEVICES"\n')
    (project / "my-cuda-program").chmod(0o755)
    # A desktop's, which a test machine lacks.
    (project / "bin").mkdir()
    (project / "bin" / "notify-send").write_text('#!/bin/sh\ntest "$*" = \'GPUs are free\' -o "$*" = done\n')
    (project / "bin" / "notify-send").chmod(0o755)
    return project


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with Server([Gpu()] * 3, folder=tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.mark.parametrize(("verb", "example"), EXAMPLES, ids=[example for _, example in EXAMPLES])
def test_an_example_works_as_printed(place, server, folder_of_autogpu, verb, example):
    if example.startswith(NEEDS_MORE) or any(f" {part}" in example for part in NEEDS_MORE):
        pytest.skip("needs root, docker or other hosts, or writes into the home folder")
    if verb != "init":
        (place / "autogpu.toml").write_text("[select]\ncount = 1\n")
    path = os.pathsep.join([str(folder_of_autogpu), str(place / "bin"), os.environ["PATH"]])
    # pipefail: an example that fails in front of a pipe has failed.
    command = ["bash", "-o", "pipefail", "-c", example]
    done = server.run(command, environ={"PATH": path}, cwd=place, stdin=subprocess.DEVNULL, timeout=300)
    assert done.returncode == STATUS.get(example, 0), f"{example}\n{done.stdout}\n{done.stderr}"


def told_by(last):
    """The line of the page that tells by this program that GPUs are free."""
    page = (environments.ROOT / "docs" / "sharing.md").read_text(encoding="utf-8")
    return re.search(rf"^\$ (autogpu wait --count 2 && (?:\S+ \| )?{last} .*)$", page, re.MULTILINE)[1]


@pytest.fixture
def typed(place, server, folder_of_autogpu):
    """Type a line on the server; what it prints."""

    def type_in(*command):
        path = os.pathsep.join([str(folder_of_autogpu), str(place / "bin"), os.environ["PATH"]])
        done = server.run(command, environ={"PATH": path}, cwd=place, stdin=subprocess.DEVNULL, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return type_in


@pytest.mark.skipif(shutil.which("tmux") is None, reason="no tmux on this machine")
def test_tmux_marks_the_window_in_which_the_bell_says_that_gpus_are_free(typed, tmp_path):
    tmux = f"tmux -f /dev/null -S {tmp_path}/tmux"
    line = shlex.quote(f"{told_by('printf')}; {tmux} wait-for -S said; cat")
    in_another_window = f"{tmux} new-session -d 'cat' && {tmux} new-window -d {line}"
    looks = f"{tmux} wait-for said && {tmux} list-windows -F '#{{window_bell_flag}}'; {tmux} kill-server"
    assert typed("bash", "-c", f"{in_another_window} && {looks}") == "0\n1\n"


@pytest.mark.skipif(shutil.which("curl") is None, reason="no curl on this machine")
def test_a_service_of_ones_own_is_told_that_gpus_are_free(typed):
    said = []

    class Service(BaseHTTPRequestHandler):
        def do_POST(self):
            said.append((self.path, self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_):
            """Not on stderr."""

    with HTTPServer(("127.0.0.1", 0), Service) as service:
        service.timeout = 120
        once = threading.Thread(target=service.handle_request)
        once.start()
        here = f"http://127.0.0.1:{service.server_port}/"
        typed("env", "no_proxy=*", "bash", "-c", told_by("curl").replace("https://example.org/", here))
        once.join(timeout=120)
    assert said == [("/for-me", b"GPUs are free")]


def test_a_mail_says_that_gpus_are_free(typed, place):
    # A test machine sends none.
    (place / "bin" / "mail").write_text('#!/bin/sh\nprintf \'%s\\n\' "$@" && test -n "$(cat)"\n')
    (place / "bin" / "mail").chmod(0o755)
    assert typed("bash", "-c", told_by("mail")) == "-s\nGPUs are free\nme@example.org\n"


def completed(folder_of_autogpu, shell, line):
    words = line.split(" ")
    place = words[-1] if shell == "fish" else str(len(words) - 1)
    environ = {**os.environ, "_AUTOGPU_COMPLETE": f"{shell}_complete", "COMP_WORDS": line, "COMP_CWORD": place}
    done = subprocess.run(
        [str(folder_of_autogpu / "autogpu")], env=environ, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_completes_verbs(folder_of_autogpu, shell):
    offered = completed(folder_of_autogpu, shell, "autogpu sta")
    assert ("status" in offered, "uninstall" in offered) == (True, False)


def test_a_shell_completes_options_a_policys_words_and_the_command_to_run(folder_of_autogpu):
    assert completed(folder_of_autogpu, "bash", "autogpu run --bus").split() == ["plain,--busy"]
    assert completed(folder_of_autogpu, "bash", "autogpu run --busy sh").split() == ["plain,share"]
    assert completed(folder_of_autogpu, "bash", "autogpu run -- tra").split() == ["file,tra"]


@pytest.mark.parametrize("line", ["autogpu stats --", "autogpu config chek ", "autogpu run --cuont 2 --bu"])
def test_a_shell_that_completes_behind_a_mistyped_word_gets_no_error(folder_of_autogpu, line):
    completed(folder_of_autogpu, "bash", line)


def test_the_printed_script_is_one_that_bash_accepts(folder_of_autogpu):
    program = f'eval "$(_AUTOGPU_COMPLETE=bash_source {folder_of_autogpu}/autogpu)" && complete -p autogpu'
    done = subprocess.run(["bash", "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert "autogpu" in done.stdout, done.stderr
