"""The simulated server itself: what it starts, what it leaves, which fleets it refuses."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

from tests.gpusim import FleetError, Gpu, Server
from tests.support import simulator_client
from tests.support.simulator_client import PYTHON, run_cuda

pair = simulator_client.pair


def test_a_started_program_ends_with_the_server(tmp_path):
    with Server([Gpu()], folder=tmp_path) as server:
        child = server.popen([PYTHON, "-c", "import sys; sys.stdin.readline()"], stdin=subprocess.PIPE)
    assert child.returncode == -signal.SIGKILL


def test_library_paths_of_others_stay_behind_ours(pair):
    shown = pair.run(
        [PYTHON, "-c", "import os; print(os.environ['LD_LIBRARY_PATH'])"], environ={"LD_LIBRARY_PATH": "/x"}
    )
    assert shown.stdout.strip() == f"{pair.environ['LD_LIBRARY_PATH'].split(':')[0]}:/x"


def test_a_second_server_in_a_folder_begins_anew(tmp_path):
    for _ in range(2):
        with Server([Gpu()], folder=tmp_path) as server:
            assert server.calls() == []
            assert run_cuda(server, "say(cuda.cuInit(0))") == [[0]]


def test_files_are_open_to_other_users(pair):
    assert Path(pair.environ["GPUSIM_STATE"]).stat().st_mode & 0o777 == 0o666
    assert Path(pair.environ["GPUSIM_LOG"]).stat().st_mode & 0o777 == 0o666


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"memory": "24Gigs"}, "memory: '24Gigs' is not a size"),
        ({"utilization": 101}, "utilization: 101 is not a whole number from 0 to 100"),
        ({"nvml": "LIBRARY_NOT_FOUND"}, "nvml: 'LIBRARY_NOT_FOUND' is not"),
        ({"unsupported": ["colour"]}, "unsupported: ['colour'] is not a list out of name,"),
        ({"compute_mode": "shared"}, "compute_mode: 'shared' is not one of default,"),
        ({"processes": {"x": "1GiB"}}, "processes: {'x': '1GiB'} is not"),
        ({"uuid": "GPU-1"}, "uuid: 'GPU-1' is not a UUID"),
        ({"pci": "5"}, "pci: '5' is not an address"),
    ],
)
def test_an_impossible_gpu_is_refused_by_its_key(fields, message):
    with pytest.raises(FleetError) as caught:
        Gpu(**fields)
    assert str(caught.value).startswith(message)


def test_gpus_out_of_pci_order_are_refused(tmp_path):
    with pytest.raises(FleetError, match=r"gpu 1: pci: 0000:04:00.0 is not after that of the GPU before"):
        Server([Gpu(pci="0000:05:00.0"), Gpu(pci="0000:04:00.0")], folder=tmp_path)
