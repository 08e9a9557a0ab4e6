"""The simulated server itself: what it starts and what it leaves."""

import signal
import subprocess
from pathlib import Path

from tests.gpusim import Gpu, Server
from tests.support.simulator_client import PYTHON, run_cuda


def test_a_started_program_ends_with_the_server(tmp_path):
    with Server([Gpu()], folder=tmp_path) as server:
        child = server.popen([PYTHON, "-c", "import sys; sys.stdin.readline()"], stdin=subprocess.PIPE)
    assert child.returncode == -signal.SIGKILL


def test_library_paths_of_others_stay_behind_ours(pair):
    environ = pair.environ_of_child({"LD_LIBRARY_PATH": "/x"})
    assert environ["LD_LIBRARY_PATH"] == f"{pair.environ['LD_LIBRARY_PATH'].split(':')[0]}:/x"


def test_a_second_server_in_a_folder_begins_anew(tmp_path):
    for _ in range(2):
        with Server([Gpu()], folder=tmp_path) as server:
            assert server.calls() == []
            assert run_cuda(server, "say(cuda.cuInit(0))") == [[0]]


def test_files_are_open_to_other_users(pair):
    for file in ("GPUSIM_STATE", "GPUSIM_LOG"):
        assert Path(pair.environ[file]).stat().st_mode & 0o777 == 0o666
