"""Jobs in a real Slurm, checked by the driver's log."""

import re
import shutil
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.engines import slurm
from tests.engines.engine_jobs import JOBS, configurations, first_lines
from tests.gpusim import Gpu
from tests.support.live_jobs import claims

pytestmark = [
    pytest.mark.engine,
    pytest.mark.timeout(900),
    pytest.mark.skipif(bool(slurm.missing()), reason=f"no Slurm: {slurm.missing()}"),
]

ONE_EACH = [{gpu: "whole"} for gpu in range(4)]
TWO_EACH = [{0: "whole", 1: "whole"}, {2: "whole", 3: "whole"}]
HALF = "11.50 GiB"
TWO_OF_EACH = [{gpu: HALF} for gpu in (0, 0, 1, 1)]
NONE = [{}]
ALL = {"AUTOGPU_COUNT": "all"}
# CUDA's order begins with the fastest GPU: 3, 2, 1, 0.
MIXED = [Gpu(name=f"NVIDIA Model {speed}", speed=speed) for speed in (1, 2, 3, 4)]
TWO_GPUS = ["--gres=gpu:2"]
# Without these options Open MPI starts its processes by srun, and then must be built with the cluster's PMI.
MPIRUN = "mpirun.openmpi -np 2 --oversubscribe --mca plm isolated --mca ras ^slurm {job}"
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
STEP = "AUTOGPU_COUNT=all srun --exact -n1 --gres=gpu:2 {job} &\n"
WRAPPER = ["/bin/sh", "-c", 'CUDA_VISIBLE_DEVICES=$SLURM_LOCALID exec "$@"', "wrapper"]


@pytest.fixture
def four(clusters):
    return clusters([Gpu()] * 4)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        pytest.param(["-n4", "--gpus-per-task=1"], ONE_EACH, id="gpus-per-task"),
        pytest.param(["-n4", "--gres=gpu:4", "--gpu-bind=single:1"], ONE_EACH, id="bind-single"),
        pytest.param(["-n4", "--gres=gpu:4", "--gpu-bind=map_gpu:3,2,1,0"], ONE_EACH[::-1], id="bind-map"),
        pytest.param(["-n4", "--gres=gpu:4"], ONE_EACH, id="all-gpus-visible"),
        pytest.param(
            ["-n8", "--gres=gpu:4"], [{gpu: HALF} for gpu in (0, 0, 1, 1, 2, 2, 3, 3)], id="two-ranks-for-each-gpu"
        ),
        pytest.param(["-n4", "--ntasks-per-gpu=2"], TWO_OF_EACH, id="ntasks-per-gpu"),
        pytest.param(["-n4", *TWO_GPUS, "--gpu-bind=single:2"], TWO_OF_EACH, id="two-ranks-for-each-gpu-bind-single"),
        pytest.param(
            ["-n4", *TWO_GPUS, "--gpu-bind=map_gpu:0,0,1,1"], TWO_OF_EACH, id="two-ranks-for-each-gpu-bind-map"
        ),
        pytest.param(
            ["-n2", "--gres=gpu:4", "--gpu-bind=map_gpu:2,2"], [{2: HALF}] * 2, id="two-ranks-on-one-gpu-bind-map"
        ),
    ],
)
def test_ranks_divide_the_granted_gpus(four, arguments, expected):
    done = four.run(*arguments, jobs=len(expected))
    assert (done.taken, len(first_lines(done.said))) == (expected, 1), done.stderr


@pytest.mark.parametrize(
    ("arguments", "options", "expected"),
    [
        pytest.param(["-n4", "--gres=gpu:4"], {"before": WRAPPER}, ONE_EACH, id="ranks-bound-by-a-wrapper"),
        pytest.param(["-n2", "--gpus-per-task=2"], {"environ": ALL}, TWO_EACH, id="ranks-with-two-gpus-each"),
        # With more than one task, --gpu-bind=none leaves CUDA_VISIBLE_DEVICES and SLURM_STEP_GPUS unset.
        pytest.param(
            ["-n2", *TWO_GPUS, "--gpu-bind=none"],
            {"kept": TWO_GPUS},
            NONE * 2,
            id="ranks-without-a-list",
        ),
        pytest.param([], {}, NONE, id="job-without-gres"),
        pytest.param(["--gres=gpu:1"], {"program": "salloc"}, NONE, id="shell-of-salloc"),
        pytest.param(
            ["--gres=gpu:1"], {"program": "salloc", "before": ["srun"]}, ONE_EACH[:1], id="step-inside-salloc"
        ),
    ],
)
def test_job_uses_only_its_granted_gpus(four, arguments, options, expected):
    done = four.run(*arguments, jobs=len(expected), **options)
    assert (done.taken, len(first_lines(done.said))) == (expected, 1), done.stderr


def test_tf_config_workers_in_a_step_of_one_task_get_a_gpu_each(four):
    first, second = configurations("worker", "worker")
    workers = ["/bin/sh", "-c", 'TF_CONFIG="$FIRST" "$@" & TF_CONFIG="$SECOND" "$@" & wait', "workers"]
    environ = {**ALL, "FIRST": first, "SECOND": second}
    done = four.run("-n1", *TWO_GPUS, before=workers, environ=environ, jobs=2)
    assert (done.taken, len(first_lines(done.said))) == (ONE_EACH[:2], 1), done.stderr


@pytest.mark.parametrize(
    ("arguments", "options", "expected", "lines"),
    [
        pytest.param([], {"batch": "{job}"}, NONE, 1, id="batch-job-without-gres"),
        pytest.param(TWO_GPUS, {"batch": "srun --gres=none {job}"}, NONE, 1, id="step-without-gres"),
        pytest.param(
            ["--array=0-1", "--gres=gpu:1"], {"batch": "{job}", "scripts": 2}, ONE_EACH[:2], 2, id="jobs-of-an-array"
        ),
        pytest.param(["-n4", "--gres=gpu:4"], {"batch": f"{STEP}{STEP}wait"}, TWO_EACH, 2, id="concurrent-steps"),
        pytest.param(
            TWO_GPUS,
            {"batch": "{job} &\n{job} &\nwait", "kept": TWO_GPUS},
            ONE_EACH[2:],
            2,
            id="concurrent-scripts-in-one-job",
        ),
        pytest.param(
            TWO_GPUS,
            {"batch": MPIRUN, "kept": TWO_GPUS, "environ": AS_ROOT},
            ONE_EACH[2:],
            1,
            id="ranks-of-mpirun",
            marks=pytest.mark.skipif(shutil.which("mpirun.openmpi") is None, reason="not installed: mpirun.openmpi"),
        ),
    ],
)
def test_batch_job_uses_only_its_granted_gpus(start_cluster, batches_end, arguments, options, expected, lines):
    with ExitStack() as running:
        done = start_cluster(running, [Gpu()] * 4).run(*arguments, jobs=len(expected), **options)
    assert (done.taken, len(first_lines(done.said))) == (expected, lines), done.stderr


@pytest.mark.parametrize("environ", [{}, {"AUTOGPU_CUONT": "2"}], ids=["valid-policy", "unknown-key"])
def test_only_the_first_rank_prints_autogpus_lines(four, environ):
    done = four.run("-n2", "--label", *TWO_GPUS, jobs=2, environ=environ)
    printed = [line.split(": ", 1) for line in done.stderr.splitlines() if ": autogpu: " in line]
    assert {rank for rank, _ in printed} == {"0"}, printed
    assert sum("AUTOGPU_CUONT" in line for _, line in printed) == len(environ), printed


USERS_LIST = ["env", "CUDA_VISIBLE_DEVICES=2"]
STALE = ["env", "SLURM_JOB_ID=999999"]


@pytest.mark.parametrize(
    ("arguments", "before", "words"),
    [
        pytest.param([], USERS_LIST, "the only one in CUDA_VISIBLE_DEVICES", id="users-list-without-gres"),
        pytest.param(["--gres=gpu:1"], USERS_LIST, "the only one in CUDA_VISIBLE_DEVICES", id="users-list-with-gres"),
        pytest.param(["--gres=gpu:1"], [], "the only one granted by Slurm", id="slurms-list"),
        pytest.param(
            ["--gres=gpu:1"], STALE, "granted by Slurm, in a job that seems to have ended", id="id-of-an-ended-job"
        ),
    ],
)
def test_line_names_the_origin_of_the_gpu_list(four, arguments, before, words):
    done = four.run(*arguments, before=before)
    assert words in done.said[0], done.said


# This script runs ``status`` twice. The second time, ``run --hold`` holds a GPU of the job.
ASKS_TWICE = """
cd "$1" && mkfifo held end && {autogpu} status
{autogpu} run --hold -- sh -c 'echo >held; read line <end' &
read line <held; {autogpu} status; echo >end; wait
"""


def test_status_counts_the_gpus_granted_to_the_job(four, tmp_path):
    script = ASKS_TWICE.format(autogpu=f"{four.python} -m autogpu")
    asked = four.slurm.run(*TWO_GPUS, command=["/bin/sh", "-c", script, "sh", str(tmp_path)])
    counts = re.findall(r"(\d) free of (\d) GPUs granted by Slurm", asked.stdout)
    assert counts == [("2", "2"), ("1", "2")], asked


def test_job_gets_the_idlest_gpu_if_slurm_manages_none(clusters):
    assert clusters([Gpu()] * 4, manages_gpus=False).run().taken == ONE_EACH[3:]


@pytest.mark.parametrize(
    ("arguments", "environ", "expected"),
    [
        pytest.param(TWO_GPUS, {}, ONE_EACH[1:2], id="count-1"),
        pytest.param(TWO_GPUS, ALL, TWO_EACH[:1], id="count-all"),
        pytest.param(["-n2", *TWO_GPUS], {}, ONE_EACH[:2], id="two-ranks"),
    ],
)
def test_slurms_numbers_of_mixed_models_are_in_pci_order(clusters, arguments, environ, expected):
    done = clusters(MIXED).run(*arguments, jobs=len(expected), environ=environ)
    assert done.taken == expected, done.stderr


@pytest.mark.parametrize("tasks", [(2, 1), (1, 2)], ids=["two-tasks-then-one", "one-task-then-two"])
def test_each_node_divides_its_gpus_by_its_own_number_of_tasks(clusters, tmp_path, tasks):
    cluster = clusters([Gpu()] * 2, [Gpu()] * 2)
    hosts = tmp_path / "hosts"
    hosts.write_text("".join(f"{node}\n" * count for node, count in zip(cluster.slurm.nodes, tasks)))
    environ = {**ALL, "SLURM_HOSTFILE": str(hosts)}
    done = cluster.run("-N2", "-n3", "--distribution=arbitrary", *TWO_GPUS, jobs=3, environ=environ)
    of_node = {1: TWO_EACH[:1], 2: ONE_EACH[:2]}
    assert done.taken == [taken for count in tasks for taken in of_node[count]], done.stderr


# ---- parts of a GPU ----


@pytest.fixture
def shards(clusters):
    return clusters([Gpu()], shards=2)


@pytest.mark.parametrize("gib", [0.5, 22.0], ids=["small-first", "large-first"])
def test_jobs_with_one_of_two_shards_get_half_a_gpu_each(shards, tmp_path, gib):
    run = shards.new_run(count=3)
    for number, size in enumerate((gib, 22.0), 1):
        shards.slurm.popen("--gres=shard:1", command=run.command(shards.python, size))
        run.wait(number)
    claimed = claims(tmp_path / "leases", shards.servers[0])
    run.end()
    taken = run.taken(*shards.servers)
    assert claimed == {each.pid: {0: 12.0} for each in taken}
    assert sorted(each.gpus[0] for each in taken) == sorted(["0.50 GiB" if gib == 0.5 else HALF, HALF])


@pytest.mark.parametrize(
    ("shard", "before", "environ", "expected"),
    [
        pytest.param(2, [], {}, "whole", id="both-shards"),
        # The child's parent holds a context and 0.1 GiB.
        pytest.param(1, ["{python}", "{jobs}/parent.py"], {}, "11.15 GiB", id="child-process"),
        pytest.param(1, ["{python}", "-m", "autogpu", "run", "--hold", "--"], {}, HALF, id="run-hold"),
        pytest.param(1, [], {"AUTOGPU_NEED": "2GiB"}, HALF, id="stated-need"),
        pytest.param(1, ["env", "-u", "CUDA_VISIBLE_DEVICES"], {}, HALF, id="list-unset"),
        pytest.param(1, ["sh", "-c", 'eval "$({python} -m autogpu pick)"; exec "$@"', "sh"], {}, HALF, id="pick"),
    ],
)
def test_no_way_to_start_a_job_exceeds_the_granted_shards(shards, shard, before, environ, expected):
    before = [each.format(python=shards.python, jobs=JOBS) for each in before]
    done = shards.run(f"--gres=shard:{shard}", before=before, environ=environ)
    assert done.taken == [{0: expected}], done.stderr


def test_scripts_of_one_shard_claim_half_a_gpu_together(shards, tmp_path):
    run = shards.new_run(count=3)
    job = " ".join(run.command(shards.python, 2))
    both = ["/bin/sh", "-c", f"{job} & {job} & wait"]
    shards.slurm.popen("--gres=shard:1", command=both, environ={"AUTOGPU_WAIT": "0"})
    run.wait(2)
    claimed = claims(tmp_path / "leases", shards.servers[0])
    run.end()
    assert sorted(each[0] for each in claimed.values()) == [0.0, 12.0]


def test_scripts_of_one_grant_spread_over_its_gpus(four):
    job = 'for n in 1 2 3 4 5 6; do "$@" & done; wait'
    done = four.run(*TWO_GPUS, gib=1, jobs=6, before=["/bin/sh", "-c", job, "sh"])
    assert sorted(gpu for taken in done.taken for gpu in taken) == [0, 0, 0, 1, 1, 1], done.stderr


def test_job_with_half_of_a_gpu_by_mps_gets_half_of_its_memory(clusters):
    done = clusters([Gpu()], mps=100).run("--gres=mps:50")
    assert done.taken == [{0: HALF}], done.stderr
    assert "granted by Slurm, 50 % of the GPU" in done.said[0]


@pytest.mark.tensorflow
def test_tensorflow_gets_only_its_granted_shard(shards, tensorflow_python):
    done = shards.run("--gres=shard:1", gib=9, python=tensorflow_python, framework="tensorflow")
    assert (done.taken, len(done.said)) == ([{0: HALF}], 1), done.stderr


OUT = "autogpu: out of memory on GPU 0 (24.0 GiB): limited to 11.5 GiB"


@pytest.mark.parametrize("dies", ["0", "1"])
def test_rank_that_runs_out_of_memory_prints_the_cause(four, dies):
    done = four.run("-n2", "--label", "--gres=gpu:1", jobs=2, dies=dies)
    said = [line for line in done.stderr.splitlines() if OUT in line]
    assert len(said) == 1
    assert said[0].startswith(f"{dies}: {OUT} by other ranks on the GPU; had "), done.stderr


def test_out_of_memory_line_names_the_part_that_slurm_granted(shards):
    first, *_, last = shards.run("--gres=shard:1", dies="0").said[1:]
    assert first.startswith(f"{OUT}, the part that Slurm granted; had "), first
    assert last == "autogpu: for more memory: request a larger part of a GPU from Slurm"


# ---- the cluster of docs/from-one-server-to-five.md ----

PAGE = Path(__file__).resolve().parents[2] / "docs" / "from-one-server-to-five.md"
POLICY = '[memory]\nlimit = "4GiB"\n'


@pytest.fixture
def lab(clusters):
    return clusters(*[[Gpu()] * 4] * 5, page=PAGE)


def test_five_jobs_of_one_gpu_run_on_five_servers(lab):
    before = [len(server.contexts()) for server in lab.servers]
    done = lab.run("--nodes=5", "--ntasks=5", "--gpus-per-task=1", jobs=5)
    assert [list(taken.values()) for taken in done.taken] == [["whole"]] * 5
    assert [len(server.contexts()) for server in lab.servers] == [count + 1 for count in before]


def test_shard_is_a_quarter_unless_the_policy_sets_a_limit(lab):
    quarter = lab.run("--gres=shard:1")
    assert quarter.taken == [{0: "5.50 GiB"}]
    assert "granted by Slurm, 25 % of the GPU" in quarter.stderr
    assert POLICY in PAGE.read_text(encoding="utf-8")
    policy = lab.slurm.folder / "autogpu.toml"
    policy.write_text(POLICY)
    assert lab.run("--gres=shard:1").taken == [{0: "4.00 GiB"}]
    # The policy's limit holds on one server without Slurm as well.
    alone = lab.new_run()
    lab.servers[0].run(alone.command(lab.python), cwd=str(policy.parent))
    policy.unlink()
    assert [list(each.gpus.values()) for each in alone.taken(lab.servers[0])] == [["4.00 GiB"]]


def test_job_with_two_granted_gpus_uses_both(lab):
    assert lab.run("--gres=gpu:2", environ=ALL).taken == TWO_EACH[:1]
