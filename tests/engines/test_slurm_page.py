"""The cluster of the page ``docs/from-one-server-to-five.md``: its files, and the lines that it says to type."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engines import slurm
from tests.engines.site import files_of
from tests.gpusim import Gpu

pytestmark = [
    pytest.mark.engine,
    pytest.mark.tensorflow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(bool(slurm.missing()), reason=f"no Slurm: {slurm.missing()}"),
]

PAGE = Path(__file__).resolve().parents[2] / "docs" / "from-one-server-to-five.md"
POLICY = '[memory]\nlimit = "4GiB"\n'


@pytest.fixture
def lab(clusters):
    return clusters(*[[Gpu()] * 4] * 5, site=files_of(PAGE))


def sizes(cluster, done):
    return [list(each.values()) for each in cluster.taken(done)]


def test_five_servers_run_as_many_jobs_of_one_gpu_as_they_have(lab):
    done = lab.slurm.run("--nodes=5", "--ntasks=5", "--gpus-per-task=1", command=lab.fill())
    assert sizes(lab, done) == [["whole"]] * 5
    assert [len(server.contexts()) for server in lab.servers] == [1] * 5


def test_a_shard_is_a_quarter_and_the_projects_policy_goes_before_it(lab):
    quarter = lab.slurm.run("--gres=shard:1", command=lab.fill(4.5))
    assert sizes(lab, quarter) == [["5.5 GiB"]]
    assert "25 % of it granted by Slurm" in quarter.stderr
    assert POLICY in PAGE.read_text(encoding="utf-8")
    (lab.file.parent / "autogpu.toml").write_text(POLICY)
    assert sizes(lab, lab.slurm.run("--gres=shard:1", command=lab.fill(3.0))) == [["4.0 GiB"]]


def test_the_same_policy_holds_on_one_server_without_slurm(lab):
    (lab.file.parent / "autogpu.toml").write_text(POLICY)
    server = lab.servers[0]
    alone = server.run(lab.fill(3.0), timeout=240)
    assert sizes(lab, alone) == [["4.0 GiB"]]


def test_two_gpus_of_one_job_are_both_used(lab):
    environ = {"AUTOGPU_COUNT": "all"}
    assert sizes(lab, lab.slurm.run("--gres=gpu:2", command=lab.fill(), environ=environ)) == [["whole", "whole"]]
