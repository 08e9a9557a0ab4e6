"""Files and other processes that autogpu reads to find out what an engine or a launcher did."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from autogpu.engines.facts import granted_here
from autogpu.engines.model import NO_ENGINE, Grant
from autogpu.frozen import replace
from tests.support.containers import CONTAINER, NO_NAMESPACES, SHARED

TELL = """
import json, os
from autogpu.engines.facts import granted_here
rank = granted_here(os.environ).rank
print(json.dumps([rank.rank, rank.dividers, rank.job]), flush=True)
"""
# A launcher of ranks, each of which starts a child that inherits autogpu's order of GPUs. The last rank and its child
# print what they found.
LAUNCHER = """
import json, os, subprocess, sys
tell, lists = sys.argv[1], json.loads(sys.argv[2])
ranks = []
for number, visible in enumerate(lists):
    own = {"OMPI_COMM_WORLD_LOCAL_RANK": str(number), "OMPI_COMM_WORLD_LOCAL_SIZE": str(len(lists))}
    left = ["CUDA_VISIBLE_DEVICES=GPU-b,GPU-a", "AUTOGPU_ORIG_WRITTEN=GPU-b,GPU-a"]
    if visible is not None:
        own["CUDA_VISIBLE_DEVICES"] = visible
        left.append("AUTOGPU_ORIG_CUDA_VISIBLE_DEVICES=" + visible)
    ranks.append({"env": {**os.environ, **own}, "child": ["sh", "-c", '"$@"; true', "sh", "env", *left]})
*others, last = ranks
started = []
for rank in others:
    command = [*rank["child"], "sh", "-c", "echo up; read line"]
    started.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=rank["env"]))
    started[-1].stdout.readline()
for command in ([], last["child"]):
    told = subprocess.check_output([*command, sys.executable, "-c", tell], env=last["env"], timeout=60)
    print(json.dumps([os.getpid(), *json.loads(told)]))
for process in started:
    process.communicate(timeout=60)
"""


def launched(*lists, container=()):
    """Return the number and ``dividers`` that the last rank finds for itself; assert that its child finds the same."""
    command = [*container, sys.executable, "-c", LAUNCHER, TELL, json.dumps(lists)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    (pid, *rank, job), child = map(json.loads, done.stdout.splitlines())
    assert child == [pid, *rank, job]
    assert job.startswith(f"launcher.{pid}.")
    return rank


@pytest.mark.parametrize(
    ("lists", "launcher", "rank"),
    [
        pytest.param((None, None), {}, [1, None], id="without-a-list"),
        pytest.param(("0,1", "0,1"), {}, [1, None], id="one-list-with-a-gpu-per-rank"),
        pytest.param(("0", "0"), {"CUDA_VISIBLE_DEVICES": "0"}, [1, None], id="launchers-list"),
        pytest.param(("0", "1"), {}, [1, 1], id="one-list-per-rank"),
        pytest.param(("0", "1"), {"CUDA_VISIBLE_DEVICES": "0"}, [1, 1], id="list-per-rank-below-a-launchers-list"),
    ],
)
def test_rank_and_its_child_find_whether_the_gpu_list_is_their_own(lists, launcher, rank, monkeypatch):
    for name, value in launcher.items():
        monkeypatch.setenv(name, value)
    assert launched(*lists) == rank


@pytest.mark.skipif(bool(NO_NAMESPACES), reason=NO_NAMESPACES)
def test_a_launcher_may_be_the_first_process_of_a_container():
    assert launched("0,1", "0,1", container=[*CONTAINER, SHARED, "sh"]) == [1, None]


# A launcher of two ranks, with other processes between the launcher and the ranks. Both ranks stay until both have
# printed.
LAUNCHER_OF_TWO = """
import json, os, subprocess, sys
command, options, ranks = sys.argv[2:], json.loads(sys.argv[1]), []
for number in range(2):
    own = {**os.environ, "NUMBER": str(number)}
    ranks.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=own, **options))
print(json.dumps([json.loads(rank.stdout.readline()) for rank in ranks]), flush=True)
sys.stdin.read()
for rank in ranks:
    rank.communicate(timeout=60)
"""
BETWEEN = "export HOROVOD_LOCAL_RANK=$NUMBER HOROVOD_LOCAL_SIZE=2; "
GLOO = "export HOROVOD_GLOO_RENDEZVOUS_ADDR=127.0.0.1 HOROVOD_GLOO_RENDEZVOUS_PORT=$PPID; "


@pytest.mark.parametrize(
    ("between", "options"),
    [
        pytest.param(BETWEEN + '"$@"; exit $?', {}, id="a-shell-for-each-rank"),
        pytest.param(BETWEEN + 'sh -c \'"$@"; exit $?\' sh "$@"; exit $?', {}, id="two-shells-for-each-rank"),
        # As under horovodrun, a process in a session of its own stands between the launcher and each rank.
        pytest.param(GLOO + BETWEEN + '"$@"; exit $?', {"start_new_session": True}, id="a-session-for-each-rank"),
        pytest.param(BETWEEN + 'exec "$@"', {"start_new_session": True}, id="a-session-without-a-shell"),
    ],
)
def test_ranks_are_one_job_if_shells_or_sessions_are_above_them(between, options):
    code = [sys.executable, "-c", f"{TELL}input()"]
    command = [sys.executable, "-c", LAUNCHER_OF_TWO, json.dumps(options), "sh", "-c", between, "sh", *code]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    launchers = [subprocess.Popen(command, **pipes, start_new_session=True) for _ in range(2)]
    try:
        told = [json.loads(launcher.stdout.readline()) for launcher in launchers]
    finally:
        for launcher in launchers:
            launcher.communicate(timeout=120)
    jobs = [{rank[-1] for rank in ranks} for ranks in told]
    assert [len(each) for each in jobs] == [1, 1], told
    assert "" not in jobs[0] | jobs[1] and jobs[0] != jobs[1]


# Ranks that read their number and their address from variables

LISTED = {"CUDA_VISIBLE_DEVICES": "GPU-b,GPU-a", "AUTOGPU_ORIG_WRITTEN": "GPU-b,GPU-a"}


def rank_by_hand(rank, *, code=TELL, container=(), **environ):
    environ = {**os.environ, "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", **environ}
    command = [*container, sys.executable, "-c", code]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environ)


def job_of(rank, **options):
    """Return the job that a rank finds for itself. The rank ends at once."""
    told, _ = rank_by_hand(rank, **options).communicate(timeout=120)
    return json.loads(told)[-1]


@pytest.fixture
def first_rank():
    """Return a function that starts rank 0, keeps it running until the test ends, and returns its job."""
    started = []

    def start(**options):
        started.append(rank_by_hand(0, code=f"{TELL}input()", **options))
        return json.loads(started[-1].stdout.readline())[-1]

    yield start
    for process in started:
        process.communicate("\n", timeout=120)


@pytest.mark.parametrize("listed", [{}, LISTED], ids=["by-a-shell", "by-a-script-that-has-imported-a-framework"])
def test_jobs_of_ranks_started_by_hand_differ_by_their_port(first_rank, listed):
    first, other = first_rank(MASTER_PORT="29500", **listed), first_rank(MASTER_PORT="29501", **listed)
    assert [job_of(1, MASTER_PORT=port, **listed) for port in ("29500", "29501")] == [first, other]
    assert "" != first != other != ""


def test_ranks_of_one_shell_without_a_port_are_one_job(first_rank):
    assert first_rank() == job_of(1) == first_rank() != ""


def test_local_rank_set_by_hand_below_a_holder_makes_no_rank():
    code = "import os; from autogpu.engines.facts import granted_here; print(granted_here(os.environ).rank)"
    told, _ = rank_by_hand(1, code=code, MASTER_PORT="29500", AUTOGPU_LEASE="1/2/3", **LISTED).communicate(timeout=120)
    assert told.strip() == "None"


@pytest.mark.skipif(bool(NO_NAMESPACES), reason=NO_NAMESPACES)
def test_jobs_of_two_containers_have_different_names(first_rank):
    # All three run at the same time, because the kernel reuses the number of a namespace that has ended.
    container = [*CONTAINER, SHARED, "sh"]
    jobs = [first_rank(container=each, MASTER_PORT="29500") for each in (container, container, ())]
    assert len(set(jobs)) == 3, jobs


# Files


def test_pipe_or_folder_as_slurms_configuration_counts_as_missing(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, tmp_path / "nothing"):
        assert granted_here({"SLURM_JOB_ID": "7", "SLURM_CONF": str(path)}) == NO_ENGINE


def test_files_included_by_slurms_configuration_are_read(tmp_path):
    (tmp_path / "slurm.conf").write_text("ClusterName=lab\nInclude gpus.conf  # ours\ninclude /nowhere/else.conf\n")
    environ = {"SLURM_JOB_ID": "7", "SLURM_CONF": str(tmp_path / "slurm.conf")}
    assert granted_here(environ) == NO_ENGINE
    (tmp_path / "gpus.conf").write_text("GresTypes=gpu\n")
    assert granted_here(environ).is_none


@pytest.mark.timeout(30)  # if the time grew with the square of the number of lines, this would take minutes
def test_long_configuration_is_read_in_linear_time(tmp_path):
    conf = tmp_path / "slurm.conf"
    conf.write_text("\n" * 100_000 + "x" * 100_000 + "\nNodeName=" + "," * 20_000 + "\n  gresTypes = shard,gpu\n")
    environ = {"SLURM_JOB_ID": "7", "SLURM_CONF": str(conf), "SLURMD_NODENAME": "x"}
    assert granted_here(environ).is_none
    shard = {"CUDA_VISIBLE_DEVICES": "0", "SLURM_JOB_GPUS": "0", "SLURM_SHARDS_ON_NODE": "1"}
    # If a Slurm daemon runs on this machine, it has no job 7, and the grant counts as ended.
    assert replace(granted_here({**environ, **shard}), has_ended=False) == Grant(
        "Slurm", counts_by_bus=True, job="Slurm.7."
    )
