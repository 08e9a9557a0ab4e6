"""What ``--help`` prints as an example, and what a page says of ``wait``, is typed into a shell as it stands there."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from tests.cli.test_main import EXAMPLES
from tests.gpusim import Gpu, Server
from tests.support import environments

pytestmark = pytest.mark.slow

# What fails by what a test machine lacks: a job, a framework, a host that is set up.
FAILS = ("autogpu wait --job ", "autogpu doctor", "autogpu host-setup --check")
NEEDS_MORE = ("sudo ", "docker ", "~/", "--on ")


@pytest.fixture(scope="module")
def folder_of_autogpu():
    """An environment of its own, since some examples install into it; its wheel's command comes first on PATH."""
    base = Path(getattr(sys, "_base_executable", None) or sys.executable)
    return environments.environment(base, name="examples").parent


def write_program(file, text):
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(0o755)


@pytest.fixture
def place(tmp_path):
    (tmp_path / "bin").mkdir()
    (tmp_path / "train.py").write_text("print('trained')\n")
    write_program(tmp_path / "my-cuda-program", 'test -n "$CUDA_VISIBLE_DEVICES"')
    # A desktop's, which a test machine lacks.
    write_program(tmp_path / "bin" / "notify-send", 'test "$*" = \'GPUs are free\' -o "$*" = done')
    return tmp_path


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with Server([Gpu()] * 3, folder=tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.fixture
def typed(place, server, folder_of_autogpu):
    """Type a line on the server; what it prints."""

    def type_in(line, status=0, **environ):
        path = os.pathsep.join([str(folder_of_autogpu), str(place / "bin"), os.environ["PATH"]])
        # pipefail: what fails in front of a pipe has failed.
        command = ["bash", "-o", "pipefail", "-c", line]
        options = {"cwd": place, "stdin": subprocess.DEVNULL, "timeout": 300}
        done = server.run(command, environ={"PATH": path, **environ}, **options)
        assert done.returncode == status, f"{line}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    return type_in


@pytest.mark.parametrize(("verb", "example"), EXAMPLES, ids=[example for _, example in EXAMPLES])
def test_an_example_works_as_printed(place, typed, verb, example):
    if example.startswith(NEEDS_MORE) or any(f" {part}" in example for part in NEEDS_MORE):
        pytest.skip("needs root, docker or other hosts, or writes into the home folder")
    if verb != "init":
        (place / "autogpu.toml").write_text("[select]\ncount = 1\n")
    typed(example, status=int(example.startswith(FAILS)))


def told_by(last):
    """The line of the page that tells by this program that GPUs are free."""
    page = (environments.ROOT / "docs" / "sharing.md").read_text(encoding="utf-8")
    return re.search(rf"^\$ (autogpu wait --count 2 && (?:\S+ \| )?{last} .*)$", page, re.MULTILINE)[1]


@pytest.mark.skipif(shutil.which("tmux") is None, reason="no tmux on this machine")
def test_tmux_marks_the_window_in_which_the_bell_says_that_gpus_are_free(typed, tmp_path):
    tmux = f"tmux -f /dev/null -S {tmp_path}/tmux"
    line = shlex.quote(f"{told_by('printf')}; {tmux} wait-for -S said; cat")
    in_another_window = f"{tmux} new-session -d 'cat' && {tmux} new-window -d {line}"
    looks = f"{tmux} wait-for said && {tmux} list-windows -F '#{{window_bell_flag}}'; {tmux} kill-server"
    assert typed(f"{in_another_window} && {looks}") == "0\n1\n"


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
        typed(told_by("curl").replace("https://example.org/", here), no_proxy="*")
        once.join(timeout=120)
    assert said == [("/for-me", b"GPUs are free")]


def test_a_mail_says_that_gpus_are_free(typed, place):
    # A test machine sends none.
    write_program(place / "bin" / "mail", """printf '%s\\n' "$@" && test -n "$(cat)\"""")
    assert typed(told_by("mail")) == "-s\nGPUs are free\nme@example.org\n"


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


def test_a_shell_completes_verbs_options_a_policys_words_and_the_command_to_run(completed):
    for shell in ("bash", "zsh", "fish"):
        offered = completed("autogpu sta", shell)
        assert ("status" in offered, "uninstall" in offered) == (True, False), shell
    assert completed("autogpu run --bus").split() == ["plain,--busy"]
    assert completed("autogpu run --busy sh").split() == ["plain,share"]
    assert completed("autogpu run -- tra").split() == ["file,tra"]


@pytest.mark.parametrize("line", ["autogpu stats --", "autogpu config chek ", "autogpu run --cuont 2 --bu"])
def test_a_shell_that_completes_behind_a_mistyped_word_gets_no_error(completed, line):
    completed(line)


def test_the_printed_script_is_one_that_bash_accepts(typed):
    assert "autogpu" in typed('eval "$(_AUTOGPU_COMPLETE=bash_source autogpu)" && complete -p autogpu')
