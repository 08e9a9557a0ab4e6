"""Servers with cards in MIG mode: which instance or card a job gets, and what the commands say of them.

Places are written as ``nvidia-smi`` numbers them: ``0`` is a card, ``0:1`` the instance 1 of it.
"""

from __future__ import annotations

import pytest

from tests.gpusim import Gpu, Instance, Server
from tests.gpusim.fleets import A100
from tests.support.framework_jobs import AT_ONCE, FRAMEWORKS
from tests.support.live_jobs import leases

pytestmark = pytest.mark.timeout(600)

BEFORE_R570, R570 = "550.54.15", "570.133.20"
BALANCED = ("3g.20gb", "2g.10gb", "1g.5gb", "1g.5gb")

# What a user writes, and nothing of MIG in it.
USE = "import tensorflow as tf\ntf.random.uniform((256, 256))\nprint(len(tf.config.list_logical_devices('GPU')))\n"


def a100(*mig: str | Instance, **fields) -> Gpu:
    return Gpu(**{**vars(A100), "mig": mig, **fields})


WHOLE, CUT = A100, a100("3g.20gb", "2g.10gb")
BUSY = {"processes": {5004242: "15GiB"}}
BUSY_CARD = Gpu(**{**vars(A100), **BUSY, "utilization": 97})


def names(server: Server) -> dict[str, str]:
    """By UUID, the place of each card and instance."""
    cards = {gpu.uuid: str(position) for position, gpu in enumerate(server.gpus)}
    return {**cards, **{each.uuid: f"{each.card}:{each.index}" for each in server.instances}}


def uuid_of(server: Server, place: str) -> str:
    return {value: key for key, value in names(server).items()}[place]


def places(calls) -> list[str]:
    """Where contexts were made."""
    made = [(call.gpu, call.instance) for call in calls if call.call == "context"]
    return sorted({str(gpu) if instance is None else f"{gpu}:{instance}" for gpu, instance in made})


def claimed(folder, server: Server) -> dict[int, list[str]]:
    """By pid, the places that its lease names."""
    of = names(server)
    return {lease["pid"]: sorted(of[uuid] for uuid in lease["gpus"]) for lease in leases(folder).values()}


def picked(autogpu, *options: str, **environ: str) -> list[str]:
    printed = autogpu("pick", "--format", "uuid", *options, **environ).stdout.strip()
    return [names(autogpu.server)[uuid] for uuid in printed.split(",") if uuid]


# ---- which one a job gets ----


@pytest.mark.tensorflow
def test_jobs_in_the_same_second_get_a_place_each(host, commands, lease_folder):
    start = host(WHOLE, CUT)
    jobs = [start() for _ in range(3)]
    assert [job.ready() for job in jobs] == ["ready GPU:0"] * 3
    used = {job.pid: places(start.server.calls(pid=job.pid)) for job in jobs}
    assert sorted(used.values()) == [["0"], ["1:0"], ["1:1"]]
    assert claimed(lease_folder, start.server) == used
    assert picked(commands(start.server), "--busy", "error") == []
    for job in jobs:
        assert job.end()[0] == 0
    assert leases(lease_folder) == {}


# ---- whole cards beside cards that are cut ----


@pytest.fixture(params=[pytest.param(BEFORE_R570, marks=pytest.mark.thorough), R570], ids=["before-R570", "R570"])
def driver(request):
    return request.param


@pytest.mark.tensorflow
@pytest.mark.parametrize(
    ("cards", "expected"),
    [
        pytest.param([WHOLE, a100("3g.20gb", "1g.5gb")], "0", id="whole-card-first-in-line"),
        pytest.param([a100("3g.20gb", "1g.5gb"), WHOLE], "1", id="whole-card-last-in-line"),
        pytest.param([BUSY_CARD, a100("3g.20gb", "1g.5gb"), BUSY_CARD], "1:0", id="a-free-instance-before-a-busy-card"),
        pytest.param([a100(), WHOLE, a100()], "1", id="beside-cards-without-instances"),
    ],
)
def test_on_a_mixed_server_one_job_gets_one_place(train, driver, cards, expected):
    ran = train(*cards, driver=driver)(USE)
    assert places(ran.calls) == [expected], ran.stderr


@pytest.mark.tensorflow
@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        pytest.param("0", "1", id="cuda-counts-whole-cards-first"),
        pytest.param("1", "0:0", id="and-then-instances"),
        pytest.param("{1}", "1", id="a-whole-card"),
        pytest.param("{0:1}", "0:1", id="an-instance"),
        pytest.param("{0}", "0:0", id="a-card-stands-for-its-instances"),
    ],
)
def test_a_list_that_was_given_means_what_it_means_to_cuda(train, driver, visible, expected):
    run = train(a100("3g.20gb", "2g.10gb"), WHOLE, driver=driver)
    value = uuid_of(run.server, visible[1:-1]) if visible.startswith("{") else visible
    given = run(USE, CUDA_VISIBLE_DEVICES=value)
    assert (given.stdout, places(given.calls)) == ("1\n", [expected]), given.stderr
    hard_coded = run(f"import os\nos.environ['CUDA_VISIBLE_DEVICES'] = {value!r}\n{USE}")
    assert places(hard_coded.calls) == [expected], hard_coded.stderr


# ---- containers ----


@pytest.mark.tensorflow
@pytest.mark.parametrize("denied", ["refuse", pytest.param("omit", marks=pytest.mark.thorough)])
def test_in_a_container_with_one_instance_it_is_that_one(train, commands, tmp_path, denied):
    files = tmp_path / "dev"
    for name in ("nvidia1", "nvidia-caps/gpu1/gi3/access"):
        (files / name).parent.mkdir(parents=True, exist_ok=True)
        (files / name).touch()
    run = train(a100(*BALANCED), a100(*BALANCED), device_files=str(files), denied=denied)
    ran = run(USE)
    assert (ran.stdout, places(ran.calls)) == ("1\n", ["1:1"]), ran.stderr
    shown = [gpu["uuid"] for gpu in commands(run.server).status()["gpus"]]
    assert shown == [uuid_of(run.server, "1"), uuid_of(run.server, "1:1")]


# ---- what the commands say ----


# ---- other frameworks ----


@pytest.mark.framework
@pytest.mark.xdist_group("together")
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_jobs_of_another_framework_get_an_instance_each(framework, machine_of):
    machine = machine_of(framework, a100("3g.20gb", "2g.10gb", "1g.5gb"))
    jobs = [machine.start(AT_ONCE[framework]) for _ in range(3)]
    assert [job.line() for job in jobs] == ["imported"] * 3
    for job in jobs:
        job.go_on()
    assert all(job.line().startswith("ready") for job in jobs)
    used = {job.pid: places(machine.server.calls(pid=job.pid)) for job in jobs}
    assert sorted(used.values()) == [["0:0"], ["0:1"], ["0:2"]]
    assert claimed(machine.leases, machine.server) == used
