"""Ranks that Horovod's launcher starts by Gloo on one simulated server, checked by the driver's log."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tests.engines.engine_jobs import JOBS, TIMEOUT_S, Run, end_all
from tests.gpusim import Gpu, Server
from tests.support import environments

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

VERSION = "0.28.1"
# Packages that Horovod's launcher needs.
REQUIREMENTS = ("cloudpickle", "packaging", "psutil", "pyyaml")
BUSY, FREE = Gpu(processes={5004242: "1GiB"}, utilization=90), Gpu()
WHOLE = "whole"


@pytest.fixture(scope="session")
def horovod() -> tuple[Path, Path]:
    """Return a Python for Horovod's launcher, and the folder of Horovod's source, which is not built."""
    folder = environments.CACHE / "sources" / f"horovod-{VERSION}"
    if not folder.exists():
        place = folder.parent
        place.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", ":all:", "-q", "-d", str(place)]
        done = subprocess.run(
            [*command, f"horovod=={VERSION}"],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            env=environments.ENVIRON,
            check=False,
        )
        if done.returncode:
            pytest.skip(f"Horovod's source can't be had: {done.stderr.strip().splitlines()[-1]}")
        with tarfile.open(place / f"{folder.name}.tar.gz") as archive:
            archive.extractall(place)
    python = environments.interpreter("3.11")
    assert python, "no Python 3.11 on this machine"
    return environments.environment(python, REQUIREMENTS, with_autogpu=False), folder


@pytest.fixture
def run(tmp_path, lease_folder, small_python, horovod):
    """Return a function that starts jobs of ``sizes`` ranks at once.

    It returns the memory of each rank, and the output of each job.
    """

    def run(gpus, *sizes, job=(), of=small_python):
        python, source = horovod
        jobs = Run(tmp_path / "run", sum(sizes))
        environ = {"PYTHONPATH": str(source), "TF_CPP_MIN_LOG_LEVEL": "3"}
        with Server(gpus, folder=tmp_path) as server:
            launchers = [
                server.popen(
                    [str(python), str(JOBS / "on_horovod.py"), str(size), *jobs.command(of, *job)],
                    environ=environ,
                    cwd=str(tmp_path),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                )
                for size in sizes
            ]
            try:
                told = [launcher.communicate(timeout=TIMEOUT_S)[0] for launcher in launchers]
            finally:
                left = end_all(server, timeout_s=10)
            assert ([launcher.returncode for launcher in launchers], left) == ([0] * len(sizes), []), told
            return [each.gpus for each in jobs.taken(server)], told

    return run


@pytest.mark.parametrize(
    ("gpus", "ranks", "expected"),
    [
        pytest.param([BUSY, FREE, BUSY, FREE], 2, [{1: WHOLE}, {3: WHOLE}], id="two-free-gpus"),
        pytest.param([FREE] * 4, 2, [{2: WHOLE}, {3: WHOLE}], id="more-gpus-than-ranks"),
        pytest.param([FREE] * 4, 4, [{gpu: WHOLE} for gpu in range(4)], id="as-many-gpus-as-ranks"),
        pytest.param([FREE], 2, [{0: "11.50 GiB"}] * 2, id="two-ranks-on-one-gpu"),
    ],
)
def test_ranks_of_horovodrun_divide_the_gpus_as_one_job(run, gpus, ranks, expected):
    taken, (said,) = run(gpus, ranks)
    assert taken == expected, said
    assert said.count("autogpu: ") == 1, said


@pytest.mark.tensorflow
def test_horovod_ranks_that_use_two_gpus_by_number_get_idle_gpus(run, tensorflow_python):
    gpus = [BUSY, FREE, BUSY, FREE, FREE, FREE]
    taken, (said,) = run(gpus, 2, job=(22, "two_gpus_of_each_rank"), of=tensorflow_python)
    assert taken == [{1: WHOLE, 3: WHOLE}, {4: WHOLE, 5: WHOLE}], said
    assert "idle" not in said


def test_two_jobs_of_horovodrun_share_no_gpu(run):
    taken, said = run([FREE] * 4, 2, 2)
    assert sorted(gpu for gpus in taken for gpu in gpus) == [0, 1, 2, 3], said
    assert [text.count("autogpu: ") for text in said] == [1, 1]
