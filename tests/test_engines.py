"""What is read of engines and launchers beside the variables: files, and other processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from autogpu.engines import granted_here
from autogpu.selection.grants import NO_ENGINE, Grant
from tests.support.containers import CONTAINER, NO_NAMESPACES, SHARED

# Tells its rank when the launcher says that all are there.
RANK = """
import json, os, subprocess, sys
from autogpu.engines import granted_here
print("up", flush=True)
sys.stdin.readline()
def told():
    rank = granted_here(os.environ).rank
    return [rank.rank, rank.place, rank.sharers, rank.job]
child = None
if "child" in sys.argv:
    # As autogpu leaves it to the children of a process that has imported a framework.
    written = {"CUDA_VISIBLE_DEVICES": "GPU-b,GPU-a", "AUTOGPU_ORIG_WRITTEN": "GPU-b,GPU-a"}
    if "CUDA_VISIBLE_DEVICES" in os.environ:
        written["AUTOGPU_ORIG_CUDA_VISIBLE_DEVICES"] = os.environ["CUDA_VISIBLE_DEVICES"]
    code = sys.argv[1].replace("child", "none")
    child = subprocess.Popen([sys.executable, "-c", code, code], stdin=-1, stdout=-1, env={**os.environ, **written})
    child.stdout.readline()
mine = told()
if child:
    mine = [mine, json.loads(child.communicate(b"go\\n", timeout=60)[0])]
print(json.dumps(mine), flush=True)
sys.stdin.readline()
"""
LAUNCHER = """
import json, os, subprocess, sys
code, lists = sys.argv[1], json.loads(sys.argv[2])
ranks = []
for rank, visible in enumerate(lists):
    own = {"OMPI_COMM_WORLD_LOCAL_RANK": str(rank), "OMPI_COMM_WORLD_LOCAL_SIZE": str(len(lists))}
    own.update({} if visible is None else {"CUDA_VISIBLE_DEVICES": visible})
    command = [sys.executable, "-c", code, code, *(["child"] if rank == len(lists) - 1 else [])]
    ranks.append(subprocess.Popen(command, stdin=-1, stdout=-1, text=True, env={**os.environ, **own}))
for rank in ranks:
    rank.stdout.readline()
told = []
# The last first: its child is there when the others look.
for rank in reversed(ranks):
    rank.stdin.write("go\\n")
    rank.stdin.flush()
    told.insert(0, json.loads(rank.stdout.readline()))
for rank in ranks:
    rank.communicate("end\\n", timeout=60)
print(json.dumps([os.getpid(), told]))
"""


def launched(*lists, container=()):
    """What each rank was told of its rank, its place and the sharers; after the last one its child."""
    command = [*container, sys.executable, "-c", LAUNCHER, RANK, json.dumps(lists)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    pid, told = json.loads(done.stdout)
    *others, (last, child) = told
    assert {each[3].rpartition(".")[0] for each in (*others, last, child)} == {f"launcher.{pid}"}
    return [each[:3] for each in (*others, last, child)]


@pytest.mark.parametrize("shared", [None, "0,1"])
def test_ranks_with_one_list_share_it_and_a_child_is_as_its_rank(shared):
    place = [None, None] if shared is None else [0, 2], [None, None] if shared is None else [1, 2]
    assert launched(shared, shared) == [[0, *place[0]], [1, *place[1]], [1, *place[1]]]


def test_ranks_with_a_list_each_have_it_to_themselves():
    assert launched("0", "1") == [[0, 0, 1], [1, 0, 1], [1, 0, 1]]
    assert launched("0", "0", "1") == [[0, 0, 2], [1, 1, 2], [2, 0, 1], [2, 0, 1]]


@pytest.mark.skipif(bool(NO_NAMESPACES), reason=NO_NAMESPACES)
def test_a_launcher_may_be_the_first_process_of_a_container():
    told = launched("0,1", "0,1", container=[*CONTAINER, SHARED, "sh"])
    assert told == [[0, 0, 2], [1, 1, 2], [1, 1, 2]]


# Ranks of a launcher that tells each its number, and where all meet

TELL = "import os; from autogpu.engines import granted_here; print(granted_here(os.environ).rank.job, flush=True)"
LISTED = {"CUDA_VISIBLE_DEVICES": "GPU-b,GPU-a", "AUTOGPU_ORIG_WRITTEN": "GPU-b,GPU-a"}


def rank_by_hand(rank, *, stays=False, container=(), **environ):
    environ = {**os.environ, "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", **environ}
    code = f"{TELL}; input()" if stays else TELL
    command = [*container, sys.executable, "-c", code]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environ)


def job_of(rank, **started):
    process = rank_by_hand(rank, **started)
    return process.communicate(timeout=120)[0].strip()


@pytest.fixture
def first_rank():
    """Start rank 0 and keep it until the end of the test; returns its job."""
    started = []

    def start(**environ):
        started.append(rank_by_hand(0, stays=True, **environ))
        return started[-1].stdout.readline().strip()

    yield start
    for process in started:
        process.communicate("\n", timeout=120)


@pytest.mark.parametrize("listed", [{}, LISTED], ids=["by-a-shell", "by-a-script-that-has-imported-a-framework"])
def test_ranks_that_were_started_by_hand_are_told_apart_by_their_port(first_rank, listed):
    first, other = first_rank(MASTER_PORT="29500", **listed), first_rank(MASTER_PORT="29501", **listed)
    assert [job_of(1, MASTER_PORT=port, **listed) for port in ("29500", "29501")] == [first, other]
    assert "" != first != other != ""


def test_ranks_of_one_shell_without_a_port_are_one_job(first_rank):
    assert first_rank() == job_of(1) == first_rank() != ""


def test_ranks_whose_launcher_is_rank_0_itself_count_as_it_does(first_rank):
    assert job_of(1, MASTER_PORT="29500", **LISTED) == ""
    assert first_rank(MASTER_PORT="29501", **LISTED) != ""
    assert job_of(1, MASTER_PORT="29500", **LISTED) == "", "the first of another job"


@pytest.mark.skipif(bool(NO_NAMESPACES), reason=NO_NAMESPACES)
def test_jobs_of_two_containers_have_different_names():
    container = [*CONTAINER, SHARED, "sh"]
    jobs = [job_of(0, container=container, MASTER_PORT="29500") for _ in range(2)]
    jobs.append(job_of(0, MASTER_PORT="29500"))
    assert len(set(jobs)) == 3, jobs


def test_a_pipe_or_a_folder_in_the_place_of_a_file_is_as_none(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, tmp_path / "nothing"):
        assert granted_here({"SLURM_JOB_ID": "7", "SLURM_CONF": str(path)}) == NO_ENGINE
        assert granted_here({"PBS_JOBID": "7", "PBS_GPUFILE": str(path)}) == Grant("PBS")


def test_what_slurms_configuration_includes_is_read_as_well(tmp_path):
    (tmp_path / "slurm.conf").write_text("ClusterName=lab\nInclude gpus.conf  # ours\ninclude /nowhere/else.conf\n")
    environ = {"SLURM_JOB_ID": "7", "SLURM_CONF": str(tmp_path / "slurm.conf")}
    assert granted_here(environ) == NO_ENGINE
    (tmp_path / "gpus.conf").write_text("GresTypes=gpu\n")
    assert granted_here(environ).is_none


def test_a_long_configuration_is_read_in_no_time(tmp_path):
    conf = tmp_path / "slurm.conf"
    conf.write_text("\n" * 1_000_000 + "x" * 1_000_000 + "\nNodeName=" + "," * 200_000 + "\n  gresTypes = shard,gpu\n")
    environ = {"SLURM_JOB_ID": "7", "SLURM_CONF": str(conf), "SLURMD_NODENAME": "x"}
    assert granted_here(environ).is_none
    shard = {"CUDA_VISIBLE_DEVICES": "0", "SLURM_JOB_GPUS": "0", "SLURM_SHARDS_ON_NODE": "1"}
    assert granted_here({**environ, **shard}) == Grant("Slurm", counts_by_bus=True)
